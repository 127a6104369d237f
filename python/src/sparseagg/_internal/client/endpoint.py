"""Where a client's servers are, and how it shows them who it is: addresses, handles of rounds, TLS."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex

import grpc

from sparseagg._internal.base.arguments import NAME, checked_text, did_you_mean, shown
from sparseagg._internal.base.credentials import TLS, Path, TLSArgument, TokenArgument
from sparseagg.errors import FailedPreconditionError, InvalidArgumentError

if TYPE_CHECKING:
    from typing_extensions import Self

    from sparseagg._internal.client.connection import Connection
    from sparseagg._internal.client.memory_connection import MemoryConnection
    from sparseagg._internal.client.retry import RetryPolicy

_HOST_AND_PORT = re.compile(r"(\[[^]\s]+\]|[^][:/\s]+):(\d{1,5})")


# gRPC's other ways to name a server. gRPC asks the name service for a host with the name of any other scheme.
_SCHEMES = re.compile(r"(dns|ipv4|ipv6|unix|vsock|xds):")


def checked_address(address: Any, what: str = "an address") -> str:
    """Returns a server's address; ``InvalidArgumentError`` for none, which names ``what``.

    gRPC would look for it, or for a port of gRPC's choice, until the last retry.
    """
    text = checked_text(what, address)
    if all(_SCHEMES.match(each) or host_and_port(each) for each in addresses_of(text)):
        return text
    nearest = did_you_mean(text, (":local:", MEMORY)) if text.startswith(":") else ""
    raise InvalidArgumentError(f'{what} must be "host:port", such as "localhost:8001", got {shown(address)}{nearest}')


def addresses_of(address: str) -> list[str]:
    """Returns the addresses of several servers, which commas divide; gRPC's own schemes have their own commas."""
    return [address] if _SCHEMES.match(address) else address.split(",")


def host_and_port(address: str) -> tuple[str, int] | None:
    """Returns the parts of "host:port", the host without brackets; None for an address of another form."""
    match = _HOST_AND_PORT.fullmatch(address)
    if match is None or not 0 < int(match[2]) < 1 << 16:
        return None
    return match[1].strip("[]"), int(match[2])


MEMORY = ":memory:"


_SCHEME = "sparseagg://"


# An id has no slash, so the last "/rounds/" or "/models/" ends the address, which may have slashes.
_HANDLE = re.compile(rf"{_SCHEME}(?P<address>.+)/(?P<name>(?P<kind>rounds|models)/{NAME})")


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """The address and the other arguments of a client. Its pickle makes an equal client, also in another process.

    The other attributes are the arguments of ``sparseagg.Client``.
    """

    address: str  # "host:port" or "unix:path", also of the server that a client of ":local:" has started; or ":memory:"
    public_address: str | None = None  # the address in handles; None: ``address``
    token: TokenArgument = dataclasses.field(default=None, repr=False)
    tls: TLSArgument = None
    timeout: float | None = None
    retry: RetryPolicy | None = None
    chunk_bytes: SupportsIndex | None = None
    connections: SupportsIndex = 4
    options: list[tuple[str, Any]] | None = None
    tenant: str | None = None
    insecure_token: bool = False
    # of a server that may start again at another address: returns where it is now, after so many seconds at most, or
    # None if that is not known. Clients ask it when a call does not reach the server.
    locate: Callable[[float], str | None] | None = dataclasses.field(default=None, repr=False)

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments of the client's class, by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "locate"}

    def handle(self, name: str) -> str:
        """Returns the handle of a round or model; ``FailedPreconditionError`` if other processes cannot reach it."""
        if self.address == MEMORY:
            kind = name.partition("s/")[0]
            raise FailedPreconditionError(
                f'a {kind} of "{MEMORY}" has no handle, for no other process can reach it; a {kind} of ":local:" or of '
                "another server has one"
            )
        return f"{_SCHEME}{self.public_address or self.address}/{name}"

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


