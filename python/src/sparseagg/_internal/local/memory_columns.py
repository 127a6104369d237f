"""The keys and values of rounds in this process: hashed, rounded and cut as a server does it."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from sparseagg._internal.results.result import TensorResult
from sparseagg._internal.updates.arrays import Array, TensorData
from sparseagg._internal.wire.message import bulk_of
from sparseagg._internal.wire.values import decode_values, encode_values, first_misfit, widens

__all__ = ["content_hash", "part_of", "rounded"]

_PAGE_BYTES = 1 << 20  # of a server's result


def content_hash(tensors: Sequence[TensorData], weight: float | None) -> bytes:
    """Returns a hash of an update: of its weight, keys and values. A tensor without keys changes nothing."""
    digest = hashlib.blake2b(repr(weight).encode(), digest_size=16)
    for data in tensors:
        if data.num_keys == 0:
            continue
        keys = np.arange(data.num_keys, dtype=f"<u{data.spec.key_bytes}") if data.keys is None else data.keys
        digest.update(repr((data.spec.name, data.num_keys)).encode())
        for array in (keys, data.values):
            if array is not None:
                digest.update(bulk_of(array))
    return digest.digest()


def rounded(tensors: Sequence[TensorData], encodings: Mapping[str, str]) -> list[TensorData]:
    """Returns an update with values rounded to narrower encodings, by tensor, whose ranges the values are within."""
    return [
        dataclasses.replace(data, values=_rounded(data.values, data.spec.dtype, encodings[data.spec.name]))
        if data.values is not None and data.spec.name in encodings
        else data
        for data in tensors
    ]


def part_of(whole: TensorResult, begin: int, end: int, encoding: str) -> TensorResult:
    """Returns the rows in a range of keys, in new arrays.

    Args:
        whole: the tensor.
        begin: first key.
        end: behind the last key; 0: all keys from ``begin`` on.
        encoding: of the values. If it is narrower than the dtype, each page of a server's size is rounded, unless one
            of its values is beyond the encoding's range.
    """
    first = int(np.searchsorted(whole.keys, np.uint64(begin))) if begin else 0
    last = int(np.searchsorted(whole.keys, np.uint64(end))) if end else len(whole)
    columns = {name: getattr(whole, name) for name in ("keys", "values", "counts", "weights")}
    columns = {name: None if column is None else column[first:last].copy() for name, column in columns.items()}
    values = columns["values"]
    if values is not None and len(values) and widens(encoding, whole.dtype):
        sent = [column for name, column in columns.items() if name != "keys" or whole.layout == "sparse"]
        row_bytes = sum(column.nbytes for column in sent if column is not None) // len(values)
        num_rows = max(1, _PAGE_BYTES // row_bytes)
        for page in (values[start : start + num_rows] for start in range(0, len(values), num_rows)):
            if first_misfit(page, encoding) is None:
                page[...] = _rounded(page, whole.dtype, encoding)
    return dataclasses.replace(whole, **columns)


def _rounded(values: Array, dtype: str, encoding: str) -> Array:
    return decode_values(encode_values(values, encoding), encoding, dtype, values.size).reshape(values.shape)
