"""Differential privacy of the results of a round. Experimental."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, SupportsIndex

from sparseagg._internal.base.arguments import shown
from sparseagg._internal.base.types import KeySelection
from sparseagg._internal.spec.options import set_fields
from sparseagg.errors import InvalidArgumentError
from sparseagg.v1 import aggregation_pb2 as pb

__all__ = ["DP", "checked_privacy"]

_WORDS = {
    "public": pb.KEY_SELECTION_PUBLIC,
    "weighted_gaussian": pb.KEY_SELECTION_WEIGHTED_GAUSSIAN,
    "count_gaussian": pb.KEY_SELECTION_COUNT_GAUSSIAN,
    "truncated_geometric": pb.KEY_SELECTION_TRUNCATED_GEOMETRIC,
}
_OPTIONAL = ("key_noise_multiplier", "key_epsilon", "delta")


@dataclasses.dataclass(frozen=True)
class DP:
    """Differential privacy of a round's results, for one submission more or less. Experimental: not reviewed outside.

        sa.RoundSpec(
            tensors,
            op="mean", mean_divisor="fixed", fixed_divisor=1000, numerics="fixed_point", max_submissions=2000,
            clip=sa.ClipSpec(l2=1.0, max_keys=5000),
            privacy=sa.DP(noise_multiplier=1.0, key_noise_multiplier=1.0, delta=1e-6),
        )

    Readers of results learn little of any one submission; the server and the coordinator learn all of it. What a round
    costs in ε is what ``PrivacyLedger`` says. docs/privacy.md has the guarantee, the rules and the price.

    Args:
        noise_multiplier: standard deviation of the noise on values, in units of what one submission can add:
            ``clip.l2``, times ``weight_bound`` where weights count.
        keys: how the keys of sparse tensors are chosen. "weighted_gaussian" (default), "count_gaussian" (which can
            return noisy counts, and takes the op "coordinate_mean"), "truncated_geometric" (for ``clip.max_keys`` up to
            10): among those that submissions have, by noisy scores. "public": all of ``public_keys``.
        key_noise_multiplier: of the two Gaussian selections: the noise on scores, likewise.
        key_epsilon: of "truncated_geometric".
        delta: of the selections: the probability that keys of one submission alone are shown.
        public_keys: of "public": by tensor, the keys of its result. A tensor that is not named has all its rows.

    Raises:
        InvalidArgumentError: a value is of a wrong type, or a word unknown. Ranges are checked with the round.
    """

    noise_multiplier: float
    keys: KeySelection = "weighted_gaussian"
    key_noise_multiplier: float | None = None
    key_epsilon: float | None = None
    delta: float | None = None
    public_keys: Mapping[str, Iterable[SupportsIndex]] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.keys, str) or self.keys not in _WORDS:
            raise InvalidArgumentError(f"unknown privacy.keys {shown(self.keys)}; known: {', '.join(_WORDS)}")
        if self.public_keys is not None and not isinstance(self.public_keys, Mapping):
            raise InvalidArgumentError(f"privacy.public_keys must map tensors to keys, got {shown(self.public_keys)}")
        listed = {name: tuple(keys) for name, keys in sorted((self.public_keys or {}).items())}
        object.__setattr__(self, "public_keys", listed)
        self.to_proto()

    def __hash__(self) -> int:
        return hash(self.to_proto().SerializeToString(deterministic=True))

    def to_proto(self) -> pb.PrivacySpec:
        """Returns the message. Fields of None stay unset."""
        proto = pb.PrivacySpec(keys=_WORDS[self.keys])
        set_fields(proto, self, ("noise_multiplier", *_OPTIONAL), "privacy.")
        for name, keys in (self.public_keys or {}).items():
            try:
                proto.public_keys.add(tensor=name, keys=keys)
            except (TypeError, ValueError) as error:
                raise InvalidArgumentError(f"privacy.public_keys of {shown(name)} cannot be {shown(keys)}") from error
        return proto

    @classmethod
    def from_proto(cls, proto: pb.PrivacySpec) -> DP:
        """Returns the options of a message."""
        words: dict[int, Any] = {number: word for word, number in _WORDS.items()}
        given: dict[str, Any] = {field: getattr(proto, field) for field in _OPTIONAL if proto.HasField(field)}
        return cls(
            proto.noise_multiplier,
            words.get(proto.keys, "weighted_gaussian"),
            **given,
            public_keys={entry.tensor: tuple(entry.keys) for entry in proto.public_keys},
        )

    def options(self) -> dict[str, Any]:
        """Returns the fields as the extension takes them, in the types of the message."""
        proto = self.to_proto()
        given = {field: getattr(proto, field) if proto.HasField(field) else None for field in _OPTIONAL}
        listed = {entry.tensor: list(entry.keys) for entry in proto.public_keys}
        return {"noise_multiplier": proto.noise_multiplier, "keys": self.keys, **given, "public_keys": listed}


def checked_privacy(privacy: Any) -> DP | None:
    """Returns ``privacy``; ``InvalidArgumentError`` if it is neither a ``DP`` nor None."""
    if privacy is None or isinstance(privacy, DP):
        return privacy
    raise InvalidArgumentError(f"privacy must be a DP, got {shown(privacy)}")