def parsed_handle(kind: str, handle: Any) -> tuple[str, str]:
    """Returns the address and the name that a handle has; ``kind``: "rounds" or "models". ``InvalidArgumentError`` if
    this is no such handle.
    """
    match = _HANDLE.fullmatch(checked_text("a handle", handle))
    if match is None or match["kind"] != kind:
        owner = kind.capitalize()[:-1]
        raise InvalidArgumentError(
            f'a handle must be "{_SCHEME}host:port/{kind}/ID", as of {owner}.handle, got {shown(handle)}'
        )
    return checked_address(match["address"]), match["name"]


class Handled:
    """What rounds and models have in common: other processes find them by their handles."""

    _KIND: ClassVar[str]  # "rounds" or "models"
    name: str
    _connection: Connection | MemoryConnection
    _owns_connection = False

    @property
    def handle(self) -> str:
        """A string by which other processes find this: ``from_handle``."""
        return self._connection.endpoint.handle(self.name)

    @classmethod
    async def from_handle(cls, handle: str, **options: Any) -> Self:
        """Returns what a handle names, with a connection of its own; see ``sparseagg.Round.from_handle``.

        ``async with await Round.from_handle(handle) as rnd`` closes that connection at the end; the round stays open.
        """
        from sparseagg._internal.client.async_client import Client, of_handle  # which imports this module

        return await of_handle(cls._KIND, handle, Client, options)  # type: ignore[no-any-return]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._release()

    async def _release(self) -> None:
        """Closes the connection of what comes from ``from_handle`` or from a pickle; what is on the server stays.

        Without effect for what comes from a client, whose connection is the client's. A ``with`` statement does the
        same. A round that is no longer used releases its connection by itself.
        """
        if self._owns_connection:
            await self._connection.close()


# Of TLS: paths of PEM files. The first may also be _SYSTEM, for the system's authorities.
_CA, _CERTIFICATE, _KEY = (f"SPARSEAGG_TLS_{what}" for what in ("CA", "CERTIFICATE", "KEY"))
_SYSTEM = "system"


def channel_credentials(tls: TLSArgument) -> grpc.ChannelCredentials | None:
    """Returns the credentials of a channel; None for a plain one.

    Raises ``InvalidArgumentError`` for what ``TLSArgument`` does not list, or a file without a certificate or a key;
    OSError for one that cannot be read.
    """
    if tls is None:
        tls = _tls_of_environment()
    if tls is False:
        return None
    if isinstance(tls, grpc.ChannelCredentials):
        return tls
    if tls is True:
        tls = TLS()
    elif isinstance(tls, os.PathLike) or (isinstance(tls, str) and tls):
        tls = TLS(ca=tls)
    if not isinstance(tls, TLS):
        raise InvalidArgumentError(
            f"tls must be False, True, the path of a PEM file, a TLS, credentials of gRPC, or None, got {shown(tls)}"
        )
    return grpc.ssl_channel_credentials(
        _pem(tls.ca, "certificate"), _pem(tls.key, "private key"), _pem(tls.certificate, "certificate")
    )


def _tls_of_environment() -> TLS | bool:
    ca, certificate, key = (os.environ.get(name) or None for name in (_CA, _CERTIFICATE, _KEY))
    if (certificate is None) != (key is None):
        raise InvalidArgumentError(f"{_CERTIFICATE} and {_KEY} go together: set both, or neither")
    tls = TLS(None if ca == _SYSTEM else ca, certificate, key)
    return tls if ca == _SYSTEM or tls != TLS() else False


def _pem(path: Path | None, what: str) -> bytes | None:
    if path is None:
        return None
    try:
        pem = pathlib.Path(path).read_bytes()
    except ValueError as error:  # no name of a file, as with a lone surrogate or NUL
        raise InvalidArgumentError(f"tls: {shown(path)} cannot be the name of a file: {error}") from error
    if not re.search(rb"-----BEGIN [A-Z ]*" + what.upper().encode(), pem):  # gRPC would look for it at every attempt
        raise InvalidArgumentError(f"tls: {os.fspath(path)} has no {what} in PEM")
    return pem
