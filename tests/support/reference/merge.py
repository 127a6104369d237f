"""The merge: per key a fold over the clients in the order of their ids, and what of it is in the result."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from sparseagg._internal.spec.options import DTYPES, Aggregation
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg.errors import FailedPreconditionError, OutOfRangeError

from reference.binned import BinnedSum
from reference.checks import check_spec, check_update
from reference.clip import clip
from reference.cut import cut_keys
from reference.numbers import Number, Row, check_int64, round_to_dtype
from reference.order import is_order, order_keys
from reference.update import Update, fold, is_float, result_dtype, terms

__all__ = ["MergedTensor", "merge"]

Bounded = dict[str, dict[int, Row]]  # by tensor: the rows of one submission


@dataclasses.dataclass(frozen=True)
class MergedTensor:
    """One tensor's result.

    Attributes:
        layout: "sparse" or "dense".
        dtype: of the values.
        keys: ascending; all of them if dense.
        rows: one for each key, of Python numbers that ``dtype`` holds exactly; None for a union.
        counts: contributors of each key.
        weights: sum of their weights.
        num_cut: rows that result_top_k and result_min_norm have removed.
        moments: sums of weighted squares of each key and column, where the spec asks for them.
    """

    layout: str
    dtype: str
    keys: list[int]
    rows: list[Row] | None
    counts: list[int]
    weights: list[float]
    num_cut: int = 0
    moments: list[Row] | None = None


@dataclasses.dataclass
class _Key:
    """What has been merged at one key: a row of sums, minima or maxima, and its contributors."""

    row: Row | None
    count: int
    weight: Number


def merge(spec: RoundSpec, updates: Mapping[str, Update], *, check: bool = True) -> dict[str, MergedTensor]:
    """Merges submissions, by client id, none of which ``check_update`` refuses.

    Args:
        spec: what to compute.
        updates: by client id.
        check: apply ``check_spec`` and ``check_update`` before; they take as long as the merge.

    Raises:
        OutOfRangeError: an integer total leaves int64; names tensor and smallest such key. FailedPreconditionError: the
            weights of all submissions, by which a mean is divided, add up to 0; or a dense tensor has no updates.
    """
    if check:
        check_spec(spec)
        for update in updates.values():
            check_update(spec, update)
    clients = sorted(updates, key=lambda client_id: client_id.encode())
    ordered = [(updates[client_id], clip(spec, updates[client_id]).rows) for client_id in clients]
    return {tensor.name: _merge_tensor(spec, tensor, ordered) for tensor in spec.tensors}


def _merge_tensor(spec: RoundSpec, tensor: TensorSpec, updates: list[tuple[Update, Bounded]]) -> MergedTensor:
    how = spec.aggregation_of(tensor)
    if tensor.layout == "dense" and not updates:
        if how.on_empty == "fail":
            raise FailedPreconditionError(f"tensor {tensor.name!r}: there are no submissions")
        how = dataclasses.replace(how, result_layout="sparse")
    if is_order(how):
        return _merge_order(tensor, how, updates)
    is_ordered = how.op in ("sum", "mean", "coordinate_mean") and is_float(tensor) and how.numerics != "binned"
    merged: dict[int, _Key] = {}
    moments: dict[int, Row] = {}
    total: Any = 0.0
    for update, bounded in updates:
        weight = (update.weight_in(tensor) or 0.0) if how.weighting == "by_weight" else 1.0
        total += BinnedSum(weight) if how.numerics == "binned" else weight
        at_key: Any = weight if is_ordered else BinnedSum(weight)
        if how.return_moments:
            _add_squares(tensor, how, update, bounded, moments)
        for key, row in terms(tensor, how, update, bounded.get(tensor.name)).items():
            if how.numerics == "binned":
                row = [BinnedSum(value, tensor.dtype) for value in row]
            at = merged.get(key)
            if at is None:
                at = merged[key] = _Key(None, 0, 0.0)
            at.count += 1
            at.weight += at_key
            if how.op == "min":
                at.row = row if at.row is None else [_least(a, b) for a, b in zip(at.row, row)]
            elif how.op == "max":
                at.row = row if at.row is None else [-_least(-a, -b) for a, b in zip(at.row, row)]
            elif how.op != "union":
                at.row = [0 + v for v in row] if at.row is None else [a + v for a, v in zip(at.row, row)]
    for at in merged.values():
        at.weight = float(at.weight)
    total_weight = total = float(total)
    if how.mean_divisor == "submissions":
        total_weight = float(len(updates))
    if how.mean_divisor == "fixed":
        total_weight = how.fixed_divisor or 0.0
    no_total = total_weight if how.op == "mean" else total
    if merged and no_total == 0.0 and (how.op == "mean" or (how.op == "coordinate_mean" and tensor.layout == "dense")):
        raise FailedPreconditionError(f"tensor {tensor.name!r}: the weights of all submissions add up to 0")
    if how.op == "coordinate_mean":  # a key whose contributors have no weight has no mean
        merged = {key: at for key, at in merged.items() if at.weight != 0.0}
    rows = {key: _finish(tensor, how, key, merged[key], total_weight) for key in sorted(merged)}
    return _select(tensor, how, merged, rows, moments if how.return_moments else None)


def _add_squares(
    tensor: TensorSpec, how: Aggregation, update: Update, bounded: Bounded, moments: dict[int, Row]
) -> None:
    """Adds w·v² of one submission, v folded and within its bounds."""
    folded = bounded[tensor.name] if tensor.name in bounded else fold(tensor, update)
    weight = (update.weight_in(tensor) or 0.0) if how.weighting == "by_weight" else 1.0
    for key, row in folded.items():
        squares = [weight * (float(v) * float(v)) for v in row]
        moments[key] = [a + b for a, b in zip(moments.get(key, [0.0] * tensor.row_width), squares)]


def _merge_order(tensor: TensorSpec, how: Aggregation, updates: list[tuple[Update, Bounded]]) -> MergedTensor:
    dtype = result_dtype(tensor, how)
    has_weight = how.weighting == "uniform" or any(update.weight_in(tensor) for update, _ in updates)
    if updates and tensor.layout == "dense" and not has_weight:
        raise FailedPreconditionError(f"tensor {tensor.name!r}: the weights of all submissions add up to 0")
    merged: dict[int, _Key] = {}
    rows: dict[int, Row | None] = {}
    for key, at in order_keys(tensor, how, updates).items():
        if at.row is None:
            continue
        merged[key] = _Key(at.row, at.count, at.weight)
        try:
            rows[key] = [round_to_dtype(value, dtype) for value in at.row]
        except OverflowError:
            raise OutOfRangeError(f"tensor {tensor.name!r}: key {key}: {at.row} does not fit {dtype}") from None
    return _select(tensor, how, merged, rows)


def _least(a: Number, b: Number) -> Number:
    if a != a or b != b:
        return math.nan
    return min(a, b)


def _finish(tensor: TensorSpec, how: Aggregation, key: int, at: _Key, total: float) -> Row | None:
    """The row at one key, rounded to the result's dtype."""
    divisor = {"mean": total, "coordinate_mean": at.weight}.get(how.op)
    if at.row is None:
        return None
    dtype = result_dtype(tensor, how)
    check_int64(tensor, key, at.row)
    row = []
    for value in at.row:
        if tensor.modular:
            value %= 2 ** (8 * DTYPES[tensor.dtype])
        if how.numerics == "binned":
            value = float(value)
        if divisor is not None:
            value = float(value) / divisor
        try:
            row.append(round_to_dtype(value, dtype))
        except OverflowError:
            raise OutOfRangeError(f"tensor {tensor.name!r}: key {key}: {value} does not fit {dtype}") from None
    return row


