"""Bounds on what one submission may add to a round."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from sparseagg._internal.base.arguments import shown
from sparseagg._internal.base.types import OnClip
from sparseagg._internal.spec.options import set_fields
from sparseagg.errors import InvalidArgumentError
from sparseagg.v1 import aggregation_pb2 as pb

__all__ = ["ClipSpec", "checked_clip"]

_WORDS = {"clip": pb.CLIP_POLICY_CLIP, "reject": pb.CLIP_POLICY_REJECT}
_BOUNDS = ("l2", "linf", "max_keys")


@dataclasses.dataclass(frozen=True)
class ClipSpec:
    """Bounds on each submission, so that no client can add more to a round than they allow.

        sa.RoundSpec(tensors, op="mean", clip=sa.ClipSpec(l2=1.0))  # scales each submission to an L2 norm of 1 at most

    They are for tensors of floats with values, and applied before the weight. First the rows of a repeated key are
    added up, then ``max_keys`` rows are kept, values are clamped to ±``linf``, and the submission is multiplied by
    min(1, ``l2`` / its norm). A submission within the bounds counts as if there were none. docs/robust.md has the
    rules.

    Args:
        l2: the largest L2 norm. Of a round: of all tensors together that have no ``l2`` of their own. Of a tensor: of
            it alone; ``math.inf``: it has no such bound.
        linf: the largest magnitude of a value. Of a tensor, ``math.inf``: it has no such bound.
        max_keys: of each sparse tensor, so many rows of largest L2 norm are kept; of equal ones, the lower keys. Of a
            tensor, 0: it has no such bound.
        on_clip: "clip" (default), or "reject" to refuse a submission beyond a bound.

    Raises:
        InvalidArgumentError: a value is of a wrong type, or a word unknown. Ranges are checked with the round.
    """

    l2: float | None = None
    linf: float | None = None
    max_keys: int | None = None
    on_clip: OnClip | None = None

    def __post_init__(self) -> None:
        if self.on_clip is not None and self.on_clip not in _WORDS:
            raise InvalidArgumentError(f"unknown on_clip {self.on_clip!r}; known: {', '.join(_WORDS)}")
        self.to_proto()

    def to_proto(self) -> pb.ClipSpec:
        """Returns the message. Fields of None stay unset."""
        proto = pb.ClipSpec(on_clip=_WORDS.get(self.on_clip or "", pb.CLIP_POLICY_UNSPECIFIED))
        set_fields(proto, self, _BOUNDS, "clip.")
        return proto

    @classmethod
    def from_proto(cls, proto: pb.ClipSpec) -> ClipSpec:
        """Returns the bounds of a message."""
        words: dict[int, Any] = {number: word for word, number in _WORDS.items()}
        given: dict[str, Any] = {field: getattr(proto, field) for field in _BOUNDS if proto.HasField(field)}
        return cls(**given, on_clip=words.get(proto.on_clip))

    def bounds(self) -> dict[str, Any]:
        """Returns the fields as the extension takes them, in the types of the message."""
        proto = self.to_proto()
        given = {field: getattr(proto, field) if proto.HasField(field) else None for field in _BOUNDS}
        return {**given, "on_clip": self.on_clip}

    def covers(self, other: ClipSpec | None) -> bool:
        """Returns whether, as a round's bounds, they bound a tensor with bounds of its own, or None."""
        own = other or ClipSpec()
        first = [a if a is not None else b for a, b in zip(own._bounds(), self._bounds())]
        return any(bound not in (None, math.inf, 0) for bound in first)

    def _bounds(self) -> list[float | None]:
        return [self.l2, self.linf, self.max_keys]


def checked_clip(clip: Any) -> ClipSpec | None:
    """Returns ``clip``; ``InvalidArgumentError`` if it is neither a ``ClipSpec`` nor None."""
    if clip is None or isinstance(clip, ClipSpec):
        return clip
    raise InvalidArgumentError(f"clip must be a ClipSpec, got {shown(clip)}")
