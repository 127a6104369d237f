"""Parts of a spec: bounds on submissions, the privacy that rests on them, and the servers of a cluster."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any, SupportsIndex, TypeVar

from sparseagg._internal.base.arguments import checked_integer, checked_text, shown
from sparseagg._internal.base.fields import read, words, write
from sparseagg._internal.base.types import KeySelection, OnClip
from sparseagg.errors import InvalidArgumentError
from sparseagg.v1 import aggregation_pb2 as pb

_Class = TypeVar("_Class")
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
        self._to_proto()

    def _to_proto(self) -> pb.ClipSpec:
        """Returns the message. Fields of None stay unset."""
        proto = pb.ClipSpec()
        write(proto, vars(self), "clip.")
        return proto

    @classmethod
    def _from_proto(cls, proto: pb.ClipSpec) -> ClipSpec:
        """Returns the bounds of a message."""
        return read(cls, proto, on_clip=_word(pb.ClipPolicy, proto.on_clip, None))

    def covers(self, other: ClipSpec | None) -> bool:
        """Returns whether, as a round's bounds, they bound a tensor with bounds of its own, or None."""
        own = other or ClipSpec()
        pairs = ((getattr(own, name), getattr(self, name)) for name in _BOUNDS)
        return any((b if a is None else a) not in (None, math.inf, 0) for a, b in pairs)


@dataclasses.dataclass(frozen=True)
class PrivacySpec:
    """Differential privacy of a round's results, for one submission more or less. Experimental: not reviewed outside.

        sa.RoundSpec(
            tensors,
            op="mean", mean_divisor="fixed", fixed_divisor=1000, max_submissions=2000,
            clip=sa.ClipSpec(l2=1.0, max_keys=5000),
            privacy=sa.PrivacySpec(noise_multiplier=1.0, key_noise_multiplier=1.0, delta=1e-6),
        )

    Readers of results learn little of any one submission; the server and the coordinator learn all of it. What a round
    costs in ε is what ``PrivacyLedger`` says. docs/privacy.md has the guarantee, the rules and the price.

    Args:
        noise_multiplier: standard deviation of the noise on values, in units of what one submission can add:
            ``clip.l2``, times ``weight_bound`` where weights count.
        keys: how the keys of sparse tensors are chosen. "weighted_gaussian" (default), "count_gaussian" (which can
            return noisy counts, and takes the op "coordinate_mean"): among those that submissions have, by noisy
            scores. "public": all of ``public_keys``.
        key_noise_multiplier: of the two Gaussian selections: the noise on scores, likewise.
        delta: of the selections: the probability that keys of one submission alone are shown.
        public_keys: of "public": by tensor, the keys of its result. A tensor that is not named has all its rows.
        weight_bound: the largest weight, which the weighting "by_weight" needs; larger ones are refused.

    Raises:
        InvalidArgumentError: a value is of a wrong type, or a word unknown. Ranges are checked with the round.
    """

    noise_multiplier: float
    keys: KeySelection = "weighted_gaussian"
    key_noise_multiplier: float | None = None
    delta: float | None = None
    public_keys: Mapping[str, Iterable[SupportsIndex]] | None = None
    weight_bound: float | None = None

    def __post_init__(self) -> None:
        if self.public_keys is not None and not isinstance(self.public_keys, Mapping):
            raise InvalidArgumentError(f"privacy.public_keys must map tensors to keys, got {shown(self.public_keys)}")
        listed = {name: tuple(keys) for name, keys in sorted((self.public_keys or {}).items())}
        object.__setattr__(self, "public_keys", listed)
        self._to_proto()

    def __hash__(self) -> int:
        return hash(self._to_proto().SerializeToString(deterministic=True))

    def _to_proto(self) -> pb.PrivacySpec:
        """Returns the message. Fields of None stay unset."""
        proto = pb.PrivacySpec()
        write(proto, {name: value for name, value in vars(self).items() if name != "public_keys"}, "privacy.")
        for name, keys in (self.public_keys or {}).items():
            try:
                proto.public_keys.add(tensor=name, keys=keys)
            except (TypeError, ValueError) as error:
                raise InvalidArgumentError(f"privacy.public_keys of {shown(name)} cannot be {shown(keys)}") from error
        return proto

    @classmethod
    def _from_proto(cls, proto: pb.PrivacySpec) -> PrivacySpec:
        """Returns the options of a message."""
        keys = _word(pb.KeySelection, proto.keys, "weighted_gaussian")
        public_keys = {entry.tensor: tuple(entry.keys) for entry in proto.public_keys}
        return read(cls, proto, keys=keys, public_keys=public_keys)