def _select(
    tensor: TensorSpec,
    how: Aggregation,
    merged: dict[int, _Key],
    rows: dict[int, Row | None],
    moments: dict[int, Row] | None = None,
) -> MergedTensor:
    """Prunes, applies min_contributors, cuts, and lays out; in this order."""
    kept = [
        key
        for key, row in rows.items()
        if not (how.prune_zeros and row is not None and all(value == 0 for value in row))
        and merged[key].count >= how.min_contributors
    ]
    num_before = len(kept)
    kept = cut_keys(tensor, how, kept, rows)
    dtype = result_dtype(tensor, how)
    dense = how.result_layout == "dense" or (how.result_layout == "auto" and _goes_dense(tensor, how, len(kept)))
    keys = list(range(tensor.num_rows)) if dense else kept
    counts = dict.fromkeys(keys, 0)
    weights = dict.fromkeys(keys, 0.0)
    for key in kept:
        counts[key] = merged[key].count
        weights[key] = float(merged[key].weight)
    values: list[Row] | None = None
    if how.op != "union":
        kept_set = set(kept)
        fill = [round_to_dtype(float(how.fill), dtype)] * tensor.row_width
        values = [rows[key] or [] if key in kept_set else fill for key in keys]
    return MergedTensor(
        layout="dense" if dense else "sparse",
        dtype=dtype,
        keys=keys,
        rows=values,
        counts=[counts[key] for key in keys],
        weights=[weights[key] for key in keys],
        num_cut=num_before - len(kept),
        moments=None
        if moments is None
        else [moments[key] if counts.get(key) else [0.0] * tensor.row_width for key in keys],
    )


def _goes_dense(tensor: TensorSpec, how: Aggregation, num_keys: int) -> bool:
    if tensor.num_rows == 0:
        return False
    if how.dense_threshold is not None and num_keys / tensor.num_rows >= how.dense_threshold:
        return True
    key_bytes = 4 if tensor.num_rows <= 2**32 else 8
    row_bytes = 4 if how.op == "union" else tensor.row_width * DTYPES[result_dtype(tensor, how)]
    return num_keys * (key_bytes + row_bytes) >= tensor.num_rows * row_bytes
