"""The results of rounds in this process, cut and rounded as a server does it."""

from __future__ import annotations

import dataclasses

import numpy as np

from sparseagg._internal.results.result import TensorResult
from sparseagg._internal.wire.values import decode_values, encode_values, first_misfit, widens

__all__ = ["part_of"]

_PAGE_BYTES = 1 << 20  # of a server's result


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
    has_all_keys = "keys" not in vars(whole) and (first, last) == (0, len(whole))  # which are made when asked for
    columns = {name: getattr(whole, name) for name in ("values", "counts", "weights", "moments")}
    columns["keys"] = None if has_all_keys else whole.keys
    columns = {name: None if column is None else column[first:last].copy() for name, column in columns.items()}
    values = columns["values"]
    if values is not None and len(values) and widens(encoding, whole.dtype):
        sent = [column for name, column in columns.items() if name != "keys" or whole.layout == "sparse"]
        row_bytes = sum(column.nbytes for column in sent if column is not None) // len(values)
        num_rows = max(1, _PAGE_BYTES // row_bytes)
        for page in (values[start : start + num_rows] for start in range(0, len(values), num_rows)):
            if first_misfit(page, encoding) is None:
                narrow = encode_values(page, encoding)
                page[...] = decode_values(narrow, encoding, whole.dtype, page.size).reshape(page.shape)
    return dataclasses.replace(whole, **columns)
