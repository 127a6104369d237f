"""Weights and options that have no effect on a round. They are refused, for their caller believes in an effect."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from sparseagg._internal.spec.options import Aggregation
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg.errors import InvalidArgumentError

__all__ = ["ORDER_OPS", "has_norms", "is_weighted", "refuse_unused", "refuse_unused_weight"]

_SUMS = ("sum", "mean", "coordinate_mean")
ORDER_OPS = ("median", "trimmed_mean", "quantile")  # order statistics


def _is_fixed(tensor: TensorSpec, how: Aggregation) -> bool:
    return how.numerics == "fixed_point"


def _is_bounded(tensor: TensorSpec, how: Aggregation) -> bool:
    return _is_fixed(tensor, how) and how.op in _SUMS and "float" in tensor.dtype


def has_norms(tensor: TensorSpec, how: Aggregation) -> bool:
    """Whether ``result_top_k`` and ``result_min_norm`` are for the tensor: its result is sparse, with norms of rows."""
    return how.result_layout == "sparse" and how.op != "union" and not tensor.modular


# For each rule: the option, whether a spec gives it, whether a tensor uses it, and what is said if none does.
_Rule = tuple[str, Callable[[Any], bool], Callable[[TensorSpec, Aggregation], bool], str]
_NO_CUT = "has no effect: no tensor has the result_layout sparse and values that are not modular"
_NO_BOUNDS = "is for fixed_point numerics; canonical sums have none"
_RULES: list[_Rule] = [
    ("value_bound", lambda of: of.value_bound is not None, _is_fixed, _NO_BOUNDS),
    ("weight_bound", lambda of: of.weight_bound is not None, _is_fixed, _NO_BOUNDS),
    ("on_bound clip", lambda of: of.on_bound == "clip", _is_fixed, _NO_BOUNDS),
    ("value_bound", lambda of: of.value_bound is not None, _is_bounded, "is for sums and means of floats"),
    ("on_bound clip", lambda of: of.on_bound == "clip", _is_bounded, "is for sums and means of floats"),
    (
        "weight_bound",
        lambda of: of.weight_bound is not None,
        lambda _, how: how.weighting == "by_weight",
        "is for the weighting by_weight",
    ),
    (
        "weighting by_weight",
        lambda of: of.weighting == "by_weight",
        lambda _, how: how.op in _SUMS or how.op in ORDER_OPS or how.return_weights,
        "is for sums, means and order statistics, and for return_weights",
    ),
    (
        "trim_fraction",
        lambda of: of.trim_fraction is not None,
        lambda _, how: how.op == "trimmed_mean",
        "is for the op trimmed_mean",
    ),
    ("quantile", lambda of: of.quantile is not None, lambda _, how: how.op == "quantile", "is for the op quantile"),
    (
        "absent",
        lambda of: of.absent is not None,
        lambda _, how: how.op in ORDER_OPS,
        "is for the ops median, trimmed_mean and quantile",
    ),
    # Of the round. The engine refuses those of a tensor, and says why.
    ("result_top_k", lambda of: isinstance(of, RoundSpec) and bool(of.result_top_k), has_norms, _NO_CUT),
    ("result_min_norm", lambda of: isinstance(of, RoundSpec) and bool(of.result_min_norm), has_norms, _NO_CUT),
    (
        "mean_divisor",
        lambda of: of.mean_divisor is not None,
        lambda _, how: how.op == "mean",
        'is for the op "mean"',
    ),
    (
        "fixed_divisor",
        lambda of: of.fixed_divisor is not None,
        lambda _, how: how.op == "mean" and how.mean_divisor == "fixed",
        'is for the op "mean" and the mean_divisor "fixed"',
    ),
    (
        "fill",
        lambda of: bool(of.fill),
        lambda _, how: how.result_layout != "sparse",
        'is for the result layouts "dense" and "auto"',
    ),
    (
        "dense_threshold",
        lambda of: of.dense_threshold is not None,
        lambda _, how: how.result_layout == "auto",
        'is for the result_layout "auto"',
    ),
    ("prune_zeros", lambda of: bool(of.prune_zeros), lambda _, how: how.op != "union", "is for ops with values"),
    (
        "result_dtype",
        lambda of: of.result_dtype is not None,
        lambda _, how: how.op != "union",
        "is for ops with values",
    ),
    (
        "on_empty fail",
        lambda of: of.on_empty == "fail",
        lambda tensor, _: tensor.layout == "dense",
        'is for tensors of layout "dense"; min_submissions=1 makes every empty round fail',
    ),
]


def refuse_unused(spec: RoundSpec) -> None:
    """Raises ``InvalidArgumentError`` for an option of a tensor without effect on it, or of the round on none of them.

    A server knows the rules for bounds alone, and refuses them in the same words.
    """
    used = [(tensor, spec.aggregation_of(tensor)) for tensor in spec.tensors]
    for tensor, how in used:
        _refuse(f"tensor {tensor.name!r}: ", tensor, [(tensor, how)])
    if used:
        _refuse("", spec, used)


def _refuse(where: str, of: RoundSpec | TensorSpec, used: Sequence[tuple[TensorSpec, Aggregation]]) -> None:
    for option, is_given, is_used, text in _RULES:
        if is_given(of) and not any(is_used(tensor, how) for tensor, how in used):
            raise InvalidArgumentError(f"{where}{option} {text}")


def is_weighted(spec: RoundSpec) -> bool:
    """Whether a tensor is weighted "by_weight", so that submissions may have weights."""
    return any((tensor.weighting or spec.weighting) == "by_weight" for tensor in spec.tensors)


def refuse_unused_weight(spec: RoundSpec, weight: float | None) -> None:
    """Raises ``InvalidArgumentError`` for a weight other than 1 where no tensor has one; in the engine's words.

    A weight that is none, such as −1, is left to the round.
    """
    if weight is None or weight == 1 or not 0 <= weight < math.inf:
        return
    if not is_weighted(spec):
        raise InvalidArgumentError(f"weight {weight:g} has no effect: no tensor is weighted by_weight")
