"""Cuts of results and moments by the engine in this process, held to the reference and to results by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import reference
import sparseagg as sa
from order_rounds import random_order_round
from random_clips import with_random_clips
from random_cuts import with_random_cuts
from random_rounds import check_in_process, error_of, random_spec
from reference import differences
from sparseagg import errors


def one(dtype: str = "float32", num_rows: int = 100, row_width: int = 1, **options: Any) -> sa.RoundSpec:
    return sa.RoundSpec([sa.TensorSpec("v", dtype, num_rows=num_rows, row_width=row_width)], **options)


@pytest.mark.parametrize("seed", range(150))
def test_random_round_equals_the_reference(seed):
    print("seed", seed)
    rng = np.random.default_rng([20261129, seed])
    spec = random_spec(rng)
    if seed % 3 == 0:
        spec = with_random_clips(rng, spec) or spec
    spec = with_random_cuts(rng, spec)
    print(spec)
    check_in_process(rng, spec)


@pytest.mark.parametrize("seed", range(60))
def test_random_order_statistics_equal_the_reference(seed):
    print("seed", seed)
    rng = np.random.default_rng([20261130, seed])
    spec, updates, expected = random_order_round(rng)
    spec = with_random_cuts(rng, spec)
    print(spec)
    error = error_of(lambda: reference.merge(spec, expected, check="int" in spec.tensors[0].dtype))
    if error is not None:
        assert error_of(lambda: sa.aggregate(updates, spec)) is error
        return
    assert differences(spec, expected, sa.aggregate(updates, spec)) == []


def test_cut_is_of_the_finished_rows():
    spec = one(op="coordinate_mean", result_top_k=2, return_counts=True)
    # Key 1 has the largest sum, and the smallest mean.
    result = sa.aggregate([{"v": ([1, 2], [3.0, 4.0])}, {"v": ([1, 3], [3.0, -5.0])}, {"v": ([1], [3.0])}], spec)
    assert result["v"].keys.tolist() == [2, 3]
    assert result["v"].values.tolist() == [4.0, -5.0]
    assert result["v"].counts.tolist() == [1, 1]
    (summary,) = result.info.results
    assert (summary.num_keys, summary.num_cut_keys) == (2, 1)


def test_rounding_to_the_result_dtype_comes_before_the_cut():
    values = [1.0 + 2.0**-30, 1.0, 1.0 + 2.0**-40]
    as_float64 = sa.aggregate([{"v": ([5, 6, 7], values)}], one("float64", result_top_k=2))
    assert as_float64["v"].keys.tolist() == [5, 7]
    as_float32 = sa.aggregate([{"v": ([5, 6, 7], values)}], one("float64", result_top_k=2, result_dtype="float32"))
    assert as_float32["v"].keys.tolist() == [5, 6]  # all are 1: the lower keys


def test_min_contributors_and_prune_zeros_come_before_the_cut():
    spec = one(result_top_k=1, min_contributors=2)
    assert sa.aggregate([{"v": ([1, 2], [9.0, 1.0])}, {"v": ([2], [1.0])}], spec)["v"].keys.tolist() == [2]
    pruned = sa.aggregate([{"v": ([1, 2], [0.0, 1.0])}], one(result_top_k=2, prune_zeros=True))
    assert (pruned["v"].keys.tolist(), pruned.info.results[0].num_cut_keys) == ([2], 0)


def test_options_of_the_round_leave_other_tensors_alone():
    tensors = [
        sa.TensorSpec("sparse", "float32", num_rows=10),
        sa.TensorSpec("own", "float32", num_rows=10, result_top_k=1),
        sa.TensorSpec("whole", "float32", num_rows=10, result_top_k=0),
        sa.TensorSpec("dense", "float32", num_rows=4, layout="dense"),
        sa.TensorSpec("union", "float32", num_rows=10, op="union"),
    ]
    rows = ([1, 2, 3], [1.0, 2.0, 3.0])
    update = {"sparse": rows, "own": rows, "whole": rows, "dense": np.ones(4, np.float32), "union": ([1, 2, 3], None)}
    result = sa.aggregate([update], sa.RoundSpec(tensors, result_top_k=2))
    assert {name: len(part) for name, part in result.items()} == {
        "sparse": 2, "own": 1, "whole": 3, "dense": 4, "union": 3,
    }  # fmt: skip


def test_values_that_are_not_finite_are_refused_though_the_cut_hides_them():
    updates = [{"v": ([1, 2], [1e308, 5.0])}, {"v": ([1, 3], [math.inf, 2.0])}]
    with pytest.raises(errors.InvalidArgumentError, match="not finite"):
        sa.aggregate(updates, one("float64", result_top_k=1))


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


def test_moments_are_of_bounded_values():
    spec = one("float64", clip=sa.ClipSpec(l2=5.0), return_moments=True)
    assert sa.aggregate([{"v": ([1, 2], [6.0, 8.0])}], spec)["v"].moments.tolist() == [9.0, 16.0]


def test_moments_are_cut_with_their_rows():
    spec = one(row_width=2, result_top_k=1, return_moments=True)
    result = sa.aggregate([{"v": ([1, 2, 3], [[1, 1], [2, 3], [0, 1]])}], spec)["v"]
    assert (result.keys.tolist(), result.moments.tolist()) == ([2], [[4.0, 9.0]])


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


def test_withdrawn_submission_leaves_no_moments():
    aggregator = sa.Aggregator(one("int64", return_moments=True))
    aggregator.add("a", {"v": ([1], [3])})
    aggregator.add("b", {"v": ([1, 2], [5, 5])})
    assert aggregator.withdraw("b")
    result = aggregator.finish()["v"]
    assert (result.keys.tolist(), result.moments.tolist()) == ([1], [9.0])
