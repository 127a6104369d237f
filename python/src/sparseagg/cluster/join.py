"""The result of a tensor, made of those of its ranges."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparseagg._internal.base.foreign import Array, bits_from_float, float_from_bits
from sparseagg._internal.local.aggregate import aggregate
from sparseagg._internal.results.result import TensorResult
from sparseagg._internal.spec.options import DTYPES, key_bytes
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg.cluster.plan import KeyRange

COLUMNS = ("keys", "values", "counts", "weights", "moments")  # of a TensorResult, in order of its rows


def join_ranges(spec: RoundSpec, tensor: TensorSpec, parts: Sequence[TensorResult]) -> tuple[TensorResult, int]:
    """Returns the result of a tensor, and how many rows ``result_top_k`` and ``result_min_norm`` have removed.

    Args:
        parts: the results of its ranges, in order of keys, sparse.
    """
    whole = concatenated(spec, tensor, parts)
    if is_cut(spec, tensor):
        kept = cut_rows(spec, tensor, whole)
        return kept, len(whole) - len(kept)
    return (dense(whole) if is_dense(spec, tensor, whole.dtype, len(whole)) else whole), 0


def concatenated(spec: RoundSpec, tensor: TensorSpec, parts: Sequence[TensorResult]) -> TensorResult:
    """Returns one sparse result of those of some ranges, which are in order of keys."""
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in COLUMNS
        if getattr(parts[0], name) is not None
    }
    return dataclasses.replace(parts[0], fill=spec.aggregation_of(tensor).fill, shape=tensor.shape, **columns)


def rows_between(whole: TensorResult, keys: KeyRange) -> TensorResult:
    """Returns the rows of a sparse result with keys of a range."""
    first = int(np.searchsorted(whole.keys, np.array(keys[0], np.uint64)))
    last = len(whole) if keys[1] is None else int(np.searchsorted(whole.keys, np.array(keys[1], np.uint64)))
    return _picked(whole, slice(first, last))


def _picked(whole: TensorResult, rows: Any) -> TensorResult:
    columns = {name: getattr(whole, name) for name in COLUMNS}
    picked: dict[str, Any] = {name: None if each is None else each[rows] for name, each in columns.items()}
    return dataclasses.replace(whole, **picked)


def is_cut(spec: RoundSpec, tensor: TensorSpec) -> bool:
    """Returns whether ``result_top_k`` or ``result_min_norm`` removes rows of a tensor's result."""
    how = spec.aggregation_of(tensor)
    return bool(how.result_top_k or how.result_min_norm)


def cut_rows(spec: RoundSpec, tensor: TensorSpec, whole: TensorResult) -> TensorResult:
    """Returns the rows that the cut leaves, by the engine: one update, whose sum is itself, and its cut."""
    how = spec.aggregation_of(tensor)
    cut: dict[str, Any] = {"result_top_k": how.result_top_k, "result_min_norm": how.result_min_norm}
    if "float" in whole.dtype:
        cut["on_nonfinite"] = "propagate"
    alone = TensorSpec(
        whole.name, whole.dtype, num_rows=whole.num_rows, row_width=whole.row_width, op="sum",
        **{name: value for name, value in cut.items() if value},
    )  # fmt: skip
    kept = aggregate([{whole.name: (whole.keys, whole.values)}], RoundSpec([alone]))[whole.name].keys
    return _picked(whole, np.searchsorted(whole.keys, kept))


def is_dense(spec: RoundSpec, tensor: TensorSpec, dtype: str, num_rows: int) -> bool:
    """Returns whether a result of so many rows of a dtype is dense: ``IsDenseResult`` of the engine."""
    how = spec.aggregation_of(tensor)
    if how.result_layout != "auto":
        return how.result_layout == "dense"
    if tensor.num_rows == 0:
        return False
    row_bytes = 4 if how.op == "union" else DTYPES[dtype] * tensor.row_width
    if num_rows * (key_bytes(tensor.num_rows) + row_bytes) >= tensor.num_rows * row_bytes:
        return True
    return how.dense_threshold is not None and num_rows / tensor.num_rows >= how.dense_threshold


def dense(whole: TensorResult, keys: KeyRange = (0, None)) -> TensorResult:
    """Returns the dense result of a range of keys, where ``whole`` has the rows with a submission."""
    begin, end = min(keys[0], whole.num_rows), whole.num_rows if keys[1] is None else min(keys[1], whole.num_rows)
    is_all = (begin, end) == (0, whole.num_rows)

    def spread(column: Array | None, fill: Any) -> Array | None:
        if column is None:
            return None
        rows = np.full((end - begin, *column.shape[1:]), fill, column.dtype)
        rows[whole.keys - whole.keys.dtype.type(begin)] = column
        return rows

    fill: Any = whole.fill
    all_keys: Any = None  # which the result makes at their first use
    if not is_all:
        all_keys = np.arange(begin, end, dtype=whole.keys.dtype)
    if whole.dtype == "bfloat16":
        fill = float_from_bits(bits_from_float(np.array([fill])))[0]
    return dataclasses.replace(
        whole,
        layout="dense",
        keys=all_keys,
        values=spread(whole.values, fill),
        counts=spread(whole.counts, 0),
        weights=spread(whole.weights, 0.0),
        moments=spread(whole.moments, 0.0),
    )
