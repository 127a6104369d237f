"""The same submissions get the same bits and the same receipts at every address."""

from __future__ import annotations

import numpy as np
import pytest
import sparseagg as sa
from every_client import PATIENCE_S, SEED, SPECS, UPDATE, digest, merged, one, refusal, updates_of


@pytest.mark.parametrize("name", SPECS)
def test_result_has_the_same_bits_at_every_address(any_client, client, name):
    print(f"seed {SEED}")
    spec = SPECS[name]
    expected = digest(merged(client, spec))
    assert digest(merged(any_client, spec)) == expected
    assert digest(any_client.aggregate(updates_of(spec), spec)) == expected


@pytest.mark.parametrize("values", ["float16", "bfloat16", "int8_scaled", {"v": "float16"}])
def test_submitted_values_are_rounded_alike(any_client, client, values):
    print(f"seed {SEED}")
    expected = digest(merged(client, SPECS["float32 canonical"], value_encoding=values))
    assert expected != digest(merged(client, SPECS["float32 canonical"]))
    assert (
        digest(merged(any_client, SPECS["float32 canonical"], value_encoding=values, key_encoding="plain")) == expected
    )


def test_result_parts_and_rounded_values_are_alike(any_client, client):
    print(f"seed {SEED}")
    rng = np.random.default_rng(SEED)
    dense = sa.TensorSpec("d", "float32", num_rows=150_000, layout="dense")
    spec = sa.RoundSpec([sa.TensorSpec("v", "float64", num_rows=1 << 20, row_width=2), dense], return_counts=True)
    keys = rng.permutation(1 << 17)
    rows = rng.standard_normal((len(keys), 2))  # some pages of a result
    rows[keys < 1000] *= 1e300  # the first page alone is beyond the ranges of narrower types
    dense_rows = rng.standard_normal(dense.num_rows)
    dense_rows[7] = 1e38
    rounds = [at.create_round(spec) for at in (any_client, client)]
    for each in rounds:
        each.submit("a", {"v": (keys, rows), "d": dense_rows})
        each.start_merge()
        each.wait()
    for options in (
        {"tensors": ["d", "v"]},
        {"tensors": ["v"], "keys": (7, 20_000)},
        {"keys": (3, None), "key_encoding": "plain"},
        {"keys": (0, 0)},
        {"keys": (4, 1 << 64)},
        *({"value_encoding": values} for values in ("float32", "float16", "bfloat16", "int8_scaled")),
        {"value_encoding": "int8_scaled", "keys": (999, None)},
    ):
        mine, theirs = (each.result(**options) for each in rounds)
        assert list(mine) == list(theirs), options
        assert digest(mine) == digest(theirs), options


def test_submit_again_is_a_duplicate_or_refused(any_client):
    opened = any_client.create_round(one(weighting="by_weight", max_submissions=2))
    first = opened.submit("a", UPDATE, 1.0, submission_id="s")
    assert first == sa.types.Submission(opened.name, "a", "s", duplicate=False, num_tuples=2, num_bytes=16)
    for again in (UPDATE, {"v": (np.array([1, 2], np.uint64), np.array([1, 2], np.float16))}):
        assert opened.submit("a", again, 1.0) == sa.types.Submission(opened.name, "a", "s", True, 2, 16)
    for update, weight in ((([1, 2], [1.0, 3.0]), 1.0), (([1, 3], [1.0, 2.0]), 1.0), (UPDATE, 2.0)):
        found = refusal(lambda update=update, weight=weight: opened.submit("a", update, weight))
        way_out = "send the same bytes again, or withdraw it first"
        assert found == ("AlreadyExistsError", f"client 'a' has committed submission 's' with other content; {way_out}")
    opened.submit("b", UPDATE, 1.0)
    assert opened.wait(PATIENCE_S).state == "done"
    assert opened.submit("a", UPDATE, 1.0).duplicate  # a retry whose first answer was lost
    assert opened.result()["v"].values.tolist() == [2.0, 4.0]
    assert (opened.refresh().num_submissions, opened.info.num_refused) == (2, 3)


def test_submit_of_a_dense_array_again_as_keys_is_a_duplicate(any_client):
    opened = any_client.create_round(one(num_rows=4))
    opened.submit("a", np.ones(4))
    assert opened.submit("a", ([0, 1, 2, 3], np.ones(4))).duplicate
    assert opened.submit("b", {}).num_tuples == 0
    assert opened.submit("b", {"v": ([], [])}).duplicate
