"""The narrower value encodings: floats of fewer bytes, and 8-bit multiples of a scale (INT8_SCALED)."""

from __future__ import annotations

import numpy as np

from sparseagg._internal.base import bfloat16
from sparseagg._internal.base.float_environment import default_float_environment
from sparseagg._internal.spec.round_spec import DTYPES
from sparseagg._internal.updates.arrays import Array
from sparseagg._internal.wire.message import Bulk
from sparseagg.errors import InvalidArgumentError

__all__ = ["NARROW", "SCALE_BLOCK", "decode_values", "encode_values", "encoded_bytes", "first_misfit", "widens"]

# Value encodings that round, by name; all but the last are names of dtypes, too.
NARROW = ("float32", "float16", "bfloat16", "int8_scaled")
SCALE_BLOCK = 64  # values that share a scale
_MAX_SCALE = 2.0**120  # 127 times this is within float32
_LARGEST_MULTIPLE = 127


def widens(encoding: str, dtype: str) -> bool:
    """Returns whether values of a tensor of ``dtype`` may be sent as ``encoding``, which is narrower."""
    return encoding in NARROW and (dtype == "float64" or (dtype == "float32" and encoding != "float32"))


def encoded_bytes(encoding: str, num_values: int) -> int:
    """Returns the bytes of ``num_values`` values; ``encoding`` is one of ``NARROW`` or a dtype."""
    if encoding == "int8_scaled":
        return num_values + 4 * -(-num_values // SCALE_BLOCK)
    return num_values * DTYPES[encoding]


@default_float_environment()
def first_misfit(values: Array, encoding: str) -> int | None:
    """Returns the row-major position of the first value beyond the range of ``encoding``; None if there is none.

    A finite value is beyond the range if it rounds to infinity. "int8_scaled" holds finite values only.
    """
    flat = values.reshape(-1)
    if flat.size == 0:
        return None
    with np.errstate(all="ignore"):
        ends = np.array([flat.min(), flat.max()])
        if np.isfinite(ends).all() and not _misfits(ends, encoding).any():
            return None
        bad = _misfits(flat, encoding)
    return int(np.argmax(bad)) if bad.any() else None


def _misfits(flat: Array, encoding: str) -> Array:
    if encoding == "int8_scaled":
        return ~(np.abs(flat.astype(np.float64)) / _LARGEST_MULTIPLE <= _MAX_SCALE)
    narrow = np.frombuffer(encode_values(flat, encoding), dtype=_wire_type(encoding))
    infinite = (narrow & 0x7FFF) == 0x7F80 if encoding == "bfloat16" else np.isinf(narrow)
    return infinite & np.isfinite(flat)


@default_float_environment()
def encode_values(values: Array, encoding: str) -> bytes:
    """Returns the bytes of float values, rounded to nearest even, row-major.

    Args:
        values: float32 or float64, of any shape; for "int8_scaled" all of them finite.
        encoding: one of ``NARROW``.
    """
    flat = np.ascontiguousarray(values).reshape(-1)
    if encoding == "bfloat16":
        return bfloat16.bits_from_float(flat).astype("<u2").tobytes()
    if encoding != "int8_scaled":
        with np.errstate(over="ignore", under="ignore"):
            return flat.astype(_wire_type(encoding)).tobytes()
    num_scales = -(-flat.size // SCALE_BLOCK)
    blocks = np.zeros((num_scales, SCALE_BLOCK))
    blocks.reshape(-1)[: flat.size] = flat
    with np.errstate(under="ignore"):
        scales = (np.abs(blocks).max(axis=1, initial=0.0) / _LARGEST_MULTIPLE).astype("<f4")
        wide = scales.astype(np.float64)[:, None]
        multiples = np.rint(np.divide(blocks, wide, out=np.zeros_like(blocks), where=wide > 0))
    np.clip(multiples, -_LARGEST_MULTIPLE, _LARGEST_MULTIPLE, out=multiples)
    return bytes(scales.tobytes() + multiples.astype(np.int8).reshape(-1)[: flat.size].tobytes())


@default_float_environment()
def decode_values(data: Bulk, encoding: str, dtype: str, num_values: int) -> Array:
    """Returns values of ``dtype``, shape (num_values,); bfloat16 as uint16 bits.

    Raises:
        InvalidArgumentError: ``data`` has the wrong length, or ``dtype`` is not wider than ``encoding``.
    """
    if encoding != dtype and not widens(encoding, dtype):
        raise InvalidArgumentError(f"values of {dtype} do not come as {encoding}")
    if len(data) != encoded_bytes(encoding, num_values):
        raise InvalidArgumentError(f"{len(data)} bytes are not those of {num_values} values as {encoding}")
    if encoding == dtype:
        return np.frombuffer(data, dtype=_wire_type(dtype))
    if encoding == "bfloat16":
        bits = np.frombuffer(data, dtype="<u2").astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32).astype(dtype, copy=False)
    if encoding != "int8_scaled":
        return np.frombuffer(data, dtype=_wire_type(encoding)).astype(dtype)
    num_scales = -(-num_values // SCALE_BLOCK)
    scales = np.frombuffer(data, dtype="<f4", count=num_scales).astype(dtype)
    multiples = np.frombuffer(data, dtype=np.int8, offset=4 * num_scales).astype(dtype)
    multiples *= np.repeat(scales, SCALE_BLOCK)[:num_values]
    return multiples


def _wire_type(dtype: str) -> np.dtype[np.generic]:
    """Returns the little-endian type of a dtype; uint16 for bfloat16."""
    return np.dtype("uint16" if dtype == "bfloat16" else dtype).newbyteorder("<")
