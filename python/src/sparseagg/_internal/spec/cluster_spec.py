"""The servers of a cluster's round, and the home of each client among them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from sparseagg._internal.base.arguments import checked_integer, checked_text, shown
from sparseagg.errors import InvalidArgumentError
from sparseagg.v1 import aggregation_pb2 as pb

__all__ = ["ClusterSpec", "HomeServer", "home_of"]

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

    def to_proto(self) -> pb.ClusterSpec:
        """Returns the message."""
        servers = [
            pb.HomeServer(address=each.address, http_url=each.http_url or "", instance=each.instance)
            for each in self.servers
        ]
        return pb.ClusterSpec(servers=servers, index=self.index)

    @classmethod
    def from_proto(cls, proto: pb.ClusterSpec) -> ClusterSpec:
        """Returns the spec of a message."""
        homes = (HomeServer(each.address, each.http_url or None, each.instance) for each in proto.servers)
        return cls(tuple(homes), proto.index)


def home_of(client_id: str, num_servers: int) -> int:
    """Returns the index of a client's home: that of the largest mix of index and hash of the id (rendezvous hashing).

    With one server more at the end of the list, only the clients that this server gets have another home. Servers
    (service/rounds/home_servers.cc) and js/sparseagg.js compute the same.
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
