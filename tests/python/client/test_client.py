"""The client against a real server: rounds, submissions, results, and what is refused."""

from __future__ import annotations

import concurrent.futures
import math

import numpy as np
import pytest
import sparseagg as sa
from sparseagg._internal.wire import encode

EMBEDDING = sa.RoundSpec([sa.TensorSpec("e", "float32", num_rows=100, row_width=4)], return_counts=True)


def one(dtype="float32", num_rows=10, row_width=1, **options) -> sa.RoundSpec:
    of_tensor = {key: options.pop(key) for key in ("layout", "modular") if key in options}
    return sa.RoundSpec([sa.TensorSpec("v", dtype, num_rows=num_rows, row_width=row_width, **of_tensor)], **options)


def test_server_info_names_engine_and_limits(client):
    info = client.server_info()
    assert info.engine in ("cpu", "cuda")
    assert "v1" in "".join(info.api_versions)
    assert info.limits.max_message_bytes > 0
    assert info.limits.max_wait > 0


def test_round_submit_close_gives_the_merged_rows(client):
    opened = client.create_round(EMBEDDING)
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    submission = opened.submit("a", {"e": (np.array([7, 3]), rows)})
    assert (submission.num_tuples, submission.num_bytes, submission.duplicate) == (2, 2 * (4 + 16), False)
    opened.submit("b", {"e": (np.array([3, 3]), rows)})
    result = opened.finish()
    assert list(result) == ["e"]
    merged = result["e"]
    assert merged.layout == "sparse"
    assert merged.keys.tolist() == [3, 7]
    assert merged.values.tolist() == [[8, 11, 14, 17], [0, 1, 2, 3]]
    assert merged.counts.tolist() == [2, 1]
    assert merged.dense().shape == (100, 4)
    assert result.info.state == "done"
    assert (result.info.num_submissions, result.info.num_tuples) == (2, 4)
    assert result.info.spec.tensors == EMBEDDING.tensors
    assert opened.finish()["e"].keys.tolist() == [3, 7]  # closing again just reads


@pytest.mark.parametrize("op", ["sum", "mean", "coordinate_mean", "min", "max"])
def test_round_by_weight_follows_the_op(client, op):
    opened = client.create_round(one("float64", op=op, weighting="by_weight", return_weights=True))
    opened.submit("a", {"v": ([7, 1], [4.0, 1.0])}, weight=3.0)
    opened.submit("b", {"v": ([9, 1], [2.0, 5.0])}, weight=1.0)
    merged = opened.finish()["v"]
    expected = {
        "sum": [8.0, 12.0, 2.0],
        "mean": [2.0, 3.0, 0.5],
        "coordinate_mean": [2.0, 4.0, 2.0],
        "min": [1.0, 4.0, 2.0],
        "max": [5.0, 4.0, 2.0],
    }
    assert merged.values.tolist() == expected[op]
    assert merged.weights.tolist() == [4.0, 3.0, 1.0]


@pytest.mark.parametrize(
    ("dtype", "modular", "given", "result_dtype"),
    [
        ("float32", False, 1.5, "float32"),
        ("float16", False, 1.5, "float16"),
        ("bfloat16", False, 1.5, "bfloat16"),
        ("float64", False, 0.1, "float64"),
        ("int32", False, -3, "int64"),
        ("int64", False, -(2**40), "int64"),
        ("uint32", True, 2**31 + 1, "uint32"),
        ("uint64", True, 2**63 + 1, "uint64"),
    ],
)
def test_round_every_dtype_comes_back(client, dtype, modular, given, result_dtype):
    opened = client.create_round(one(dtype, modular=modular))
    values = [given] if dtype.startswith(("f", "b")) else np.array([given], dtype)
    for name in ("a", "b"):
        opened.submit(name, {"v": ([4], values)})
    merged = opened.finish()["v"]
    assert merged.dtype == result_dtype
    total = 2 * given if not modular else (2 * given) % 2 ** (8 * merged.values.itemsize)
    assert merged.values.astype(np.float64 if result_dtype == "bfloat16" else merged.values.dtype).tolist() == [total]


