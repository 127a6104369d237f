"""Types, roundings and binned sums."""

from __future__ import annotations

import numpy as np

from golden_cases.case import (
    INF,
    INT64_MAX,
    NAN,
    OUT_OF_RANGE,
    Case,
    halves,
    int64s,
    one,
    v,
)


def numbers() -> list[Case]:
    return [
        Case(
            "float16",
            "Widened exactly, rounded once, halves to even.",
            one("float16"),
            [
                v("a", [0, 1, 2], halves(2048, 2050, 65504)),
                v("b", [0, 1, 2], halves(1, 1, 65504)),
                v("c", [0, 1], halves(2**-24, 2**-24)),
            ],
        ),
        Case(
            "bfloat16",
            "256 + 1 + 1, and a tie that only the last term breaks: partial sums are held in float64.",
            one("bfloat16", return_counts=True),
            [
                v(name, [3, 4], np.array(bits, np.uint16))
                for name, bits in [("a", [0x4380, 0x3F82]), ("b", [0x3F80, 0x3B80]), ("c", [0x3F80, 0x3580])]
            ],
        ),
        Case(
            "float32_rounds_once",
            "1 + 2^-24 + 2^-30 in float32: rounding each sum would lose it.",
            one(),
            [v("a", [0], [1.0]), v("b", [0], [2.0**-24]), v("c", [0], [2.0**-30])],
        ),
        Case(
            "float32_overflow",
            "Too large for float32 becomes Inf, as IEEE 754 says.",
            one(),
            [v("a", [0, 1], [3e38, -3e38]), v("b", [0, 1], [3e38, -3e38])],
        ),
        Case(
            "float64_result_of_float32",
            "No rounding to float32.",
            one(result_dtype="float64"),
            [v("a", [0, 1], [3e38, 0.1]), v("b", [0, 1], [3e38, 0.1])],
        ),
        Case(
            "denormals",
            "Kept, on the way in and out; none becomes -0.0.",
            one(op="mean"),
            [v("a", [0, 1], [2.0**-149, -(2.0**-149)]), v("b", [0], [2.0**-149])],
        ),
        Case(
            "canonical_order",
            "The fold goes by client id, byte by byte, not by arrival: 10, 9, B, a, é.",
            one("float64"),
            [v("é", [0], [1.0]), v("a", [0], [-1e16]), v("9", [0], [1e16]), v("B", [0], [1.0]), v("10", [0], [1.0])],
        ),
        Case(
            "weights_round_before_the_sum",
            "w·v is rounded to float64, then added: no fused multiply-add.",
            one("float64", weighting="by_weight"),
            [v("a", [0], [-(0.1 * 0.1)], 1.0), v("b", [0], [0.1], 0.1)],
        ),
        Case("int32", "Summed in int64.", one("int32"), [v("a", [0], [2**31 - 1]), v("b", [0], [2**31 - 1])]),
        Case(
            "int64_exact",
            "Beyond 2^53, where float64 would round.",
            one("int64"),
            [v("a", [0], int64s(2**53)), v("b", [0], int64s(1)), v("c", [0], int64s(2**62))],
        ),
        Case(
            "int64_excursion",
            "A partial sum may leave int64 if the total does not.",
            one("int64"),
            [v("a", [0], int64s(INT64_MAX)), v("b", [0], int64s(INT64_MAX)), v("c", [0], int64s(-INT64_MAX))],
        ),
        Case(
            "int64_total_overflows",
            "The round fails; the smallest such key is named.",
            one("int64"),
            [v("a", [7, 5, 1], int64s(INT64_MAX, INT64_MAX, 1)), v("b", [7, 5], int64s(1, 1))],
            code=OUT_OF_RANGE,
            message="key 5",
        ),
        Case(
            "int64_submission_overflows",
            "One client's own sum leaves int64: it alone is refused.",
            one("int64"),
            [v("a", [4, 4], int64s(INT64_MAX, 1)), v("b", [4], int64s(2))],
            refused="a",
            code=OUT_OF_RANGE,
            message="key 4",
        ),
        Case(
            "int32_mean",
            "float64 quotient, then to nearest even.",
            one("int32", op="mean"),
            [v("a", [0, 1, 2], [1, 3, -3]), v("b", [0, 1, 2], [0, 0, 0])],
        ),
        Case(
            "int32_mean_as_float",
            "result_dtype keeps the fraction.",
            one("int32", op="coordinate_mean", result_dtype="float32"),
            [v("a", [0, 1], [1, 1]), v("b", [0], [1]), v("c", [0], [-1])],
        ),
        Case(
            "int64_sum_as_float",
            "One conversion, from the exact sum: by float64 it would round to 2^60.",
            one("int64", result_dtype="float32"),
            [v("a", [0], int64s(2**36)), v("b", [0], int64s(1)), v("c", [0], int64s(2**60))],
        ),
        Case(
            "int64_by_weight",
            "Weights of integer tensors are integers.",
            one("int64", op="mean", weighting="by_weight"),
            [v("a", [0], int64s(5), 3.0), v("b", [0], int64s(-1), 1.0)],
        ),
        Case(
            "uint32_wraps",
            "Modular: masked vectors add up to the plain ones.",
            one("uint32", modular=True),
            [v("a", [0, 1], np.array([2**32 - 1, 5], np.uint32)), v("b", [0], np.array([3], np.uint32))],
        ),
        Case(
            "uint64_wraps",
            "Modular, 64 bits.",
            one("uint64", modular=True),
            [v("a", [0], np.array([2**64 - 1], np.uint64)), v("b", [0], np.array([3], np.uint64))],
        ),
        Case(
            "propagate_nan_in_sums",
            "NaN is the canonical one, Inf - Inf is NaN.",
            one(on_nonfinite="propagate"),
            [v("a", [0, 1, 2], np.array([-NAN, INF, INF], np.float32)), v("b", [0, 1, 2, 3], [1.0, 1.0, -INF, 1.0])],
        ),
        Case(
            "propagate_nan_in_min",
            "min and max return NaN where any contributor has one.",
            one("float64", op="min", on_nonfinite="propagate"),
            [v("a", [0, 1], [NAN, 1.0]), v("b", [0, 1], [1.0, -INF])],
        ),
    ]


def binned() -> list[Case]:
    return [
        Case(
            "binned_sum",
            "Integers in bins of 2^44: what lies below the two highest ones is lost, in any order.",
            one(numerics="binned", result_dtype="float64"),
            [
                v("a", [0, 1, 2], [0.1, 1e30, 2.0**-149]),
                v("b", [0, 1, 2], [0.2, 1.0, 2.0**-149]),
                v("c", [0, 1], [-0.3, -1e30]),
            ],
        ),
        Case(
            "binned_mean_by_weight",
            "Weights are summed in bins of 2^40.",
            one("float64", op="coordinate_mean", weighting="by_weight", return_weights=True, numerics="binned"),
            [v("a", [0, 1], [0.1, 0.09], 3.0), v("b", [0, 1], [0.2, 7.0], 0.1), v("c", [2], [0.0], 0.7)],
        ),
        Case(
            "binned_propagates",
            "Infinities and NaN stay, whatever follows.",
            one(numerics="binned", on_nonfinite="propagate"),
            [v("a", [0, 1, 2], [INF, INF, NAN]), v("b", [0, 1, 2], [1.0, -INF, 1.0])],
        ),
    ]
