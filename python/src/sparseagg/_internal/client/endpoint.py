"""Where a client's server is and how the client connects to it; and handles, which name a round and its server."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any, SupportsIndex

import grpc

from sparseagg._internal.base.arguments import checked_text, shown
from sparseagg._internal.base.credentials import TLSArgument, TokenArgument
from sparseagg._internal.base.ids import NAME
from sparseagg._internal.client.channel import checked_address
from sparseagg._internal.client.retry import RetryPolicy
from sparseagg.errors import FailedPreconditionError, InvalidArgumentError

__all__ = ["MEMORY", "Endpoint", "parsed_handle"]

MEMORY = ":memory:"

_SCHEME = "sparseagg://"
# The id of a round has no slash, so the last "/rounds/" ends the address, which may have slashes.
_HANDLE = re.compile(rf"{_SCHEME}(?P<address>.+)/(?P<name>rounds/{NAME})")


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """The address and the other arguments of a client. Its pickle makes an equal client, also in another process.

    Attributes:
        address: "host:port" or "unix:path", also of the server that a client of ":local:" has started; or ":memory:".
        public_address: the address in handles; None: ``address``.
        locate: of a server that may start again at another address: returns where it is now, after so many seconds at
            most, or None if that is not known. Clients ask it when a call does not reach the server.

    The other attributes are the arguments of ``sparseagg.Client``.
    """

    address: str
    public_address: str | None = None
    token: TokenArgument = dataclasses.field(default=None, repr=False)
    tls: TLSArgument = None
    timeout: float | None = None
    retry: RetryPolicy | None = None
    chunk_bytes: SupportsIndex | None = None
    connections: SupportsIndex = 4
    options: list[tuple[str, Any]] | None = None
    tenant: str | None = None
    insecure_token: bool = False
    locate: Callable[[float], str | None] | None = dataclasses.field(default=None, repr=False)

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments of the client's class, by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "locate"}

    def handle(self, round_name: str) -> str:
        """Returns the handle of a round; ``FailedPreconditionError`` if other processes cannot reach the round."""
        if self.address == MEMORY:
            raise FailedPreconditionError(
                f'a round of "{MEMORY}" has no handle, for no other process can reach it; a round of ":local:" or of '
                "another server has one"
            )
        return f"{_SCHEME}{self.public_address or self.address}/{round_name}"

    def __reduce__(self) -> tuple[Any, ...]:
        if self.address == MEMORY:
            raise FailedPreconditionError(
                f'a client of "{MEMORY}" and its rounds cannot be pickled, for no other process can reach the rounds; '
                'those of ":local:" or of another server can'
            )
        if isinstance(self.tls, grpc.ChannelCredentials):
            raise FailedPreconditionError(
                "a client with credentials of gRPC and its rounds cannot be pickled, for the credentials cannot; those "
                "of a client with tls=True, tls=PATH or a TLS can"
            )
        return Endpoint, (*self.arguments().values(), self.locate)


def parsed_handle(handle: Any) -> tuple[str, str]:
    """Returns address and name of a handle's round.

    Raises:
        InvalidArgumentError: this is no handle.
    """
    match = _HANDLE.fullmatch(checked_text("a handle", handle))
    if match is None:
        raise InvalidArgumentError(
            f'a handle must be "{_SCHEME}host:port/rounds/ID", as of Round.handle, got {shown(handle)}'
        )
    return checked_address(match["address"]), match["name"]
