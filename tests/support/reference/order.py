"""Order statistics over the contributors of a key: median, trimmed mean and quantile. By sorting, slow and obvious."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from sparseagg._internal.spec.options import Aggregation
from sparseagg._internal.spec.round_spec import TensorSpec
from sparseagg.errors import OutOfRangeError

from reference.binned import BinnedSum
from reference.numbers import Number, Row, check_int64
from reference.update import Update, fold, is_float

__all__ = ["ORDER_OPS", "OrderKey", "is_order", "order_keys", "order_problems"]

ORDER_OPS = ("median", "trimmed_mean", "quantile")


@dataclasses.dataclass(frozen=True)
class _Vote:
    """One value at one key and column, with the submission's weight. Votes are listed in order of client id."""

    value: Number
    weight: Number


@dataclasses.dataclass(frozen=True)
class OrderKey:
    """A key's row, exact or in float64, with its number of contributors and their weights.

    ``row`` is None where the votes have no weight, so that the key is hidden.
    """

    row: Row | None
    count: int
    weight: float


def is_order(how: Aggregation) -> bool:
    return how.op in ORDER_OPS


def order_problems(how: Aggregation) -> list[str]:
    """Names the fields of an order statistic that make no sense."""
    problems = []
    if how.op == "trimmed_mean" and (how.trim_fraction is None or not 0.0 <= how.trim_fraction < 0.5):
        problems.append("trim_fraction")
    if how.op == "quantile" and not (how.quantile is not None and 0.0 <= how.quantile <= 1.0):
        problems.append("quantile")
    return problems


def order_keys(
    tensor: TensorSpec, how: Aggregation, updates: Sequence[tuple[Update, Mapping[str, dict[int, Row]]]]
) -> dict[int, OrderKey]:
    """Returns the statistic at every key that a submission lists.

    ``updates``: in order of client id, each with the rows of the tensors that have bounds, as these left them.
    """
    folded = [bounded[tensor.name] if tensor.name in bounded else fold(tensor, update) for update, bounded in updates]
    by_weight = how.weighting == "by_weight"
    weights: list[Number] = [(update.weight_in(tensor) or 0.0) if by_weight else 1.0 for update, _ in updates]
    return {key: _at_key(tensor, how, key, folded, weights) for key in sorted(set().union(*folded))}


def _at_key(
    tensor: TensorSpec, how: Aggregation, key: int, folded: Sequence[dict[int, Row]], weights: Sequence[Number]
) -> OrderKey:
    present = [client for client in range(len(folded)) if key in folded[client]]
    voters = list(range(len(folded))) if how.absent == "zero" else present
    zeros: Row = [0.0 if is_float(tensor) else 0] * tensor.row_width
    rows = [folded[client].get(key, zeros) for client in voters]
    weight = float(sum(BinnedSum(float(weights[client])) for client in present))
    rule = _RULES[how.op]
    row = []
    overflow = None
    for column in range(tensor.row_width):
        votes = [_Vote(rows[i][column] + 0, weights[client]) for i, client in enumerate(voters)]  # −0 + 0 = +0
        try:
            row.append(rule(tensor, how, key, votes))
        except _NoWeight:  # in one column; it hides the key, also where another column overflows
            return OrderKey(None, len(present), weight)
        except OutOfRangeError as error:
            overflow = error
    if overflow is not None:
        raise overflow
    return OrderKey(row, len(present), weight)


def _sorted(votes: Sequence[_Vote]) -> list[_Vote]:
    """S: by value, and by client id where values are equal, as sorting keeps the order of equal ones."""
    return sorted(votes, key=lambda vote: vote.value)


def _has_nan(votes: Sequence[_Vote]) -> bool:
    return any(vote.value != vote.value for vote in votes)


class _NoWeight(Exception):
    """The votes have no weight, so that the key has no statistic."""


def _middle(a: Number, b: Number) -> Any:
    """Half and half: exact for integers, rounded once to float64 for floats."""
    if isinstance(a, int) and isinstance(b, int):
        return Fraction(a + b, 2)
    if not (math.isfinite(a) and math.isfinite(b)):
        return 0.5 * a + 0.5 * b
    return float((Fraction(a) + Fraction(b)) / 2)


def _weighted_quantile(q: float, tensor: TensorSpec, how: Aggregation, key: int, votes: Sequence[_Vote]) -> Any:
    """Cumulative weights are float64 sums in the order of S. A vote of weight 0 is never chosen."""
    order = [vote for vote in _sorted(votes) if vote.weight > 0]
    total = 0.0
    for vote in order:
        total += vote.weight
    if total == 0.0:
        raise _NoWeight
    if _has_nan(votes):
        return math.nan
    target = q * total
    cumulative = 0.0
    for place, vote in enumerate(order):
        cumulative += vote.weight
        if cumulative > target:
            return vote.value
        if cumulative == target:
            return _middle(vote.value, order[min(place + 1, len(order) - 1)].value)
    raise AssertionError("the last cumulative weight is the total")


def _median(tensor: TensorSpec, how: Aggregation, key: int, votes: Sequence[_Vote]) -> Any:
    if how.weighting == "by_weight":
        return _weighted_quantile(0.5, tensor, how, key, votes)
    if _has_nan(votes):
        return math.nan
    values = [vote.value for vote in _sorted(votes)]
    half = len(values) // 2
    return values[half] if len(values) % 2 == 1 else _middle(values[half - 1], values[half])


def _quantile(tensor: TensorSpec, how: Aggregation, key: int, votes: Sequence[_Vote]) -> Any:
    q = how.quantile
    assert q is not None
    if how.weighting == "by_weight":
        return _weighted_quantile(q, tensor, how, key, votes)
    if _has_nan(votes):
        return math.nan
    return _sorted(votes)[max(math.ceil(q * len(votes)), 1) - 1].value  # NumPy's inverted_cdf


def _trim(how: Aggregation, num_votes: int) -> int:
    assert how.trim_fraction is not None
    return math.floor(how.trim_fraction * num_votes)


def _trimmed_mean(tensor: TensorSpec, how: Aggregation, key: int, votes: Sequence[_Vote]) -> Any:
    trim = _trim(how, len(votes))
    has_nan = _has_nan(votes)
    order = list(range(len(votes))) if has_nan else sorted(range(len(votes)), key=lambda i: (votes[i].value, i))
    survivors = set(order[trim : len(votes) - trim])
    total: Number = 0.0 if is_float(tensor) else 0
    divisor = 0.0
    for i, vote in enumerate(votes):
        if i in survivors:
            total += (vote.weight if is_float(tensor) else int(vote.weight)) * vote.value
            divisor += vote.weight
    if divisor == 0.0 and not has_nan:
        raise _NoWeight
    if has_nan:
        if all(vote.weight == 0 for vote in votes):
            raise _NoWeight
        return math.nan
    check_int64(tensor, key, [total])
    return float(total) / divisor


_RULES: dict[str, Callable[..., Any]] = {"median": _median, "trimmed_mean": _trimmed_mean, "quantile": _quantile}
