"""The largest elements and rows of changes, and what is kept of the rest."""

from __future__ import annotations

import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import sparseagg as sa

SEED = 26


def brute_force(sizes: np.ndarray, k: int) -> list[int]:
    order = sorted(range(len(sizes)), key=lambda key: (-sizes[key], key))
    return sorted(key for key in order[:k] if sizes[key] > 0)


@pytest.mark.parametrize("k", [1, 2, 7, 30, 59, 60, 1000])
@pytest.mark.parametrize("by", ["element", "row"])
def test_select_is_exact_also_where_many_are_equal(k: int, by: str) -> None:
    rng = np.random.default_rng(SEED)
    for _ in range(20):
        delta = rng.integers(-2, 3, (20, 3)).astype(np.float32)
        keys, rows = sa.TopK(k=k, by=by).select("v", delta)
        flat = delta.reshape(-1) if by == "element" else delta
        sizes = np.abs(flat) if by == "element" else (delta**2).sum(axis=1)
        assert keys.tolist() == brute_force(sizes, k), f"seed {SEED}"
        assert np.array_equal(rows, flat[keys])
        assert (keys.dtype, rows.dtype) == (np.int64, np.float32)


@pytest.mark.parametrize(("fraction", "expected"), [(0.1, 1), (1e-9, 1), (0.3, 3), (1, 10)])
def test_fraction_is_rounded_to_a_number_of_one_at_least(fraction: float, expected: int) -> None:
    assert len(sa.TopK(fraction=fraction).select("v", np.arange(1.0, 11.0))[0]) == expected


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("by", ["element", "row"])
def test_what_is_sent_and_what_is_kept_are_the_sum_of_all_changes(dtype: str, by: str) -> None:
    rng = np.random.default_rng(SEED)
    top_k, sent, given = sa.TopK(fraction=0.2, by=by), np.zeros((8, 2, 2)), np.zeros((8, 2, 2))
    for _ in range(10):
        # Such integers and their sums are exact in float32. In 16 bits, sums are rounded when they are sent.
        delta = rng.integers(-1000, 1000, (8, 2, 2)).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        given += delta.astype(np.float64)
        keys, rows = top_k.select("v", delta)
        assert rows.dtype == delta.dtype
        view = sent if by == "row" else sent.reshape(-1)
        view[keys] += rows.astype(np.float64)
        assert np.array_equal(sent + top_k.residuals["v"], given), f"seed {SEED}"


def test_residuals_are_kept_by_name_and_survive_pickling() -> None:
    top_k = sa.TopK(k=1)
    assert top_k.select("a", np.array([3.0, 2.0]))[0].tolist() == [0]
    assert top_k.select("b", np.array([1.0, 0.0]))[0].tolist() == [0]
    again = pickle.loads(pickle.dumps(top_k))
    keys, rows = again.select("a", np.array([1.0, 1.0]))
    assert (keys.tolist(), rows.tolist()) == ([1], [3.0])
    assert again.residuals["a"].tolist() == [1.0, 0.0]
    assert top_k.residuals["a"].tolist() == [0.0, 2.0], "select changes no array that was given away"


def test_update_that_did_not_count_is_put_back() -> None:
    for by in ("element", "row"):
        top_k, delta = sa.TopK(k=2, by=by), np.array([[1.0, 4.0], [2.0, 3.0], [0.5, 0.5]])
        keys, rows = top_k.select("v", delta)
        assert not np.array_equal(top_k.residuals["v"], delta)
        top_k.put_back("v", keys, rows)
        assert np.array_equal(top_k.residuals["v"], delta)
    with pytest.raises(sa.InvalidArgumentError, match="nothing of tensor 'w' has been selected"):
        top_k.put_back("w", [0], [1.0])


def test_selected_elements_and_rows_merge_to_the_arrays_shape() -> None:
    rng = np.random.default_rng(SEED)
    deltas = [rng.standard_normal((6, 4)) for _ in range(3)]
    for by, options in (("element", {"elements": ["w"]}), ("row", {"sparse": ["w"]})):
        spec = sa.RoundSpec.like({"w": deltas[0]}, **options)
        merged = sa.aggregate([{"w": sa.TopK(fraction=1, by=by).select("w", delta)} for delta in deltas], spec)
        assert np.allclose(merged["w"].dense(), sum(deltas))
        weight = np.zeros((6, 4))
        merged.add_to({"w": weight})
        assert np.array_equal(weight, merged["w"].dense())


def test_scalars_vectors_and_empty_arrays_are_selected_from() -> None:
    for by in ("element", "row"):
        assert sa.TopK(k=3, by=by).select("v", np.array(2.5))[1].tolist() == [2.5]
        assert sa.TopK(k=1, by=by).select("v", np.array([1.0, -2.0]))[1].tolist() == [-2.0]
        assert sa.TopK(fraction=0.5, by=by).select("v", np.zeros((0, 3)))[0].tolist() == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "either fraction or k"),
        ({"k": 1, "fraction": 0.5}, "either fraction or k"),
        ({"k": 0}, "k must be a number from 1 on, got 0"),
        ({"fraction": 0}, "fraction must be a number from 0 to 1, without 0, got 0"),
        ({"fraction": float("nan")}, "fraction must be .*, got nan"),
        ({"fraction": 1.5}, "fraction must be .*, got 1.5"),
        ({"k": 1, "by": "column"}, "unknown by 'column'; known: element, row"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(sa.InvalidArgumentError, match=text):
        sa.TopK(**options)


def test_changes_that_make_no_sense_are_refused_and_leave_the_residual() -> None:
    top_k = sa.TopK(k=1)
    top_k.select("v", np.array([3.0, 2.0, 1.0], np.float32))
    for delta, text in [
        (np.array([1, 2, 3]), "tensor 'v': a change must be of floats, got int64"),
        (np.zeros((3, 1)), r"tensor 'v' had changes of shape \(3,\), and now \(3, 1\)"),
        (np.array([1.0, np.nan, 1.0]), "tensor 'v': element 1 is not finite, or too large"),
        (np.array([1.0, 1.0, -np.inf]), "tensor 'v': element 2 is not finite, or too large"),
    ]:
        with pytest.raises(sa.InvalidArgumentError, match=text):
            top_k.select("v", delta)
    assert top_k.residuals["v"].tolist() == [0.0, 2.0, 1.0]
    half = sa.TopK(k=1)
    half.select("h", np.array([60000.0, 59000.0], np.float16))
    with pytest.raises(sa.InvalidArgumentError, match="tensor 'h': a sum with the residual does not fit float16"):
        half.select("h", np.array([0.0, 60000.0], np.float16))