def test_round_union_has_keys_and_counts(client):
    opened = client.create_round(one(op="union"))
    opened.submit("a", {"v": ([3, 1], None)})
    opened.submit("b", {"v": ([3], None)})
    merged = opened.finish()["v"]
    assert (merged.keys.tolist(), merged.values, merged.counts.tolist()) == ([1, 3], None, [1, 2])


def test_round_dense_tensor_and_overrides(client):
    spec = sa.RoundSpec(
        [
            sa.TensorSpec("e", "float32", num_rows=10),
            sa.TensorSpec("b", "float32", num_rows=3, layout="dense", op="mean"),
        ],
        op="sum",
    )
    opened = client.create_round(spec)
    opened.submit("a", {"e": ([1], [1.0]), "b": [3.0, 6.0, 9.0]})
    opened.submit("b", {"e": ([1], [1.0]), "b": [1.0, 2.0, 3.0]})
    result = opened.finish()
    assert list(result) == ["e", "b"]
    assert result["e"].values.tolist() == [2.0]
    assert (result["b"].layout, result["b"].dense().tolist()) == ("dense", [2.0, 4.0, 6.0])


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


def test_round_empty_is_an_empty_result(client):
    merged = client.create_round(one(return_counts=True)).finish()["v"]
    assert (len(merged), merged.values.shape, merged.counts.shape) == (0, (0,), (0,))


def test_round_update_without_tuples_counts_in_the_mean(client):
    opened = client.create_round(one(op="mean"))
    opened.submit("a", {"v": ([1], [1.0])})
    assert opened.submit("b", {}).num_tuples == 0
    assert opened.finish()["v"].values.tolist() == [0.5]


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


def test_round_fixed_point_reports_its_shift(client):
    opened = client.create_round(one(numerics="fixed_point", max_submissions=100, value_bound=1.0))
    opened.submit("a", {"v": ([1], [0.5])})
    assert opened.finish()["v"].fixed_point_shift == 62 - 7


def test_aggregate_list_mapping_and_weights(client):
    updates = [{"v": ([1, 2], [1.0, 2.0])}, ([2], [4.0])]
    result = client.aggregate(updates, one(return_counts=True))
    assert result["v"].values.tolist() == [1.0, 6.0]
    assert result.info.num_submissions == 2
    weighted = client.aggregate([(update, 2.0) for update in updates], one(weighting="by_weight"))
    assert weighted["v"].values.tolist() == [2.0, 12.0]
    # The order of the sum is that of the ids: ((1 + 1e16) − 1e16) is 0, (−1e16 + 1e16) + 1 is 1.
    named = {"c": ([0], [-1e16]), "b": ([0], [1e16]), "a": ([0], [1.0])}
    assert client.aggregate(named, one("float64"))["v"].values.tolist() == [0.0]
    assert client.aggregate(list(named.values()), one("float64"))["v"].values.tolist() == [1.0]
    assert len(client.aggregate([], one())["v"]) == 0


def test_aggregate_bad_update_refuses_all(client):
    with pytest.raises(sa.InvalidArgumentError, match="key 10"):
        client.aggregate([([1], [1.0]), ([10], [1.0])], one())
    with pytest.raises(sa.InvalidArgumentError, match=r"client '00000000000000000001'.*'w'"):
        client.aggregate([([1], [1.0]), {"w": ([1], [1.0])}], one())
    with pytest.raises(sa.errors.OutOfRangeError, match="key 5"):
        client.aggregate([([5], np.array([2**63 - 1]))] * 2, one("int64"))
    with pytest.raises(sa.InvalidArgumentError, match="modular"):
        client.aggregate([], one("uint32"))


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
