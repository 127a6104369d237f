"""What is refused: specs without a meaning, and bad updates."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sparseagg._internal.spec.options import Aggregation
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg.errors import InvalidArgumentError, ResourceExhaustedError

from reference.clip import clip
from reference.cut import cut_problems
from reference.numbers import check_int64, round_to_dtype
from reference.order import is_order, order_problems
from reference.update import Update, columns, fold, is_float, result_dtype, terms

__all__ = ["check_spec", "check_update"]


def check_spec(spec: RoundSpec) -> None:
    """Raises ``InvalidArgumentError``, naming tensor and field, unless the spec has a meaning."""
    if not spec.tensors:
        raise InvalidArgumentError("a round needs at least one tensor")
    names = [tensor.name for tensor in spec.tensors]
    for tensor in spec.tensors:
        if names.count(tensor.name) > 1:
            raise InvalidArgumentError(f"tensor {tensor.name!r} is given twice")
        for problem in _problems(spec, tensor, spec.aggregation_of(tensor)):
            raise InvalidArgumentError(f"tensor {tensor.name!r}: {problem}")


def _problems(spec: RoundSpec, tensor: TensorSpec, how: Aggregation) -> Iterator[str]:
    if not 1 <= len(tensor.name.encode()) <= 256:
        yield "name"
    if tensor.row_width < 1:
        yield "row_width"
    if (tensor.dtype in ("uint32", "uint64")) != tensor.modular:
        yield "modular"
    if tensor.modular and (how.op not in ("sum", "union") or how.weighting != "uniform" or how.result_dtype):
        yield "modular"
    if is_order(how):
        yield from order_problems(how)
    yield from cut_problems(tensor, how)
    is_sum = how.op in ("sum", "mean", "coordinate_mean") and not tensor.modular
    if how.return_moments and (not is_sum or how.numerics != "canonical"):
        yield "return_moments"
    if how.numerics == "binned":
        most = 2**24 - 1 if tensor.dtype == "float64" else 2**20 - 1
        if not is_sum or not is_float(tensor) or (spec.max_submissions or 0) > most:
            yield "binned"
    if how.result_dtype not in (None, "float32", "float64"):
        yield "result_dtype"
    if tensor.num_rows == 0 and "dense" in (tensor.layout, how.result_layout):
        yield "num_rows"
    if how.dense_threshold is not None and not 0.0 < how.dense_threshold <= 1.0:
        yield "dense_threshold"
    if not math.isfinite(how.fill):
        yield "fill"
    dtype = result_dtype(tensor, how)
    if how.op != "union" and not (dtype.startswith("float") or dtype == "bfloat16"):
        try:
            if round_to_dtype(float(how.fill), dtype) != how.fill:
                yield "fill"
        except OverflowError:
            yield "fill"
    if how.mean_divisor == "fixed" and not 2.0**-900 <= (how.fixed_divisor or 0.0) <= 2.0**900:
        yield "fixed_divisor"


def check_update(spec: RoundSpec, update: Update) -> None:
    """Raises what a server refuses the submission with; the message names the tensor."""
    for name in update.tensors:
        spec.tensor(name)
    num_tuples = 0
    for tensor in spec.tensors:
        how = spec.aggregation_of(tensor)
        _check_weight(tensor, how, update.weight_in(tensor))
        keys, rows = columns(tensor, update)
        num_tuples += len(keys)
        if tensor.layout == "dense" and list(keys) != list(range(tensor.num_rows)):
            raise InvalidArgumentError(f"tensor {tensor.name!r} is dense and needs all {tensor.num_rows} rows in order")
        for position, key in enumerate(keys):
            if not 0 <= key < (tensor.num_rows or 2**64):
                raise InvalidArgumentError(f"tensor {tensor.name!r}: key {key} at position {position}")
        if rows is None:
            if how.op != "union" and keys:
                raise InvalidArgumentError(f"tensor {tensor.name!r}: no values")
            continue
        if len(rows) != len(keys) or any(len(row) != tensor.row_width for row in rows):
            raise InvalidArgumentError(f"tensor {tensor.name!r}: {len(keys)} keys do not go with the values")
        if is_float(tensor) and how.on_nonfinite == "reject":
            for position, row in enumerate(rows):
                for value in row:
                    if not math.isfinite(value):
                        raise InvalidArgumentError(f"tensor {tensor.name!r}: value {value} at position {position}")
    bounded = clip(spec, update).rows
    for tensor in spec.tensors:
        how = spec.aggregation_of(tensor)
        if how.op != "union":
            for key, row in fold(tensor, update).items():
                check_int64(tensor, key, row)
            for key, row in terms(tensor, how, update, bounded.get(tensor.name)).items():
                check_int64(tensor, key, row)
    if spec.max_tuples_per_submission and num_tuples > spec.max_tuples_per_submission:
        raise ResourceExhaustedError(f"{num_tuples} tuples")


def _check_weight(tensor: TensorSpec, how: Aggregation, weight: float | None) -> None:
    if weight is None:
        if how.weighting == "by_weight":
            raise InvalidArgumentError("no weight")
        return
    if not (math.isfinite(weight) and weight >= 0.0):
        raise InvalidArgumentError(f"weight {weight}")
    if how.weighting == "uniform":
        return
    if weight > 2.0**960:
        raise InvalidArgumentError(f"tensor {tensor.name!r}: weight {weight} is beyond 2^960")
    if not is_float(tensor) and (weight != int(weight) or weight >= 2.0**53):
        raise InvalidArgumentError(f"tensor {tensor.name!r}: weight {weight} is not an integer below 2^53")
