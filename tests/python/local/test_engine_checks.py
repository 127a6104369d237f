"""sa.aggregate merges a list before it looks at values and keys: it ends as Aggregator.add does all the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import sparseagg as sa

BAD = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}
DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64}


def updates_with(bad: float, weight: float, dtype: Any, row_width: int, num_rows: int, seed: int) -> dict[str, Any]:
    """Three clients with weights 2, `weight` and 1, of whom the second has the bad value."""
    rng = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    for client, its_weight in (("a", 2.0), ("b", weight), ("c", 1.0)):
        keys = np.sort(rng.choice(num_rows, num_rows // 2, replace=False)).astype(np.uint32)
        shape = len(keys) if row_width == 1 else (len(keys), row_width)
        values = np.asarray(rng.standard_normal(shape)).astype(dtype)
        if client == "b":
            values.reshape(-1)[rng.integers(values.size)] = bad
        found[client] = ({"v": (keys, values)}, its_weight)
    return found


def added_one_by_one(updates: Mapping[str, Any], spec: sa.RoundSpec) -> sa.Result:
    aggregator = sa.Aggregator(spec)
    for client, (update, weight) in updates.items():
        aggregator.add(client, update, weight)
    return aggregator.finish()


def outcome(merge: Any, updates: Any, spec: sa.RoundSpec) -> tuple[str, Any]:
    """What a merge comes to: the bytes of its result, or its error."""
    try:
        tensor = merge(updates, spec)["v"]
    except sa.SparseaggError as error:
        return type(error).__name__, str(error)
    return "result", [None if column is None else column.tobytes() for column in (tensor.keys, tensor.values)]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["sum", "mean", "coordinate_mean", "min", "max"])
def test_value_that_is_not_finite_is_refused_as_by_add(bad: str, dtype: str, op: str) -> None:
    for weighting, result, row_width, num_rows, options in itertools.product(
        ("uniform", "by_weight"),
        ("sparse", "dense"),
        (1, 5, 16),
        (50, 3000),
        ({}, {"min_contributors": 3}, {"prune_zeros": True}, {"return_counts": True}),
    ):
        if (op in ("min", "max") and weighting == "by_weight") or (result == "dense" and "prune_zeros" in options):
            continue
        spec = sa.RoundSpec(
            [sa.TensorSpec("v", dtype, num_rows=num_rows, row_width=row_width)],
            op=op,
            weighting=weighting,
            result_layout=result,
            **options,
        )
        # Weights of 0 alone are an error of coordinate_mean, which comes first.
        weight = 3.0 if op == "coordinate_mean" else 0.0
        updates = updates_with(BAD[bad], weight, DTYPES[dtype], row_width, num_rows, seed=num_rows + row_width)
        if weighting == "uniform":
            updates = {client: (update, None) for client, (update, _) in updates.items()}
        found = outcome(sa.aggregate, updates, spec)
        assert found == outcome(added_one_by_one, updates, spec), spec
        assert found[0] == "InvalidArgumentError"
        assert "is not finite" in found[1]
        assert "client 'b'" in found[1]


@pytest.mark.parametrize("op", ["sum", "mean", "coordinate_mean"])
def test_finite_values_whose_sum_is_beyond_the_dtype_are_no_error(op: str) -> None:
    largest = np.array([np.finfo(np.float32).max, 1.0], np.float32)
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=10)], op=op)
    updates = {name: ({"v": (np.array([3, 7], np.uint32), largest)}, 1.0) for name in "ab"}
    found = outcome(sa.aggregate, updates, spec)
    assert found[0] == "result"
    assert found == outcome(added_one_by_one, updates, spec)
    values = sa.aggregate(updates, spec)["v"].values
    assert values is not None
    assert np.isinf(values[0]) == (op == "sum")


def test_tensors_that_take_what_is_not_finite_keep_it_beside_those_that_do_not() -> None:
    tensors = [
        sa.TensorSpec("open", "float32", num_rows=4, on_nonfinite="propagate"),
        sa.TensorSpec("shut", "float32", num_rows=4),
    ]
    keys, good, bad = np.array([1], np.uint32), np.ones(1, np.float32), np.full(1, np.nan, np.float32)
    spec = sa.RoundSpec(tensors)
    values = sa.aggregate([{"open": (keys, bad), "shut": (keys, good)}], spec)["open"].values
    assert values is not None
    assert np.isnan(values).all()
    with pytest.raises(sa.InvalidArgumentError, match=r"tensor 'shut', key \d+, position 0: value nan is not finite"):
        sa.aggregate([{"open": (keys, good), "shut": (keys, bad)}], spec)


def test_a_wrong_key_is_told_before_values_that_are_not_finite() -> None:
    keys, far = np.array([1], np.uint32), np.array([9], np.uint32)
    good, bad = np.ones(1, np.float32), np.full(1, np.inf, np.float32)
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=4)])
    with pytest.raises(sa.InvalidArgumentError, match="key 9 is not below num_rows 4"):
        sa.aggregate([{"v": (keys, bad)}, {"v": (far, good)}], spec)
    with pytest.raises(sa.InvalidArgumentError, match="key 9 is not below num_rows 4"):
        sa.aggregate([{"v": (far, good)}, {"v": (keys, bad)}], spec)


def test_result_carries_the_spec_that_was_given() -> None:
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=4)])
    result = sa.aggregate([{"v": (np.array([1], np.uint32), np.ones(1, np.float32))}], spec)
    assert result.info.spec == spec


Keys = npt.NDArray[Any]


def put(place: int, key: int) -> Callable[[Keys], None]:
    return lambda keys: keys.__setitem__(place, key)


def swap(keys: Keys) -> None:
    keys[[300, 301]] = keys[[301, 300]]


WRONGS = {
    "descending": lambda keys: np.copyto(keys[20:-20], keys[20:-20][::-1].copy()),
    "neighbours": swap,
    "repeated": lambda keys: put(400, int(keys[399]))(keys),
    "repeated far away": lambda keys: put(400, int(keys[20]))(keys),
    "zero": put(400, 0),
    "beyond": put(400, 2**33),
    "low half as before": lambda keys: put(400, int(keys[400]) + 2**32)(keys),
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"op": "mean", "dtype": "float16", "return_counts": True},
    {"op": "coordinate_mean", "row_width": 3},
    {"op": "max", "dtype": "int32"},
    {"dtype": "int64"},
    {"op": "union"},
    {"numerics": "binned"},
]


@pytest.mark.parametrize("wrong", WRONGS)
@pytest.mark.parametrize("num_rows", [4_000, 100_000, 2**31, 2**40])
@pytest.mark.parametrize("key_type", [np.int64, np.uint64])
def test_wrong_keys_end_as_with_add(wrong: str, num_rows: int, key_type: Any) -> None:
    rng = np.random.default_rng(num_rows)
    is_beyond = wrong in ("beyond", "low half as before") and num_rows < 2**33
    for options in OPTIONS:
        how = {name: value for name, value in options.items() if name not in ("dtype", "row_width")}
        dtype, row_width = options.get("dtype", "float32"), options.get("row_width", 1)
        spec = sa.RoundSpec([sa.TensorSpec("v", dtype, num_rows=num_rows, row_width=row_width)], **how)
        updates = {}
        for client in "abc":
            keys = np.unique(rng.integers(0, num_rows, 900, key_type))
            rows = rng.integers(-5, 5, (len(keys), row_width) if row_width > 1 else len(keys)).astype(dtype)
            updates[client] = ({"v": (keys, None if how.get("op") == "union" else rows)}, 1.0)
        WRONGS[wrong](updates["b"][0]["v"][0])
        expected = outcome(added_one_by_one, updates, spec)
        assert expected[0] == ("InvalidArgumentError" if is_beyond else "result"), expected
        assert outcome(sa.aggregate, updates, spec) == expected, options
        assert outcome(lambda given, spec: sa.aggregate(given, spec, threads=1), updates, spec) == expected, options


# Long enough for blocks that begin at keys which were sampled.
TWO_LISTS = {
    "the second lower": lambda n: np.r_[np.arange(n // 3, n), np.arange(n // 3)],
    "the second lower and short": lambda n: np.r_[np.arange(n - 16), np.arange(20, 36)],
    "both the same": lambda n: np.r_[np.arange(n // 2), np.arange(n // 2)],
    "the first beyond": lambda n: np.r_[np.arange(n // 2), np.arange(n // 2, n - 16) + 3 * n, np.arange(n - 16, n)],
}


@pytest.mark.parametrize("lists", TWO_LISTS)
@pytest.mark.parametrize("size", [64, 300_000])
@pytest.mark.parametrize("result", ["sparse", "dense", "auto"])
def test_lists_behind_each_other_end_as_with_add(lists: str, size: int, result: str) -> None:
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=2 * size)], result_layout=result)
    keys = TWO_LISTS[lists](size)
    updates = {client: ({"v": (keys, np.ones(size, np.float32))}, 1.0) for client in "ab"}
    expected = outcome(added_one_by_one, updates, spec)
    assert expected[0] == ("InvalidArgumentError" if lists == "the first beyond" else "result"), expected
    for threads in (1, 2):
        assert outcome(lambda given, spec, t=threads: sa.aggregate(given, spec, threads=t), updates, spec) == expected
