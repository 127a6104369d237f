"""The reference against results computed by hand, for everything else is held to it."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
import reference
import sparseagg as sa
from golden_cases.case import unchecked
from reference import Update, merge, numbers, round_to_dtype


def one(dtype: str = "float64", num_rows: int = 10, row_width: int = 1, **options) -> sa.RoundSpec:
    of_tensor = {key: options.pop(key) for key in ("layout", "modular") if key in options}
    return sa.RoundSpec([sa.TensorSpec("v", dtype, num_rows=num_rows, row_width=row_width, **of_tensor)], **options)


def v(keys, rows, weight=None) -> Update:
    if rows is not None:
        rows = [row if isinstance(row, (list, tuple)) else [row] for row in rows]
    return Update({"v": (keys, rows)}, weight)


def merged(spec: sa.RoundSpec, **updates: Update) -> dict:
    result = merge(spec, updates)["v"]
    return dict(zip(result.keys, result.rows))


TWO = {"a": v([7, 1], [4.0, 1.0], 3.0), "b": v([9, 1], [2.0, 5.0], 1.0)}


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("sum", {1: [6.0], 7: [4.0], 9: [2.0]}),
        ("mean", {1: [3.0], 7: [2.0], 9: [1.0]}),
        ("coordinate_mean", {1: [3.0], 7: [4.0], 9: [2.0]}),
        ("min", {1: [1.0], 7: [4.0], 9: [2.0]}),
        ("max", {1: [5.0], 7: [4.0], 9: [2.0]}),
    ],
)
def test_merge_uniform_as_hand_computed(op, expected):
    assert merged(one(op=op), **TWO) == expected


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("sum", {1: [8.0], 7: [12.0], 9: [2.0]}),
        ("mean", {1: [2.0], 7: [3.0], 9: [0.5]}),
        ("coordinate_mean", {1: [2.0], 7: [4.0], 9: [2.0]}),
        ("min", {1: [1.0], 7: [4.0], 9: [2.0]}),
    ],
)
def test_merge_by_weight_as_hand_computed(op, expected):
    assert merged(unchecked(one, op=op, weighting="by_weight"), **TWO) == expected


def test_merge_counts_and_weights_as_hand_computed():
    result = merge(one(weighting="by_weight", return_counts=True, return_weights=True), TWO)["v"]
    assert (result.keys, result.counts, result.weights) == ([1, 7, 9], [2, 1, 1], [4.0, 3.0, 1.0])


def test_merge_union_has_no_rows():
    result = merge(one(op="union"), {"a": v([3, 3, 1], None), "b": v([3], [7.0])})["v"]
    assert (result.keys, result.rows, result.counts) == ([1, 3], None, [1, 2])


def test_merge_duplicates_fold_then_weight_then_add():
    spec = one(weighting="by_weight", return_counts=True)
    result = merge(spec, {"a": v([5, 5], [0.1, 0.7], 3.0)})["v"]
    assert result.rows == [[2.4]]  # 0.1·3 + 0.7·3 would give 2.3999999999999995
    assert result.counts == [1]


def test_merge_canonical_orders_by_client_id_bytes():
    updates = {"é": v([0], [1.0]), "a": v([0], [-1e16]), "9": v([0], [1e16]), "B": v([0], [1.0]), "10": v([0], [1.0])}
    assert merged(one(), **{}) == {}
    assert merge(one(), updates)["v"].rows == [[1.0]]  # 1 + 1e16 → 1e16, + 1 → 1e16, − 1e16 → 0, + 1
    assert merge(one(), dict(reversed(updates.items())))["v"].rows == [[1.0]]


def test_merge_negative_zero_never_comes_out():
    for op in ("sum", "mean", "min", "max"):
        (row,) = merged(one(op=op), a=v([0], [-0.0])).values()
        assert math.copysign(1.0, row[0]) == 1.0, op
    (row,) = merged(one("float32", op="mean"), a=v([0], [-(2.0**-149)]), b=v([], [])).values()
    assert struct.pack("<d", row[0]) == bytes(8)


def test_merge_integers_are_exact():
    assert merged(one("int64"), a=v([0], [2**53]), b=v([0], [1])) == {0: [2**53 + 1]}
    big = 2**63 - 1
    assert merged(one("int64"), a=v([0], [big]), b=v([0], [big]), c=v([0], [-big])) == {0: [big]}
    assert merged(one("int32", op="mean"), a=v([0, 1], [1, 3]), b=v([], [])) == {0: [0], 1: [2]}
    assert merged(one("int32", op="mean", result_dtype="float64"), a=v([0], [1]), b=v([], [])) == {0: [0.5]}
    # Directly to float32 this rounds up; by float64 it would be a tie, and round down.
    direct = merged(one("int64", result_dtype="float32"), a=v([0], [2**60 + 2**36 + 1]))
    assert direct == {0: [2.0**60 + 2.0**37]}


def test_merge_integer_total_beyond_int64_names_smallest_key():
    big = 2**63 - 1
    with pytest.raises(sa.errors.OutOfRangeError, match="key 2 "):
        merged(one("int64"), a=v([7, 2], [big, big]), b=v([7, 2], [1, 1]))


def test_merge_modular_wraps():
    assert merged(one("uint32", modular=True), a=v([0], [2**32 - 1]), b=v([0], [3])) == {0: [2]}


def test_merge_zero_weights_leave_keys_out_and_fail_means():
    spec = one(op="coordinate_mean", weighting="by_weight")
    assert merged(spec, a=v([8, 3], [1.0, 1.0], 0.0), b=v([8], [2.0], 1.0)) == {8: [2.0]}
    with pytest.raises(sa.errors.FailedPreconditionError, match="'v'"):
        merged(one(op="mean", weighting="by_weight"), a=v([8], [1.0], 0.0))
    assert merged(one(op="mean", weighting="by_weight"), a=v([], [], 0.0)) == {}


def test_merge_fixed_point_as_hand_computed():
    # M = 5 → 3 bits, B = 1 → 0 bits: s = 59. 0.1·2^59 is an integer, for 0.1 has 53 bits and is above 2^-4.
    spec = one(numerics="fixed_point", max_submissions=5, value_bound=1.0)
    result = merge(spec, {"a": v([0], [0.1]), "b": v([0], [0.2])})["v"]
    assert result.shift == 59
    expected = int(0.1 * 2.0**59) + int(0.2 * 2.0**59)
    assert result.rows == [[float(expected) * 2.0**-59]]
    # B = 2^60: s = −1, and terms round to even multiples of 2: 1 → 0, 3 → 4.
    spec = one(numerics="fixed_point", max_submissions=8, value_bound=2.0**60)
    assert merged(spec, a=v([0, 1], [1.0, 3.0])) == {0: [0.0], 1: [4.0]}


def test_merge_fixed_point_clip_clips_the_term():
    clipped = one(
        numerics="fixed_point",
        max_submissions=2,
        value_bound=0.5,
        on_bound="clip",
        weighting="by_weight",
        weight_bound=4.0,
    )
    assert merged(clipped, a=v([0, 1], [0.25, -7.0], 4.0)) == {0: [0.5], 1: [-0.5]}


def test_merge_fixed_point_weights_sum_in_multiples():
    # W = 2^61 with M = 2: t = 62 − 1 − 61 = 0, so that weights become integers: 0.5 → 0, 1.5 → 2.
    spec = one(
        op="mean",
        numerics="fixed_point",
        max_submissions=2,
        value_bound=8.0,
        weighting="by_weight",
        weight_bound=2.0**61,
        return_weights=True,
    )
    result = merge(spec, {"a": v([0], [1.0], 0.5), "b": v([1], [4.0], 1.5)})["v"]
    assert result.weights == [0.0, 2.0]
    assert result.rows == [[0.25], [3.0]]


def test_merge_prune_and_min_contributors_apply_in_order():
    spec = one(row_width=2, prune_zeros=True, min_contributors=2)
    rows = {
        "a": v([1, 2, 3], [[1.0, 0.0], [1.0, 1.0], [5.0, 5.0]]),
        "b": v([1, 2], [[-1.0, 0.0], [-1.0, 0.0]]),
    }
    assert merged(spec, **rows) == {2: [0.0, 1.0]}


def test_merge_dense_result_fills():
    spec = one(num_rows=4, result_layout="dense", fill=-1.5, min_contributors=2)
    result = merge(spec, {"a": v([1, 2], [1.0, 2.0]), "b": v([1], [1.0])})["v"]
    assert (result.layout, result.rows) == ("dense", [[-1.5], [2.0], [-1.5], [-1.5]])
    assert (result.counts, result.weights) == ([0, 2, 0, 0], [0.0, 2.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("keys", "options", "layout"),
    [
        (4, {}, "sparse"),  # 4·(4 + 4) < 10·4
        (5, {}, "dense"),  # 5·(4 + 4) ≥ 10·4
        (1, {"dense_threshold": 0.1}, "dense"),
        (1, {"dense_threshold": 0.11}, "sparse"),
        (4, {"result_dtype": "float64"}, "sparse"),  # 4·12 < 10·8
        (7, {"result_dtype": "float64"}, "dense"),  # 7·12 ≥ 10·8
    ],
)
def test_merge_auto_chooses_the_smaller(keys, options, layout):
    spec = one("float32", result_layout="auto", **options)
    assert merge(spec, {"a": v(range(keys), [1.0] * keys)})["v"].layout == layout


def test_merge_propagate_follows_ieee():
    spec = one(op="sum", on_nonfinite="propagate")
    result = merged(spec, a=v([0, 1], [math.inf, math.inf]), b=v([0, 1], [-math.inf, 1.0]))
    assert math.isnan(result[0][0])
    assert result[1] == [math.inf]
    result = merged(one(op="max", on_nonfinite="propagate"), a=v([0], [math.nan]), b=v([0], [1.0]))
    assert math.isnan(result[0][0])


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (1.0 + 2.0**-24, "float32", 1.0),  # a tie, to even
        (1.0 + 3 * 2.0**-24, "float32", 1.0 + 2.0**-22),
        (1.0 + 2.0**-24 + 2.0**-50, "float32", 1.0 + 2.0**-23),
        (3.5e38, "float32", math.inf),
        (2.0**-150, "float32", 0.0),  # a tie with zero
        (2.0**-150 * 1.01, "float32", 2.0**-149),
        (2049.0, "float16", 2048.0),
        (2051.0, "float16", 2052.0),
        (65519.9, "float16", 65504.0),
        (65520.0, "float16", math.inf),
        (-(2.0**-25), "float16", 0.0),
        (257.0, "bfloat16", 256.0),
        (259.0, "bfloat16", 260.0),
        (257.0 + 2.0**-40, "bfloat16", 258.0),  # by float32 it would be a tie
        (2.5, "int64", 2),
        (3.5, "int64", 4),
        (-2.5, "int64", -2),
    ],
)
def test_round_to_dtype_value_goes_to_nearest_even(value, dtype, expected):
    assert round_to_dtype(value, dtype) == expected


def test_round_to_dtype_float32_is_the_same_by_both_ways(monkeypatch):
    # struct rounds float64 to float32 in hardware; the other formats are rounded by exact fractions.
    monkeypatch.setitem(numbers._FORMATS, "copy", numbers._FORMATS["float32"])
    for mantissa in range(0x3FF0000000000000, 0x3FF0000000000000 + 0x40000001, 0x8000001):
        value = struct.unpack("<d", struct.pack("<Q", mantissa))[0]
        for scale in (1.0, 2.0**-130, 2.0**-148, 2.0**127):
            assert numbers._round_float(value * scale, "copy") == round_to_dtype(value * scale, "float32")


def test_encode_values_nan_is_the_canonical_one():
    nan = struct.unpack("<d", bytes.fromhex("010000000000f8ff"))[0]
    for dtype, expected in (
        ("float32", "0000c07f"),
        ("float64", "000000000000f87f"),
        ("float16", "007e"),
        ("bfloat16", "c07f"),
    ):
        assert reference.encode_values([[nan]], dtype).hex() == expected, dtype


@pytest.mark.parametrize(
    ("update", "spec", "error", "text"),
    [
        (v([10], [1.0]), one(), sa.InvalidArgumentError, "key 10"),
        (v([1], [math.nan]), one(), sa.InvalidArgumentError, "nan"),
        (v([1], [1.0], -1.0), one(), sa.InvalidArgumentError, "-1"),
        (v([1], [1.0]), one(weighting="by_weight"), sa.InvalidArgumentError, "weight"),
        (v([1], [1], 0.5), one("int32", weighting="by_weight"), sa.InvalidArgumentError, "0.5"),
        (v([1], None), one(), sa.InvalidArgumentError, "values"),
        (v([4, 4], [2**63 - 1, 1]), one("int64"), sa.errors.OutOfRangeError, "key 4"),
        (v([4], [2**62], 2.0), one("int64", weighting="by_weight"), sa.errors.OutOfRangeError, "key 4"),
        (v([4, 4], [2**62, 2**62], 0.0), one("int64", weighting="by_weight"), sa.errors.OutOfRangeError, "key 4"),
        (v([1], [1.0]), one(num_rows=3, layout="dense"), sa.InvalidArgumentError, "dense"),
        (Update({"w": ([1], [[1.0]])}), one(), sa.InvalidArgumentError, "'w'"),
        (
            v([1, 2], [0.5, 1.5]),
            one(numerics="fixed_point", max_submissions=2, value_bound=1.0),
            sa.InvalidArgumentError,
            "1.5",
        ),
    ],
)
def test_check_update_bad_one_is_refused(update, spec, error, text):
    with pytest.raises(error, match=text):
        reference.check_update(spec, update)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: one("uint32"), "modular"),
        (lambda: one("float32", modular=True), "modular"),
        (lambda: one(numerics="fixed_point", max_submissions=2), "value_bound"),
        (lambda: one(numerics="fixed_point", value_bound=1.0), "max_submissions"),
        (lambda: one(num_rows=0, result_layout="dense"), "num_rows"),
        (lambda: one(result_dtype="float16"), "result_dtype"),
        (lambda: one(fill=math.inf), "fill"),
        (lambda: one("int32", fill=0.5), "fill"),
        (lambda: one(dense_threshold=0.0), "dense_threshold"),
        (lambda: sa.RoundSpec([]), "tensor"),
    ],
)
def test_check_spec_bad_one_is_refused(make, text):
    with pytest.raises(sa.InvalidArgumentError, match=text):
        reference.check_spec(unchecked(make))


def test_differences_finds_every_kind():
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=10)], return_counts=True, return_weights=True)
    updates = {"a": reference.Update({"v": ([1, 2], [[1.0], [2.0]])})}

    def result(**changes):
        good = {"keys": np.array([1, 2], np.uint32), "values": np.array([1, 2], np.float32)}
        good.update(counts=np.array([1, 1], np.uint32), weights=np.array([1.0, 1.0]))
        tensor = sa.TensorResult("v", "sparse", "float32", 10, 1, fixed_point_shift=None, **{**good, **changes})
        return {"v": tensor}

    assert reference.differences(spec, updates, result()) == []
    for changes, word in (
        ({"keys": np.array([1, 3], np.uint32)}, "keys"),
        ({"values": np.nextafter(np.array([1, 2], np.float32), np.float32(9))}, "values"),
        ({"counts": np.array([1, 2], np.uint32)}, "counts"),
        ({"weights": np.array([1.0, 1.5])}, "weights"),
    ):
        (difference,) = reference.differences(spec, updates, result(**changes))
        assert word in difference
