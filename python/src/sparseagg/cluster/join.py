"""The result of a tensor, made of those of its ranges."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparseagg._internal.base import bfloat16
from sparseagg._internal.local.engine import aggregate
from sparseagg._internal.results.result import TensorResult
from sparseagg._internal.spec.options import DTYPES, Aggregation, key_bytes
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg._internal.spec.unused import has_norms
from sparseagg._internal.updates.arrays import Array

__all__ = ["join_ranges"]


def join_ranges(spec: RoundSpec, tensor: TensorSpec, parts: Sequence[TensorResult]) -> tuple[TensorResult, int]:
    """Returns the result of a tensor, and how many rows ``result_top_k`` and ``result_min_norm`` have removed.

    Args:
        spec: of the round.
        tensor: of the spec.
        parts: the results of its ranges, in order of keys, sparse.
    """
    how = spec.aggregation_of(tensor)
    whole = dataclasses.replace(
        parts[0],
        keys=np.concatenate([part.keys for part in parts]),
        values=_joined([part.values for part in parts]),
        counts=_joined([part.counts for part in parts]),
        weights=_joined([part.weights for part in parts]),
        moments=_joined([part.moments for part in parts]),
        fill=how.fill,
        shape=tensor.shape,
    )
    if (how.result_top_k or how.result_min_norm) and has_norms(tensor, how):
        kept = _cut(whole, how)
        return kept, len(whole) - len(kept)
    return (_dense(whole) if _is_dense(tensor, how, whole) else whole), 0


def _joined(columns: Sequence[Array | None]) -> Array | None:
    present = [column for column in columns if column is not None]
    return np.concatenate(present) if present else None


def _cut(whole: TensorResult, how: Aggregation) -> TensorResult:
    """Returns the rows that the cut leaves, by the engine: one update, whose sum is itself, and its cut."""
    cut: dict[str, Any] = {"result_top_k": how.result_top_k, "result_min_norm": how.result_min_norm}
    if "float" in whole.dtype:
        cut["on_nonfinite"] = "propagate"
    alone = TensorSpec(
        whole.name, whole.dtype, num_rows=whole.num_rows, row_width=whole.row_width, op="sum",
        **{name: value for name, value in cut.items() if value},
    )  # fmt: skip
    kept = aggregate([{whole.name: (whole.keys, whole.values)}], RoundSpec([alone]))[whole.name].keys
    rows = np.searchsorted(whole.keys, kept)
    columns: dict[str, Any] = {
        name: getattr(whole, name) for name in ("keys", "values", "counts", "weights", "moments")
    }
    left: dict[str, Any] = {name: None if column is None else column[rows] for name, column in columns.items()}
    return dataclasses.replace(whole, **left)


def _is_dense(tensor: TensorSpec, how: Aggregation, whole: TensorResult) -> bool:
    """Whether the result is dense: ``IsDenseResult`` of the engine."""
    if how.result_layout != "auto":
        return how.result_layout == "dense"
    if tensor.num_rows == 0:
        return False
    row_bytes = 4 if how.op == "union" else DTYPES[whole.dtype] * tensor.row_width
    if len(whole) * (key_bytes(tensor.num_rows) + row_bytes) >= tensor.num_rows * row_bytes:
        return True
    return how.dense_threshold is not None and len(whole) / tensor.num_rows >= how.dense_threshold


def _dense(whole: TensorResult) -> TensorResult:
    def spread(column: Array | None, fill: Any) -> Array | None:
        if column is None:
            return None
        rows = np.full((whole.num_rows, *column.shape[1:]), fill, column.dtype)
        rows[whole.keys] = column
        return rows

    fill: Any = whole.fill
    all_keys: Any = None  # which the result makes at their first use
    if whole.dtype == "bfloat16":
        fill = bfloat16.float_from_bits(bfloat16.bits_from_float(np.array([fill])))[0]
    return dataclasses.replace(
        whole,
        layout="dense",
        keys=all_keys,
        values=spread(whole.values, fill),
        counts=spread(whole.counts, 0),
        weights=spread(whole.weights, 0.0),
        moments=spread(whole.moments, 0.0),
    )
