"""Merged rows added to arrays in place. Those of torch: tests/integrations/tensors."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import reference
import sparseagg as sa
from sparseagg._internal.results.info import RoundInfo
from sparseagg.v1 import aggregation_pb2 as pb
from test_shapes import result

SEED = 26


def test_rows_no_key_names_keep_their_bits() -> None:
    target = np.array([-0.0, np.nan, 1.0], np.float32)
    before = target.tobytes()
    result([2], [0], 3, 1).add_to(target)
    result([], [], 3, 1).add_to(target)
    assert target.tobytes() == before


@pytest.mark.parametrize(
    ("shape", "num_rows", "row_width"), [((6,), 6, 1), ((3, 4), 3, 4), ((3, 4), 12, 1), ((2, 3, 2), 6, 2), ((), 1, 1)]
)
@pytest.mark.parametrize("is_whole", [False, True])
def test_arrays_of_any_axes_and_strides_get_what_dense_says(
    shape: tuple[int, ...], num_rows: int, row_width: int, is_whole: bool
) -> None:
    rng = np.random.default_rng(SEED)
    keys = None if is_whole else np.flatnonzero(rng.random(num_rows) < 0.5)
    count = num_rows if is_whole else len(keys)
    merged = result(keys, rng.integers(0, 9, (count, row_width)), num_rows, row_width, shape)
    object.__setattr__(merged, "values", merged.values if row_width > 1 else merged.values.reshape(-1))
    object.__setattr__(merged, "layout", "dense" if is_whole else "sparse")
    start = np.array(rng.integers(0, 9, shape), np.float32)
    spread = np.zeros([2 * size for size in shape], np.float32)
    for target in (start.copy(), start.copy(order="F"), spread[(..., *[slice(None, None, 2)] * len(shape))]):
        target[...] = start
        merged.add_to(target, 2)
        assert np.array_equal(target, start + 2 * merged.dense()), f"seed {SEED}"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_sums_are_rounded_once(dtype: str) -> None:
    rng = np.random.default_rng(SEED)
    numpy_type = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    target = rng.standard_normal(4000).astype(numpy_type)
    rows = rng.standard_normal(4000) * 10.0 ** rng.integers(-9, 3, 4000)
    alpha = -0.125  # a power of two: the product is exact, and the float64 sum the only rounding before the last
    merged = result(None, rows, 4000, 1, layout="dense")
    before = target.astype(np.float64)
    merged.add_to(target, alpha)
    sums = [float(Fraction(a) + Fraction(alpha) * Fraction(b)) for a, b in zip(before.tolist(), merged.values.tolist())]
    assert target.astype(np.float64).tolist() == [reference.round_to_dtype(s, dtype) for s in sums], f"seed {SEED}"


def test_many_rows_are_added_in_blocks() -> None:
    merged = result(np.arange(1, 200_000, 2), np.ones(100_000), 200_000, 1)
    target = np.zeros(200_000, np.float32)
    merged.add_to(target, 3)
    assert (target[1::2] == 3).all()
    assert not target[::2].any()


def test_integers_are_added_exactly_and_never_wrap() -> None:
    merged = result([0, 2], [1, 1], 3, 1)
    object.__setattr__(merged, "values", np.array([2**62, -5], np.int64))
    target = np.array([2**61, 7, 3], np.int64)
    merged.add_to(target)
    assert target.tolist() == [2**61 + 2**62, 7, -2]
    with pytest.raises(sa.errors.OutOfRangeError, match="tensor 'v', key 0: a sum does not fit int64"):
        merged.add_to(target, 2)
    with pytest.raises(sa.InvalidArgumentError, match=r"tensor 'v': 0\.5 × int64 does not add to int64"):
        merged.add_to(target, 0.5)
    with pytest.raises(sa.InvalidArgumentError, match="tensor 'v': 1 × float32 does not add to int32"):
        result([0], [1], 3, 1).add_to(np.zeros(3, np.int32), 1)


@pytest.mark.parametrize(
    ("target", "alpha", "text"),
    [
        (np.zeros((10, 1)), 1, "tensor 'v' has shape (10,), and the array to add to has (10, 1)"),
        (np.zeros(10, bool), 1, "tensor 'v': rows cannot be added in place: unknown dtype"),
        (np.zeros(10, complex), 1, "tensor 'v': rows cannot be added in place: unknown dtype"),
        (np.broadcast_to(0.0, 10), 1, "tensor 'v': rows cannot be added in place: the array is read-only"),
        ([0.0] * 10, 1, "rows are added to a NumPy array or a torch tensor in place, not to builtins.list"),
        (np.float32(0), 1, "not to numpy.float32"),
        (np.zeros(10), np.nan, "alpha must be a finite number, got nan"),
        (np.zeros(10), "1", "alpha must be a finite number, got '1'"),
        (np.zeros(10), True, "alpha must be a finite number, got True"),
    ],
)
def test_what_cannot_be_added_to_says_why(target: Any, alpha: Any, text: str) -> None:
    with pytest.raises(sa.InvalidArgumentError, match=re.escape(text)):
        result([1], [2], 10, 1).add_to(target, alpha)


def test_union_and_unbounded_keys_are_refused() -> None:
    union = result([1], [2], 10, 1)
    object.__setattr__(union, "values", None)
    with pytest.raises(sa.errors.FailedPreconditionError, match="union"):
        union.add_to(np.zeros(10))
    with pytest.raises(sa.errors.FailedPreconditionError, match="tensor 'v' of num_rows 0 is no part of an array"):
        result([1], [2], 0, 1).add_to(np.zeros(10))


def test_result_is_added_to_models_completely_or_not_at_all() -> None:
    info = RoundInfo._from_proto(pb.Round(name="rounds/r"))
    merged = sa.Result({"0": result([1], [2], 3, 1), "1": result([0], [4], 1, 1, (), name="1")}, info)
    model = {"0": np.zeros(3), "1": np.zeros(()), "other": np.ones(2)}
    merged.add_to(model, -1)
    assert [array.tolist() for array in model.values()] == [[0, -2, 0], -4, [1, 1]]
    arrays = [np.zeros(3), np.zeros(())]
    merged.add_to(arrays)
    assert [array.tolist() for array in arrays] == [[0, 2, 0], 4]
    with pytest.raises(sa.InvalidArgumentError, match="tensor '1' has shape"):
        merged.add_to({"0": model["0"], "1": np.zeros(1)})
    with pytest.raises(sa.InvalidArgumentError, match="the model has no array '1'; it has '0'"):
        merged.add_to({"0": model["0"]})
    assert model["0"].tolist() == [0, -2, 0]


def tied(**values: list[float]) -> sa.Result:
    merged = {name: result([1], [rows], 4, 2, name=name) for name, rows in values.items()}
    return sa.Result(merged, RoundInfo._from_proto(pb.Round(name="rounds/r")))


def test_array_with_several_names_is_added_to_once() -> None:
    weight = np.zeros((4, 2))
    for model in ({"wte": weight, "head": weight}, {"wte": weight, "head": weight[:]}):
        weight[...] = 0
        tied(wte=[3, 5], head=[3, 5]).add_to(model, 2)
        assert weight.tolist() == [[0, 0], [6, 10], [0, 0], [0, 0]]
        tied(wte=[0, 0], head=[1, 1]).add_to(model)  # no client has sent the first
        assert weight[1].tolist() == [7, 11]
        with pytest.raises(
            sa.InvalidArgumentError, match=r"'wte' and 'head' are one array of the model .* results differ"
        ):
            tied(wte=[1, 1], head=[1, 2]).add_to(model)
        assert weight[1].tolist() == [7, 11]


def test_results_of_one_array_in_two_layouts_are_compared_by_their_values() -> None:
    weight = np.zeros((4, 2))
    sparse, dense = result([1], [[3, 5]], 4, 2, name="wte"), result(None, [[0, 0], [3, 5], [0, 0], [0, 0]], 4, 2)
    object.__setattr__(dense, "layout", "dense")
    merged = sa.Result({"wte": sparse, "head": dense}, RoundInfo._from_proto(pb.Round(name="rounds/r")))
    merged.add_to({"wte": weight, "head": weight})
    assert weight.tolist() == [[0, 0], [3, 5], [0, 0], [0, 0]]


def test_arrays_that_lie_between_each_other_are_added_to_apart() -> None:
    square = np.zeros((4, 4))
    fused = {"wte": square[:, :2], "head": square[:, 2:], "other": np.zeros((4, 2))}
    tied(wte=[1, 2], head=[3, 4], other=[5, 6]).add_to(fused)
    assert square[1].tolist() == [1, 2, 3, 4]


def test_integer_sum_that_does_not_fit_names_the_key() -> None:
    merged = sa.aggregate([([0, 3], np.array([1, 100]))], sa.RoundSpec([sa.TensorSpec("v", "int64", num_rows=4)]))["v"]
    with pytest.raises(sa.errors.OutOfRangeError, match="tensor 'v', key 3: a sum does not fit int32"):
        merged.add_to(np.full(4, 2**31 - 50, np.int32))
