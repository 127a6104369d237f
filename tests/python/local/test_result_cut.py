"""Cuts of results and moments by the engine in this process, held to the reference and to results by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sparseagg as sa
from sparseagg import errors


def one(dtype: str = "float32", num_rows: int = 100, row_width: int = 1, **options: Any) -> sa.RoundSpec:
    return sa.RoundSpec([sa.TensorSpec("v", dtype, num_rows=num_rows, row_width=row_width)], **options)


def test_cut_is_of_the_finished_rows():
    spec = one(op="coordinate_mean", result_top_k=2, return_counts=True)
    # Key 1 has the largest sum, and the smallest mean.
    result = sa.aggregate([{"v": ([1, 2], [3.0, 4.0])}, {"v": ([1, 3], [3.0, -5.0])}, {"v": ([1], [3.0])}], spec)
    assert result["v"].keys.tolist() == [2, 3]
    assert result["v"].values.tolist() == [4.0, -5.0]
    assert result["v"].counts.tolist() == [1, 1]
    (summary,) = result.info.results
    assert (summary.num_keys, summary.num_cut_keys) == (2, 1)


def test_result_of_a_million_rows_is_numpys_choice():
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((1_000_000, 3)).astype(np.float32)
    keys = rng.permutation(2_000_000)[:1_000_000]
    result = sa.aggregate([{"v": (keys, rows)}], one(num_rows=2_000_000, row_width=3, result_top_k=1000))
    squares = np.square(rows.astype(np.float64))
    norms = (squares[:, 0] + squares[:, 1]) + squares[:, 2]
    order = np.lexsort((keys, -norms))[:1000]
    chosen = order[np.argsort(keys[order])]
    assert result["v"].keys.tolist() == keys[chosen].tolist()
    assert result["v"].values.tobytes() == rows[chosen].tobytes()
    assert result.info.results[0].num_cut_keys == 999_000


def test_moments_as_hand_computed():
    spec = one("float32", row_width=2, op="coordinate_mean", weighting="by_weight", return_moments=True)
    updates = [({"v": ([4, 1, 4], [[1, 2], [3, 4], [1, 0]])}, 2.0), ({"v": ([4], [[5, -1]])}, 3.0)]
    result = sa.aggregate(updates, spec)["v"]
    assert result.moments.tolist() == [[18.0, 32.0], [2 * 4.0 + 3 * 25.0, 2 * 4.0 + 3 * 1.0]]
    assert result.moments.dtype == np.float64
    plain = sa.aggregate([{"v": ([4], [7])}], one("int32", result_layout="dense", num_rows=6, return_moments=True))["v"]
    assert plain.moments.tolist() == [0, 0, 0, 0, 49.0, 0]
    assert sa.aggregate([{"v": ([4], [7])}], one())["v"].moments is None


@pytest.mark.parametrize("counts", [False, True])
def test_rows_that_are_pruned_from_a_dense_result_have_no_moments(counts):
    spec = one(
        "float32", num_rows=4, result_layout="dense", prune_zeros=True, return_moments=True, return_counts=counts
    )
    result = sa.aggregate([{"v": ([1, 2], [3.0, 1.0])}, {"v": ([1], [-3.0])}], spec)["v"]
    assert result.moments.tolist() == [0.0, 0.0, 1.0, 0.0]
    assert (result.counts is None) != counts


def test_moments_do_not_depend_on_order_splits_or_a_memory_limit():
    rng = np.random.default_rng(8)
    spec = one("float32", num_rows=5000, row_width=4, weighting="by_weight", return_moments=True, result_top_k=300)
    updates = {
        f"client {i:02}": ({"v": (rng.integers(0, 5000, 800), rng.standard_normal((800, 4)))}, float(rng.random()))
        for i in range(20)
    }
    whole = sa.aggregate(updates, spec)["v"]
    halves = [sa.Aggregator(spec), sa.Aggregator(spec)]
    for i, name in enumerate(reversed(updates)):
        halves[i % 2].add(name, *updates[name])
    halves[0].merge(halves[1])
    limited = sa.Aggregator(spec, memory_limit=1_200_000)
    for name in updates:
        limited.add(name, *updates[name])
    with pytest.raises(errors.FailedPreconditionError, match="memory_limit"):
        limited.withdraw("client 00")  # it has been folded
    for part in (halves[0].finish()["v"], limited.finish()["v"]):
        assert part.keys.tobytes() == whole.keys.tobytes()
        assert part.values.tobytes() == whole.values.tobytes()
        assert part.moments.tobytes() == whole.moments.tobytes()
