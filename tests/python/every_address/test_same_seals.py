"""Rounds are sealed, inspected and closed with weights alike at every address."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import sparseagg as sa
from every_client import ONE, SEED, UPDATE, one, refusal
from random_clips import with_random_clips
from random_rounds import as_reference, error_of, random_pools, random_spec, random_update, weight_for


def test_sealed_round_takes_and_gives_back_nothing(any_client):
    opened = any_client.create_round(one(deadline=3600.0))
    for client_id in "ab":
        opened.submit(client_id, UPDATE, submission_id=client_id)
    assert opened.seal().state == "sealed"
    assert (opened.info.close_time, opened.info.ended, opened.info.num_submissions) == (None, False, 2)
    assert opened.seal().state == "sealed"
    assert refusal(lambda: opened.submit("c", UPDATE)) == ("RoundClosedError", "rounds/ID: the round is SEALED")
    assert refusal(lambda: opened.withdraw("a")) == ("RoundClosedError", "rounds/ID: the round is SEALED")
    assert opened.submit("a", UPDATE).duplicate
    assert refusal(lambda: opened.submit("a", ([1], [5.0])))[0] == "AlreadyExistsError"
    with pytest.raises(TimeoutError, match="is still sealed"):
        opened.wait(timeout=0.05)
    assert [each.info.state for each in any_client.list_rounds() if each.name == opened.name] == ["sealed"]
    assert opened.finish()["v"].values.tolist() == [2.0, 4.0]
    assert refusal(opened.seal) == ("RoundClosedError", "rounds/ID: the round is DONE")


def test_sealed_round_can_be_cancelled_and_deleted(any_client):
    for end in ("cancel", "delete"):
        opened = any_client.create_round(ONE)
        opened.submit("a", UPDATE)
        opened.seal()
        getattr(opened, end)()
        if end == "cancel":
            assert opened.refresh().state == "cancelled"
            assert refusal(opened.seal)[0] == "RoundClosedError"
        else:
            assert refusal(opened.refresh)[0] == "NotFoundError"


def test_min_submissions_counts_at_the_close(any_client):
    opened = any_client.create_round(one(min_submissions=2))
    for client_id in "ab":
        opened.submit(client_id, UPDATE)
    assert opened.seal().state == "sealed"
    reason = "FAILED_PRECONDITION: closed with 1 submissions, below min_submissions 2"
    found = refusal(lambda: opened.finish(client_weights={"a": 1, "b": 0}))
    assert found == ("RoundFailedError", f"rounds/ID failed: {reason}")


def test_list_has_hashes_and_weights(any_client):
    opened = any_client.create_round(one(op="mean", weighting="by_weight"))
    opened.submit("a", UPDATE, 2.5)
    opened.submit("b", UPDATE, 2.5)
    opened.submit("c", UPDATE, 3)
    opened.seal()
    first, second, third = opened.submissions()
    assert (first.weight, third.weight, first.client_weight) == (2.5, 3.0, None)
    assert len(first.content_hash) == 32
    assert first.content_hash == second.content_hash != third.content_hash, "the weight is a part of the content"
    opened.start_merge(client_weights={"a": 0.5, "b": 0, "c": 2})
    assert [(each.client_id, each.weight, each.client_weight) for each in opened.submissions()] == [
        ("a", 2.5, 0.5),
        ("c", 3.0, 2.0),
    ]


def test_weights_that_cannot_be_change_nothing(any_client):
    opened = any_client.create_round(ONE)
    for client_id in "ab":
        opened.submit(client_id, UPDATE)
    invalid = "InvalidArgumentError"
    text = "client_weights need a SEALED round; the round is OPEN"
    assert refusal(lambda: opened.finish(client_weights={"a": 1, "b": 1})) == ("FailedPreconditionError", text)
    opened.seal()
    for weights, text in (
        ({"a": 1, "b": 1, "c": 1}, "client_weights: client 'c' has no committed submission in the round"),
        (
            {"a": 1},
            "client_weights: client 'b' has a submission and no weight; each client needs one, 0 leaves the client out",
        ),
        ({"a": 1, "b": -1}, "client_weights: the weight of client 'b' must be 0 or more, got -1"),
        ({"a": 1, "b": "x"}, "client_weights: the weight of client 'b' must be 0 or more, got 'x'"),
        ({"a": 1, "b": float("inf")}, "client_weights: the weight inf of client 'b' is not a finite number ≥ 0"),
        ({}, "client_weights has no client; None is for the weights of the submissions"),
        ([1, 2], "client_weights must be a mapping from client ids to weights, got [1, 2]"),
        ({"1": 1, 1: 1}, "client_weights names client '1' twice"),
    ):
        assert refusal(lambda weights=weights: opened.finish(client_weights=weights)) == (invalid, text)
    text = "only and client_weights exclude each other: a weight of 0 leaves a client out"
    assert refusal(lambda: opened.start_merge(only=["a"], client_weights={"a": 1, "b": 1})) == (invalid, text)
    assert (opened.refresh().state, opened.info.num_submissions) == ("sealed", 2)
    assert opened.finish(client_weights={"a": 0.5, "b": 1})["v"].values.tolist() == [1.5, 3.0]
    text = "the round is DONE and was not closed with these client_weights"
    assert refusal(lambda: opened.finish(client_weights={"a": 1, "b": 1})) == ("FailedPreconditionError", text)


def test_ops_without_weights_are_refused_by_name(any_client):
    binned = {"numerics": "binned", "layout": "dense", "num_rows": 1}
    for spec, why in (
        (one(**binned), "binned sums are merged on arrival"),
        (one(op="max"), "the op max ignores weights"),
        (one("int32"), "sums of integers are exact and take integer weights, on arrival"),
        (one(numerics="binned"), "binned sums are merged on arrival"),
    ):
        opened = any_client.create_round(spec)
        for client_id in "ab":
            opened.submit(client_id, [1.0] if spec.tensors[0].layout == "dense" else ([1], [1]))
        opened.seal()
        text = f"tensor 'v': weights can be multiplied by 0 and 1 only, since {why}"
        assert refusal(lambda opened=opened: opened.finish(client_weights={"a": 1, "b": 2})) == (
            "InvalidArgumentError",
            text,
        )
        assert opened.finish(client_weights={"a": 1, "b": 0})["v"].values.tolist() == [1]


def dense_products(spec: sa.RoundSpec, rows: list[dict[str, dict[int, list[float]]]], tensors: list[str]):
    """The three matrices to the bit, as host/inspect/inner_products.h defines them, one number at a time."""
    n = len(rows)
    gram, squared_distances, overlap = np.zeros((n, n)), np.zeros((n, n)), np.zeros((n, n), np.int64)
    for j in range(n):
        for k in range(j + 1):
            for name in tensors:
                width = spec.tensor(name).row_width
                left, right, absent = rows[j].get(name, {}), rows[k].get(name, {}), [0.0] * width
                keys = sorted(left.keys() | right.keys())
                for block in sorted({key >> 16 for key in keys}):
                    products, squares = [0.0] * 8, [0.0] * 8
                    for key in (key for key in keys if key >> 16 == block):
                        row = [0.0] * 8
                        for c, (a, b) in enumerate(zip(left.get(key, absent), right.get(key, absent))):
                            products[(key * width + c) % 8] += a * b
                            row[c % 8] += (a - b) * (a - b)
                        squares[key % 8] += combined(row)
                        overlap[j, k] += key in left and key in right
                    gram[j, k] += combined(products)
                    squared_distances[j, k] += combined(squares)
            for matrix in (gram, squared_distances, overlap):
                matrix[k, j] = matrix[j, k]
    return gram, squared_distances, overlap


def combined(lanes: list[float]) -> float:
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]))


@pytest.mark.parametrize("batch", range(4))
def test_inspection_of_random_rounds_is_that_of_the_reference(any_client, batch):
    inspected = 0
    for seed in range(15 * batch, 15 * batch + 15):
        print("seed", seed)
        rng = np.random.default_rng([20261128, seed])
        spec = random_spec(rng)
        if rng.random() < 0.7:
            spec = with_random_clips(rng, spec) or spec
        floats = [t.name for t in spec.tensors if "float" in t.dtype and spec.aggregation_of(t).op != "union"]
        pools = random_pools(rng, spec)
        opened = any_client.create_round(spec)
        rows = {}
        for name in rng.permutation([f"client-{i}" for i in range(rng.integers(0, 9))]).tolist():
            update = random_update(rng, spec, pools)
            if error_of(lambda: opened.submit(name, update, weight_for(spec, float(rng.integers(1, 8))))):  # noqa: B023
                continue
            plain = as_reference(spec, update, 1.0)
            folded = {t: reference.update.fold(spec.tensor(t), plain) for t in floats}
            rows[name] = {**folded, **reference.clip(spec, plain).rows}
        opened.seal()
        if not floats:
            assert refusal(lambda opened=opened: sa.robust.inspect(opened))[0] == "InvalidArgumentError"
            continue
        chosen = floats if rng.random() < 0.5 else [str(rng.choice(floats))]
        found = sa.robust.inspect(opened, chosen if chosen != floats or rng.random() < 0.5 else None)
        clients = sorted(rows)
        gram, squared_distances, overlap = dense_products(spec, [rows[name] for name in clients], chosen)
        assert found.clients == tuple(clients)
        assert found.overlap.tolist() == overlap.tolist()
        np.testing.assert_array_equal(found.gram, gram)
        np.testing.assert_array_equal(found.squared_distances, squared_distances)
        inspected += len(clients)
        opened.delete()
    assert inspected > 10


def test_inspection_is_refused_where_it_cannot_be(any_client):
    opened = any_client.create_round(ONE)
    text = "only a SEALED round can be inspected; the round is OPEN"
    assert refusal(lambda: sa.robust.inspect(opened)) == ("FailedPreconditionError", text)
    opened.seal()
    assert sa.robust.inspect(opened).gram.shape == (0, 0)
    assert refusal(lambda: sa.robust.inspect(opened, ["w"]))[0] == "InvalidArgumentError"
    for tensors, text in (("v", "tensors must be a list of names, got 'v'"), ([], "tensors has no name")):
        found, message = refusal(lambda tensors=tensors: sa.robust.inspect(opened, tensors))
        assert (found, message[: len(text)]) == ("InvalidArgumentError", text)
    opened.start_merge()
    assert refusal(lambda: sa.robust.inspect(opened))[0] == "FailedPreconditionError"


def test_round_without_a_certificate_says_so(any_client):
    opened = any_client.create_round(ONE)
    opened.submit("a", UPDATE)
    opened.start_merge()
    for call in (opened.certificate, lambda: sa.certificates.receipt(opened, "a")):
        found, message = refusal(call)
        assert (found, "certificate" in message) == ("FailedPreconditionError", True), message


def test_one_client_beyond_float64_costs_nobody_else(any_client):
    rng = np.random.default_rng(SEED + 2)
    rows = rng.standard_normal((7, 50))
    rows[2, 5] = 1e160
    for rule in (
        lambda found: sa.robust.krum(found, 2),
        lambda found: sa.robust.multi_krum(found, 2, 5),
        sa.robust.geometric_median,
        lambda found: sa.robust.geometric_median(found.only([c for c in found.clients if c != "2"])),
        lambda found: sa.robust.fltrust(found, "0"),
        lambda found: sa.robust.centered_clipping(found, 3.0),
    ):
        opened = any_client.create_round(sa.RoundSpec([sa.TensorSpec("v", "float64", shape=(50,))], op="mean"))
        for number, row in enumerate(rows):
            opened.submit(number, row)
        opened.seal()
        choice = rule(sa.robust.inspect(opened))
        assert choice["2"] == 0
        assert np.abs(opened.finish(client_weights=choice)["v"].dense()).max() < 10
