"""Rounding to the types of the wire, and their bytes."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Union

from sparseagg._internal.spec.options import DTYPES
from sparseagg._internal.spec.round_spec import TensorSpec
from sparseagg.errors import OutOfRangeError

__all__ = ["Number", "Row", "check_int64", "encode_values", "round_to_dtype"]

Number = Union[int, float, Fraction]
Row = list[Any]  # of Number; numpy's tolist makes them

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1

_FORMATS = {"float32": (24, -126, 127), "float16": (11, -14, 15), "bfloat16": (8, -126, 127)}


def round_to_dtype(value: Number, dtype: str) -> Number:
    """Rounds once, to nearest even, to what ``dtype`` holds: too large floats to ±Inf, −0.0 to 0.0.

    Raises:
        OverflowError: an integer dtype does not hold it.
    """
    if dtype.startswith("float") or dtype == "bfloat16":
        return _round_float(value, dtype)
    rounded = value if isinstance(value, int) else round(value)  # Python rounds halves to even
    low, high = (_INT64_MIN, _INT64_MAX) if dtype == "int64" else (0, 2 ** (8 * DTYPES[dtype]) - 1)
    if not low <= rounded <= high:
        raise OverflowError(f"{value} does not fit {dtype}")
    return rounded


def _round_float(value: Number, dtype: str) -> float:
    if isinstance(value, float) and not math.isfinite(value):
        return value
    if value == 0:
        return 0.0
    if dtype == "float64":
        return float(value)
    precision, smallest, largest = _FORMATS[dtype]
    if dtype == "float32" and isinstance(value, float):
        try:
            rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
        except OverflowError:
            rounded = math.copysign(math.inf, value)
        return rounded + 0.0
    magnitude = abs(Fraction(value))
    # 2^exponent ≤ magnitude < 2^(exponent + 1)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** exponent:
        exponent -= 1
    quantum = Fraction(2) ** (max(exponent, smallest) - (precision - 1))
    nearest = round(magnitude / quantum) * quantum
    if nearest >= Fraction(2) ** (largest + 1):
        return math.copysign(math.inf, value)
    return math.copysign(float(nearest), value) if nearest else 0.0


def encode_values(rows: Sequence[Row], dtype: str) -> bytes:
    """Returns the wire bytes of rows that ``dtype`` holds: little-endian, row-major, NaN as the canonical one."""
    flat = [value for row in rows for value in row]
    if dtype == "bfloat16":
        return b"".join(b"\xc0\x7f" if v != v else struct.pack("<f", v)[2:] for v in flat)
    letter = {
        "float64": "d",
        "float32": "f",
        "float16": "e",
        "int32": "i",
        "int64": "q",
        "uint32": "I",
        "uint64": "Q",
    }[dtype]
    return struct.pack(f"<{len(flat)}{letter}", *[math.nan if v != v else v for v in flat])


def check_int64(tensor: TensorSpec, key: int, row: Row) -> None:
    """Raises ``OutOfRangeError`` when a value of a signed integer tensor leaves int64."""
    for value in row:
        if tensor.dtype in ("int32", "int64") and not _INT64_MIN <= value <= _INT64_MAX:
            raise OutOfRangeError(f"tensor {tensor.name!r}: key {key} overflows int64 with {value}")
