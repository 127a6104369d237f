"""Keys that do not ascend, are repeated or too large: sa.aggregate ends as Aggregator.add does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import sparseagg as sa
from test_engine_finite import added_one_by_one, outcome

Keys = npt.NDArray[np.uint64]


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
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"op": "mean", "dtype": "float16", "return_counts": True},
    {"op": "coordinate_mean", "row_width": 3},
    {"op": "max", "dtype": "int32"},
    {"dtype": "int64"},
    {"op": "union"},
    {"numerics": "fixed_point", "value_bound": 8.0, "max_submissions": 9},
]


@pytest.mark.parametrize("wrong", WRONGS)
@pytest.mark.parametrize("num_rows", [4_000, 100_000, 2**31, 2**40])
def test_wrong_keys_end_as_with_add(wrong: str, num_rows: int) -> None:
    rng = np.random.default_rng(num_rows)
    for options in OPTIONS:
        how = {name: value for name, value in options.items() if name not in ("dtype", "row_width")}
        dtype, row_width = options.get("dtype", "float32"), options.get("row_width", 1)
        spec = sa.RoundSpec([sa.TensorSpec("v", dtype, num_rows=num_rows, row_width=row_width)], **how)
        updates = {}
        for client in "abc":
            keys = np.unique(rng.integers(0, num_rows, 900, np.uint64))
            rows = rng.integers(-5, 5, (len(keys), row_width) if row_width > 1 else len(keys)).astype(dtype)
            updates[client] = ({"v": (keys, None if how.get("op") == "union" else rows)}, 1.0)
        WRONGS[wrong](updates["b"][0]["v"][0])
        expected = outcome(added_one_by_one, updates, spec)
        assert expected[0] == ("InvalidArgumentError" if wrong == "beyond" and num_rows < 2**33 else "result"), expected
        assert outcome(sa.aggregate, updates, spec) == expected, options
        assert outcome(lambda given, spec: sa.aggregate(given, spec, threads=1), updates, spec) == expected, options


def test_repeated_keys_are_added_up_wherever_they_are() -> None:
    keys = np.arange(1000)
    keys[500] = 499
    result = sa.aggregate(
        [{"v": (keys, np.ones(1000, np.float32))}] * 2, sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=1000)])
    )
    expected = np.full(1000, 2.0)
    expected[499], expected[500] = 4.0, 0.0
    np.testing.assert_array_equal(result["v"].dense(), expected)


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
