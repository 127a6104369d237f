"""sa.aggregate merges a list before it looks at values and keys: it gives the result or error of add all the same."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
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


def swapped(keys: np.ndarray, at: int) -> None:
    keys[[at, at + 1]] = keys[[at + 1, at]]


SPOILED = {
    "nothing": lambda keys, at: None,
    "repeated": lambda keys, at: keys.__setitem__(at, keys[at + 1]),
    "swapped": swapped,
    "reversed": lambda keys, at: keys.__setitem__(slice(None), keys[::-1].copy()),
    "negative": lambda keys, at: keys.__setitem__(at, -3),
    "too large": lambda keys, at: keys.__setitem__(at, 1 << 40),
    "low half as before": lambda keys, at: keys.__setitem__(at, keys[at] + (1 << 32)),
    "beyond num_rows": lambda keys, at: keys.__setitem__(at, 9000),
}


@pytest.mark.parametrize("spoil", SPOILED)
@pytest.mark.parametrize("num_rows", [9000, 1 << 32])  # by table and by sort
@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_keys_are_looked_at_by_the_merge_or_again(spoil: str, num_rows: int, dtype: Any) -> None:
    if spoil == "beyond num_rows":
        num_rows = min(num_rows, 9000)
    rng = np.random.default_rng(11)
    for result, at in itertools.product(("sparse", "dense") if num_rows == 9000 else ("sparse",), (3, 3000, 5997)):
        spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=num_rows)], result_layout=result)
        updates: dict[str, Any] = {}
        for client in "abcd":
            keys = np.sort(rng.choice(min(num_rows, 20_000_000), 6000, replace=False)).astype(np.int64)
            if client == "b":
                SPOILED[spoil](keys, at)
            updates[client] = ({"v": (keys.astype(dtype), rng.standard_normal(6000).astype(np.float32))}, None)
        # As they are: arrays of a pair (update, None) would be converted first.
        found = outcome(sa.aggregate, {client: update for client, (update, _) in updates.items()}, spec)
        assert found == outcome(added_one_by_one, updates, spec)
        assert (found[0] == "result") == (spoil in ("nothing", "repeated", "swapped", "reversed")), found
        if found[0] != "result":
            assert "client 'b'" in found[1]
