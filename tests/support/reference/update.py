"""One client's update, and the terms that it brings to the sums."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from sparseagg._internal.spec.options import Aggregation
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec

from reference.numbers import Number, Row

__all__ = [
    "Update",
    "columns",
    "fold",
    "is_float",
    "multiplied",
    "result_dtype",
    "terms",
    "with_factor",
]


@dataclasses.dataclass(frozen=True)
class Update:
    """One client's update.

    Attributes:
        tensors: by name: (keys, rows). Keys are integers, or None for all of them in order. Rows have ``row_width``
            numbers each (Python's, or one numpy array); None: no values (union).
        weight: of the submission; or its weight in each tensor, by name, as ``multiplied`` makes them.
    """

    tensors: Mapping[str, tuple[Any, Any]]
    weight: float | Mapping[str, float] | None = None

    def weight_in(self, tensor: TensorSpec) -> float | None:
        """The submission's weight in one tensor."""
        return self.weight[tensor.name] if isinstance(self.weight, Mapping) else self.weight


def multiplied(spec: RoundSpec) -> RoundSpec:
    """The spec of a round whose submissions have factors: a close with them, or a version of a stream."""
    tensors = tuple(dataclasses.replace(tensor, weighting="by_weight") for tensor in spec.tensors)
    return dataclasses.replace(spec, tensors=tensors)


def with_factor(spec: RoundSpec, update: Update, factor: float) -> Update:
    """The update with its weight in each tensor of ``spec``, which is not ``multiplied`` yet."""
    weights = {
        tensor.name: (update.weight_in(tensor) or 0.0) * factor
        if spec.aggregation_of(tensor).weighting == "by_weight"
        else factor
        for tensor in spec.tensors
    }
    return dataclasses.replace(update, weight=weights)


def is_float(tensor: TensorSpec) -> bool:
    """Whether the wire's values are floats."""
    return tensor.dtype in ("float32", "float16", "bfloat16", "float64")


def result_dtype(tensor: TensorSpec, how: Aggregation) -> str:
    """Type of the result's values."""
    return how.result_dtype or ("int64" if tensor.dtype == "int32" else tensor.dtype)


def columns(tensor: TensorSpec, update: Update) -> tuple[list[int], list[Row] | None]:
    """An update's keys and rows of one tensor, as Python numbers."""
    if tensor.name not in update.tensors:
        return [], []
    keys, rows = update.tensors[tensor.name]
    keys = range(tensor.num_rows) if keys is None else keys
    keys = list(keys.tolist() if hasattr(keys, "tolist") else keys)
    if hasattr(rows, "tolist"):
        rows = rows.reshape(-1, tensor.row_width).tolist()
    return keys, rows


def fold(tensor: TensorSpec, update: Update) -> dict[int, Row]:
    """One submission's v at each of its keys: its duplicates added up in order of occurrence."""
    keys, rows = columns(tensor, update)
    folded: dict[int, Row] = {}
    zero = 0.0 if is_float(tensor) else 0
    for key, row in zip(keys, rows or []):
        before = folded.get(key)
        folded[key] = [zero + v for v in row] if before is None else [a + v for a, v in zip(before, row)]
    return folded


def terms(
    tensor: TensorSpec, how: Aggregation, update: Update, bounded: dict[int, Row] | None = None
) -> dict[int, Row]:
    """One submission's w·v at each of its keys: its duplicates folded first, or as bounds left them, then weighted."""
    if how.op == "union":
        return {key: [] for key in columns(tensor, update)[0]}
    folded = fold(tensor, update) if bounded is None else bounded
    if how.weighting == "by_weight" and how.op not in ("min", "max", "median", "quantile"):
        weight: Number = update.weight_in(tensor) or 0.0
        if not is_float(tensor):
            weight = int(weight)
        return {key: [weight * v for v in row] for key, row in folded.items()}
    return folded
