"""The client against a real server: rounds, submissions, results, and what is refused."""

from __future__ import annotations

import concurrent.futures
import math

import numpy as np
import pytest
import sparseagg as sa
from sparseagg._internal.wire import encode


def one(dtype="float32", num_rows=10, row_width=1, **options) -> sa.RoundSpec:
    of_tensor = {key: options.pop(key) for key in ("layout", "modular") if key in options}
    return sa.RoundSpec([sa.TensorSpec("v", dtype, num_rows=num_rows, row_width=row_width, **of_tensor)], **options)


@pytest.mark.parametrize("resumable", [False, True])
def test_round_update_in_many_chunks_is_one_submission(server, resumable):
    rng = np.random.default_rng(5)
    keys = rng.integers(0, 5000, 20_000)
    rows = rng.integers(-1000, 1000, (20_000, 3)).astype(np.float32)
    expected = np.zeros((5000, 3))
    np.add.at(expected, keys, rows)
    with sa.Client(server.address, chunk_bytes=10_000) as client:
        opened = client.create_round(one(num_rows=5000, row_width=3))
        submission = opened.submit("a", {"v": (keys, rows)}, resumable=resumable, progress=True)
        assert submission.num_tuples == 20_000
        merged = opened.finish()["v"]
    assert merged.keys.tolist() == np.unique(keys).tolist()
    assert np.array_equal(merged.dense(), expected)


def test_result_parts_are_as_the_whole(client):
    opened = client.create_round(
        sa.RoundSpec(
            [sa.TensorSpec("a", "float32", num_rows=0), sa.TensorSpec("b", "float32", num_rows=5, layout="dense")]
        )
    )
    hashes = np.array([2**64 - 1, 10, 2**63, 11], np.uint64)
    opened.submit("x", {"a": (hashes, [1.0, 2.0, 3.0, 4.0]), "b": np.arange(5.0)})
    opened.finish()
    assert opened.result(["b"])["b"].values.tolist() == [0, 1, 2, 3, 4]
    assert list(opened.result(["b"])) == ["b"]
    assert opened.result(["a"], keys=(11, 2**63))["a"].keys.tolist() == [11]
    assert opened.result(["a"], keys=(11, None))["a"].keys.tolist() == [11, 2**63, 2**64 - 1]
    part = opened.result(["b"], keys=(2, 4))["b"]
    assert (part.keys.tolist(), part.values.tolist()) == ([2, 3], [2.0, 3.0])
    assert len(opened.result(["a"], keys=(12, 13))["a"]) == 0
    with pytest.raises(sa.SparseaggError, match="'nope'"):
        opened.result(["nope"])


def test_list_rounds_all_oldest_first(client):
    made = [client.create_round(one()).id for _ in range(130)]  # more than a page
    listed = [found.id for found in client.list_rounds()]
    assert [name for name in listed if name in made] == made
    for name in made:
        client.get_round(name).delete()


@pytest.mark.parametrize(
    ("update", "weight", "text"),
    [
        ({"v": ([3, 10], [1.0, 1.0])}, 1.0, "key 10"),
        ({"v": ([3, 4], [1.0, math.nan])}, 1.0, "'v'"),
        ({"v": ([3, 4], [1.0, -math.inf])}, 1.0, "'v'"),
        ({"v": ([3], None)}, 1.0, "'v'"),
        ({"v": ([3], [1.0])}, -1.0, "-1"),
        ({"v": ([3], [1.0])}, math.nan, "nan"),
        ({"v": ([3], [1.0])}, None, "weight"),
        ({"w": ([3], [1.0])}, 1.0, "'w'"),
        ({"v": ([3, 4], [1.0])}, 1.0, "'v'"),
        ({"v": ([3], [1.0])}, "1", "weight"),
    ],
)
def test_submit_bad_update_is_refused_and_the_round_unharmed(client, update, weight, text):
    opened = client.create_round(one(weighting="by_weight"))
    opened.submit("good", {"v": ([3], [1.0])}, weight=2.0)
    for resumable in (False, True):
        with pytest.raises(sa.InvalidArgumentError, match=text) as refused:
            opened.submit("bad", update, weight=weight, resumable=resumable)
        assert refused.value.code.name == "INVALID_ARGUMENT"
        assert isinstance(refused.value, ValueError)
    merged = opened.finish()["v"]
    assert (merged.keys.tolist(), merged.values.tolist()) == ([3], [2.0])


def test_aggregate_many_chunks_equals_a_round(server):
    rng = np.random.default_rng(6)
    updates = {
        f"client-{i}": {"v": (rng.integers(0, 3000, 4000), rng.standard_normal((4000, 2)).astype(np.float32))}
        for i in range(5)
    }
    spec = one(num_rows=3000, row_width=2, op="coordinate_mean")
    with sa.Client(server.address, chunk_bytes=5000) as client:
        at_once = client.aggregate(updates, spec)["v"]
        opened = client.create_round(spec)
        for name in reversed(updates):
            opened.submit(name, updates[name])
        merged = opened.finish()["v"]
    assert at_once.keys.tobytes() == merged.keys.tobytes()
    assert at_once.values.tobytes() == merged.values.tobytes()


def test_client_many_threads_and_rounds_at_once(client):
    spec = one("float64", num_rows=200, op="sum", return_counts=True)
    opened = [client.create_round(spec) for _ in range(4)]

    def submit(task: tuple[int, int]) -> None:
        which, k = task
        opened[which].submit(f"client-{k}", {"v": (np.arange(k, 200), np.full(200 - k, 0.1 * (which + 1)))})

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(submit, [(which, k) for k in range(50) for which in range(4)]))
    names = sorted(f"client-{k}" for k in range(50))
    for which, one_round in enumerate(opened):
        merged = one_round.finish()["v"]
        assert merged.counts.tolist() == [min(key + 1, 50) for key in range(200)]
        total = 0.0
        for _ in names:
            total += 0.1 * (which + 1)
        assert merged.values[199] == total


@pytest.mark.parametrize("resumable", [False, True])
def test_submit_raises_what_making_a_chunk_raises(server, monkeypatch, resumable):
    update = fail_after(monkeypatch, 2)
    with sa.Client(server.address, chunk_bytes=1000) as client:
        opened = client.create_round(one(num_rows=1000))
        with pytest.raises(MemoryError, match="no room for this chunk"):
            opened.submit("a", update, resumable=resumable)
        with pytest.raises(MemoryError, match="no room for this chunk"):
            client.aggregate([update], one(num_rows=1000))
        assert opened.refresh().num_submissions == 0


def fail_after(monkeypatch: pytest.MonkeyPatch, slices: int) -> tuple[np.ndarray, np.ndarray]:
    """An update of more slices than that, making one of which fails."""
    made = []

    def failing(*arguments):
        made.append(arguments)
        if len(made) > slices:
            raise MemoryError("no room for this chunk")
        return whole(*arguments)

    whole = encode._slice
    monkeypatch.setattr(encode, "_slice", failing)
    return np.arange(1000), np.ones(1000, np.float32)


def test_client_two_of_them_share_rounds(server, client):
    opened = client.create_round(one())
    with sa.Client(server.address) as other:
        other.get_round(opened.id).submit("a", {"v": ([1], [1.0])})
    assert opened.finish()["v"].values.tolist() == [1.0]
