"""Bounds on one submission (docs/robust.md), applied before its weight."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from sparseagg._internal.spec.bounds import ClipSpec
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg.errors import InvalidArgumentError, ResourceExhaustedError

from reference.numbers import Row, round_to_dtype
from reference.update import Update, fold, is_float

__all__ = ["Clipped", "clip"]


@dataclasses.dataclass(frozen=True)
class Clipped:
    """A submission within its bounds, and what they did to it.

    Attributes:
        rows: by tensor that has bounds, each key and its row.
    """

    rows: dict[str, dict[int, Row]]
    factor: float
    linf: bool
    max_keys: bool


@dataclasses.dataclass(frozen=True)
class _Bounds:
    l2: float
    shares_l2: bool
    linf: float
    max_keys: int
    rejects_l2: bool
    rejects: bool


def _bounds(spec: RoundSpec, tensor: TensorSpec) -> _Bounds | None:
    if not is_float(tensor) or spec.aggregation_of(tensor).op == "union":
        return None
    whole, own = spec.clip or ClipSpec(), tensor.clip or ClipSpec()
    l2 = own.l2 if own.l2 is not None else whole.l2
    linf = own.linf if own.linf is not None else whole.linf
    max_keys = own.max_keys if own.max_keys is not None else whole.max_keys
    shares = own.l2 is None and whole.l2 is not None
    policy = own.on_clip or whole.on_clip
    bounds = _Bounds(
        l2=math.inf if l2 is None else l2,
        shares_l2=shares,
        linf=math.inf if linf in (None, math.inf) else _round_down(linf, tensor.dtype),
        max_keys=0 if max_keys is None or tensor.layout == "dense" else max_keys,
        rejects_l2=(whole.on_clip if shares else policy) == "reject",
        rejects=policy == "reject",
    )
    return None if bounds.l2 == bounds.linf == math.inf and not bounds.max_keys else bounds


def _round_down(bound: float, dtype: str) -> float:
    """The largest number of the type that is not beyond the bound."""
    nearest = float(round_to_dtype(bound, dtype))
    if nearest <= bound:
        return nearest
    below, above = 0.0, bound  # the first rounds to no more than the bound, the second to more
    while (middle := (below + above) / 2) not in (below, above):
        if float(round_to_dtype(middle, dtype)) > bound:
            above = middle
        else:
            below = middle
    return float(round_to_dtype(below, dtype))


def _squares(values: Iterable[float], lanes: list[float], index: int) -> int:
    for value in values:
        lanes[index % 8] += value * value
        index += 1
    return index


def _total(s: list[float]) -> float:
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]))


def _row_square(row: Row) -> float:
    lanes = [0.0] * 8
    _squares(row, lanes, 0)
    return _total(lanes)


def _factor(lanes: list[float], bound: float, rejects: bool) -> float:
    if bound == math.inf:
        return 1.0
    norm = math.sqrt(_total(lanes))
    if not math.isfinite(norm):
        raise InvalidArgumentError("the norm is not finite")
    if norm > bound and rejects:
        raise InvalidArgumentError(f"the norm {norm} is beyond {bound}")
    return 1.0 if norm == 0.0 else min(1.0, bound / norm)


def clip(spec: RoundSpec, update: Update) -> Clipped:
    """Returns what the bounds of the round leave of the submission.

    Raises:
        InvalidArgumentError, ResourceExhaustedError: a bound refuses it, or its norm is not finite.
    """
    rows: dict[str, dict[int, Row]] = {}
    factors: dict[str, float] = {}
    shared, index = [0.0] * 8, 0
    any_linf = any_max_keys = False
    for tensor in spec.tensors:
        bounds = _bounds(spec, tensor)
        if bounds is None or tensor.name not in update.tensors:
            continue
        folded = fold(tensor, update)
        if bounds.max_keys and len(folded) > bounds.max_keys:
            if bounds.rejects:
                raise ResourceExhaustedError(f"{len(folded)} keys are beyond {bounds.max_keys}")
            best = sorted(folded, key=lambda key: (-_row_square(folded[key]), key))[: bounds.max_keys]
            folded = {key: folded[key] for key in best}
            any_max_keys = True
        folded = {key: folded[key] for key in sorted(folded)}
        if any(abs(value) > bounds.linf for row in folded.values() for value in row):
            if bounds.rejects:
                raise InvalidArgumentError(f"a value is beyond {bounds.linf}")
            folded = {key: [max(-bounds.linf, min(bounds.linf, v)) for v in row] for key, row in folded.items()}
            any_linf = True
        rows[tensor.name] = folded
        values = [value for row in folded.values() for value in row]
        if bounds.shares_l2:
            index = _squares(values, shared, index)
        else:
            own = [0.0] * 8
            _squares(values, own, 0)
            factors[tensor.name] = _factor(own, bounds.l2, bounds.rejects_l2)
    of_round = math.inf if spec.clip is None or spec.clip.l2 is None else spec.clip.l2
    shared_factor = _factor(shared, of_round, spec.clip is not None and spec.clip.on_clip == "reject")
    scaled = {
        name: {key: [factors.get(name, shared_factor) * v for v in row] for key, row in folded.items()}
        for name, folded in rows.items()
    }
    smallest = min([factors.get(name, shared_factor) for name in rows], default=1.0)
    return Clipped(scaled, smallest, any_linf, any_max_keys)
