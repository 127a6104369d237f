"""Digests of submissions and results, as docs/certificates.md defines them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from sparseagg._internal.base import bfloat16
from sparseagg._internal.certificates import cbor
from sparseagg._internal.results.result import TensorResult
from sparseagg._internal.updates.arrays import Array

__all__ = ["content_digest", "result_digest", "wire_values"]

_BLOCK = 1 << 20


def content_digest(keys: Array, values: Array | None) -> bytes:
    """Returns the digest of one tensor of a submission.

    Args:
        keys: in order of occurrence, of any unsigned type.
        values: of the tensor's dtype, bfloat16 as bits; None for a union.
    """
    total = hashlib.sha256()
    for digest in (*_blocks(keys.astype("<u8", copy=False)), *_blocks(values)):
        total.update(digest)
    return total.digest()


def result_digest(tensor: TensorResult) -> bytes:
    """Returns the digest of one tensor's result, a subject of the certificate. The result is of all keys."""
    columns = [tensor.counts, tensor.weights, tensor.moments]
    has_columns = [column is not None for column in (tensor.values, *columns)]
    form = ["sparseagg result 1", tensor.name, tensor.layout, tensor.dtype, tensor.row_width, tensor.num_rows]
    total = hashlib.sha256(cbor.encode([*form, len(tensor), *has_columns]))
    if tensor.layout == "sparse":
        total.update(_bytes(tensor.keys.astype("<u8", copy=False)))
    for column in (wire_values(tensor), *columns):
        total.update(_bytes(column))
    return total.digest()


def wire_values(tensor: TensorResult) -> Array | None:
    """Returns the values of a result with the bits of its dtype; bfloat16, which may have been widened, as uint16."""
    values = tensor.values
    if values is None or tensor.dtype != "bfloat16" or values.dtype == np.uint16:
        return values
    if bfloat16.is_bfloat16(values.dtype):
        return values.view(np.uint16)
    return bfloat16.bits_from_float(np.ascontiguousarray(values))


def _blocks(array: Array | None) -> Iterable[bytes]:
    data = _bytes(array)
    return (hashlib.sha256(data[begin : begin + _BLOCK]).digest() for begin in range(0, len(data), _BLOCK))


def _bytes(array: Array | None) -> Any:
    if array is None or array.size == 0:
        return b""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
