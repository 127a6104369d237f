"""Conversion of values of any dtype to the dtype of their tensor, as the wire has it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparseagg._internal.base import floats
from sparseagg._internal.base.foreign import Array
from sparseagg._internal.spec.round_spec import TensorSpec
from sparseagg.errors import InvalidArgumentError


class _Misfit(Exception):
    """A value does not fit the tensor's dtype."""

    def __init__(self, values: Array, bad: Array) -> None:
        super().__init__()
        self.index = first_true(bad.reshape(-1))
        self.value = values.reshape(-1)[self.index]


def first_true(mask: Array) -> int:
    """Returns the position of the first true entry."""
    return int(np.argmax(mask))


def wire_values(spec: TensorSpec, keys: Array | None, values: Array, num_keys: int) -> Array:
    """Returns values of the tensor's dtype, rounded to nearest even; shape (num_keys, row_width), little-endian.

    Args:
        spec: the tensor.
        keys: of the values, for errors; None: 0, 1, ….
        values: of any dtype and shape. Arrays of the wire's type are not copied.
        num_keys: number of rows.

    Raises:
        InvalidArgumentError: the size is wrong, or a value does not fit the dtype.
    """
    check_row_shape(spec, values.shape, num_keys)
    try:
        converted = _converted(spec, values)
    except _Misfit as error:
        raise misfit(spec, keys, error.index, error.value, spec.dtype) from None
    wire = converted.dtype.newbyteorder("<")
    return np.ascontiguousarray(converted, dtype=wire).reshape(num_keys, spec.row_width)


def wire_columns(spec: TensorSpec, keys: Array, columns: list[Array]) -> Array:
    """Returns the values of columns, each of shape (n,) and of a dtype of its own, as ``wire_values`` does.

    Each value is rounded once: a dtype that all columns have in common would round int64 beside float32 before.
    """
    check_row_shape(spec, (len(keys), len(columns)), len(keys))
    rows = []
    for at, column in enumerate(columns):
        try:
            rows.append(_converted(spec, column))
        except _Misfit as error:
            raise misfit(spec, keys, error.index * spec.row_width + at, error.value, spec.dtype) from None
    return wire_values(spec, keys, np.column_stack(rows), len(keys))


def _converted(spec: TensorSpec, values: Array) -> Array:
    """Returns the values in the tensor's dtype, in any byte order; bfloat16 as its bits."""
    if values.size == 0:
        return np.empty(0, dtype=np.uint16 if spec.dtype == "bfloat16" else spec.dtype)
    if spec.dtype == "bfloat16":
        return _to_bfloat16(spec, values)
    return _to_float(spec, values) if spec.dtype.startswith("float") else _to_integer(spec, values)


def check_row_shape(spec: TensorSpec, shape: tuple[int, ...], num_keys: int) -> None:
    """Raises ``InvalidArgumentError`` if values of this shape are not a row for each key."""
    if math.prod(shape) != num_keys * spec.row_width or (len(shape) > 1 and shape[0] != num_keys):
        raise InvalidArgumentError(
            f"tensor {spec.name!r}: values of shape {shape} do not go with {num_keys} keys of row_width "
            f"{spec.row_width}"
        )


def _refuse_type(spec: TensorSpec, values: Array) -> InvalidArgumentError:
    return InvalidArgumentError(f"tensor {spec.name!r}: values of dtype {values.dtype} cannot be sent as {spec.dtype}")


def misfit(spec: TensorSpec, keys: Array | None, index: int, value: Any, dtype: str) -> InvalidArgumentError:
    """Returns the error of a value that does not fit a dtype, with the place in the engine's words.

    Args:
        spec: the tensor.
        keys: of the update; None: 0, 1, ….
        index: of the value among the values of the update.
        value: the value.
        dtype: name of the dtype.
    """
    position, column = divmod(index, spec.row_width)
    where = f"tensor {spec.name!r}, key {position if keys is None else keys[position]}, position {position}"
    where += f", column {column}" if spec.row_width > 1 else ""
    return InvalidArgumentError(f"{where}: value {value} does not fit {dtype}")


def _to_float(spec: TensorSpec, values: Array) -> Array:
    if floats.is_bfloat16(values.dtype):
        values = values.astype(np.float32)
    if values.dtype.kind not in "fiub":
        raise _refuse_type(spec, values)
    if values.dtype == np.dtype(spec.dtype):
        return values
    with np.errstate(over="ignore", under="ignore"):
        # NumPy casts a longdouble to float16 by way of float64, which would round twice.
        is_longer = values.dtype.kind == "f" and values.dtype.itemsize > 8
        source = _rounded_to_odd(values) if is_longer and spec.dtype == "float16" else values
        converted = source.astype(spec.dtype)
    infinite = np.isinf(converted)
    if infinite.any():
        overflow = infinite & np.isfinite(values)
        if overflow.any():
            raise _Misfit(values, overflow)
    return converted


def _rounded_to_odd(values: Array) -> Array:
    """Returns longdoubles as float64; a longdouble between two float64 values becomes the odd one of the two.

    An odd float64 is never half-way between two values of a narrower type. So rounding it again gives the same value
    as rounding the longdouble.
    """
    near = values.astype(np.float64)
    other = np.nextafter(near, np.where(values > near, np.inf, -np.inf))
    return np.where((near != values) & (near.view(np.uint64) % 2 == 0), other, near)


def _to_bfloat16(spec: TensorSpec, values: Array) -> Array:
    if values.dtype.kind == "u" and values.dtype.itemsize == 2:  # bits, in any byte order
        return values
    if floats.is_bfloat16(values.dtype):
        return values.view(np.dtype(np.uint16).newbyteorder(values.dtype.byteorder))
    if values.dtype.kind in "iub":
        return floats.bits_from_integer(values)
    if values.dtype.kind != "f":
        raise _refuse_type(spec, values)
    bits = floats.bits_from_float(values)
    infinite = (bits & 0x7FFF) == 0x7F80
    if infinite.any():
        overflow = infinite & np.isfinite(values)
        if overflow.any():
            raise _Misfit(values, overflow)
    return bits


def _to_integer(spec: TensorSpec, values: Array) -> Array:
    if values.dtype.kind not in "iub":
        raise _refuse_type(spec, values)
    dtype = np.dtype(spec.dtype)
    if values.dtype == dtype:
        return values
    if not np.can_cast(values.dtype, dtype):
        limits = np.iinfo(dtype)
        # Older NumPy compares integers of mixed signs as float64. Minima and maxima as Python integers are exact.
        if int(values.min()) < limits.min or int(values.max()) > limits.max:
            outside = np.array([not limits.min <= int(v) <= limits.max for v in values.reshape(-1)])
            raise _Misfit(values, outside)
    return values.astype(dtype)