def checked(kind: type[_Class], field: str, value: Any) -> _Class | None:
    """Returns ``value``; ``InvalidArgumentError`` if it is neither of the class nor None."""
    if value is None or isinstance(value, kind):
        return value
    raise InvalidArgumentError(f"{field} must be a {kind.__name__} or None, got {shown(value)}")


def _word(enum: Any, number: int, default: Any) -> Any:
    """Returns our name of an enumerator; the default for the number 0, and for one of a later release."""
    return {known: word for word, known in words(enum.DESCRIPTOR).items()}.get(number, default)


_64_BITS = (1 << 64) - 1


@dataclasses.dataclass(frozen=True)
class HomeServer:
    """One server of a cluster's round.

    Attributes:
        address: "host:port" for this client.
        http_url: "http://host:port" of the server's HTTP gateway, for curl and browsers; None: it has none.
        instance: ``ServerInfo.instance`` when the round was created; "": not known.
    """

    address: str
    http_url: str | None = None
    instance: str = ""


@dataclasses.dataclass(frozen=True)
class ClusterSpec:
    """Which servers take the submissions of a round together. ``sparseagg.cluster`` makes it.

    Attributes:
        servers: all of them, in the same order on each server.
        index: which of them the round's server is.

    Raises:
        InvalidArgumentError: there is no server, or ``index`` is not one of them.
    """

    servers: tuple[HomeServer, ...]
    index: int = 0

    def __post_init__(self) -> None:
        servers = tuple(self.servers) if isinstance(self.servers, Iterable) else ()
        if not servers or not all(isinstance(server, HomeServer) for server in servers):
            raise InvalidArgumentError(f"servers must be a list of HomeServer, got {shown(self.servers)}")
        for server in servers:
            checked_text("address", server.address)
        index = checked_integer("index must be that of one of the servers", self.index, 0, len(servers) - 1)
        object.__setattr__(self, "servers", servers)
        object.__setattr__(self, "index", index)

    def _to_proto(self) -> pb.ClusterSpec:
        """Returns the message."""
        servers = [
            pb.HomeServer(address=each.address, http_url=each.http_url or "", instance=each.instance)
            for each in self.servers
        ]
        return pb.ClusterSpec(servers=servers, index=self.index)

    @classmethod
    def _from_proto(cls, proto: pb.ClusterSpec) -> ClusterSpec:
        """Returns the spec of a message."""
        homes = (HomeServer(each.address, each.http_url or None, each.instance) for each in proto.servers)
        return cls(tuple(homes), proto.index)


def home_of(client_id: str, num_servers: int) -> int:
    """Returns the index of a client's home: that of the largest mix of index and hash of the id (rendezvous hashing).

    With one server more at the end of the list, only the clients that this server gets have another home. Servers
    (service/rounds/round_config.cc) and js/sparseagg.js compute the same.
    """
    hashed = 0xCBF29CE484222325  # FNV-1a
    for byte in client_id.encode():
        hashed = (hashed ^ byte) * 0x100000001B3 & _64_BITS
    return max(range(num_servers), key=lambda index: _mix(hashed ^ (index + 1) * 0x9E3779B97F4A7C15 & _64_BITS))


def _mix(bits: int) -> int:
    """The finalizer of MurmurHash3."""
    bits = (bits ^ bits >> 33) * 0xFF51AFD7ED558CCD & _64_BITS
    bits = (bits ^ bits >> 33) * 0xC4CEB9FE1A85EC53 & _64_BITS
    return bits ^ bits >> 33
