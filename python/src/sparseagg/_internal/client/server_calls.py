"""How a client calls its servers: where they are, over which channels, when again, and with what error in the end."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, SupportsIndex, TypeVar

import grpc

from sparseagg._internal.base.arguments import NAME, checked_text, shown
from sparseagg._internal.base.credentials import Headers, TLSArgument, TokenArgument, channel_credentials
from sparseagg._internal.base.text import plain
from sparseagg._internal.client.channels import (
    ChannelPool,
    addresses_of,
    channel_options,
    checked_address,
    checked_connections,
)
from sparseagg._internal.client.obstacles import Obstacle, find_obstacle, has_not_connected, may_look
from sparseagg._internal.client.retry import (
    Resumption,
    Retries,
    RetryPolicy,
    earliest,
    error_from_call,
    is_own_deadline,
    pause_after,
    seconds_to,
)
from sparseagg._internal.client.transport import Transport
from sparseagg._internal.wire.encode import ServerWire
from sparseagg.errors import DeadlineExceededError, FailedPreconditionError, InvalidArgumentError

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


T = TypeVar("T")

# How long to look for what keeps a call from its server: within the call's time, or so much longer.
_LOOK_S = 5.0
_LATE_LOOK_S = 0.25


class _Failure(NamedTuple):
    """A failed attempt: gRPC's text, and whether there was no connection."""

    details: str
    is_unconnected: bool


@dataclasses.dataclass(frozen=True)
class _Server:
    """One server of a client's address.

    Attributes:
        address: "host:port" or "unix:path".
        channels: to the server.
        headers: of calls.
        may_look: whether to look what keeps calls from the server.
    """

    address: str
    channels: ChannelPool
    headers: Headers
    may_look: bool

    @classmethod
    def of(
        cls, address: str, endpoint: Endpoint, transport: Transport, credentials: grpc.ChannelCredentials | None
    ) -> _Server:
        """Returns the server at an address, to which no channel is open yet."""
        options = channel_options(address, endpoint.options)
        channels = ChannelPool(
            lambda: transport.open_channel(address, credentials, options), checked_connections(endpoint.connections)
        )
        headers = Headers(endpoint.token, endpoint.tenant, address, credentials is None, endpoint.insecure_token)
        return cls(address, channels, headers, may_look(address, bool(dict(options)["grpc.enable_http_proxy"])))


class ServerCalls:
    """The servers of one client's address, and attempts to call them until one of them answers.

    Calls go to one server, and to the next one where that cannot be reached. Attributes: see ``Connection``.
    """

    def __init__(self, endpoint: Endpoint, transport: Transport) -> None:
        self.endpoint = endpoint
        self.transport = transport
        self.retry = endpoint.retry or RetryPolicy()
        self.deadline: float | None = None
        self.has_reached = False
        self._server_wire: ServerWire | None = None  # None: unknown, or out of date
        of_tls = channel_credentials(endpoint.tls)
        self._has_tls = of_tls is not None
        self._servers = [_Server.of(address, endpoint, transport, of_tls) for address in addresses_of(endpoint.address)]
        self._server = self._servers[0]  # that calls go to; the next one where a server cannot be reached
        self._left: list[_Server] = []  # where the server was before; calls may still be under way there

    async def _close_channels(self) -> None:
        for server in [*self._servers, *self._left]:
            for channel in server.channels.close():
                await self.transport.close_channel(channel)

    async def _retried(
        self,
        attempt: Callable[[], Coroutine[Any, Any, T]],
        deadline: float | None = None,
        retries: Retries | Resumption | None = None,
        patient: bool = False,
        late: str = "",
    ) -> T:
        """Repeats ``attempt`` until it succeeds, ``retries`` gives no further wait, or the deadline is there.

        ``late`` begins the text of the error if the deadline ends the attempts. The rest is why the last attempt failed
        that had the time for an answer.

        A client that has not reached its server yet does not wait for one where nothing listens, unless it has a retry
        policy of its own, nor where something else does.
        """
        self.transport.check_thread()
        retries = retries or Retries(self.retry)
        before: _Failure | None = None  # of the last attempt, without the call, which holds the update
        others = len(self._servers) - 1  # that have not been tried yet
        while True:
            try:
                answer = await self.transport.attempt(attempt())
                self.has_reached = True
                return answer
            except DeadlineExceededError as error:  # of named_if_late
                if before is None:
                    raise
                raise DeadlineExceededError(f"{error}: {await self._text(before, deadline)}") from None
            except grpc.RpcError as call_error:
                self._forget_server_after(call_error)
                if call_error.code() is grpc.StatusCode.UNAVAILABLE and len(self._servers) > 1:
                    self._use_next_server()
                    others -= 1
                    if others >= 0:
                        continue
                if call_error.code() is grpc.StatusCode.UNAVAILABLE:
                    await self._follow_server(deadline)
                wait = retries.wait_after(call_error)
                failure = _Failure(plain(call_error.details() or call_error.code().name), has_not_connected(call_error))
                obstacle = None
                if failure.is_unconnected and not self.has_reached:
                    obstacle = await self._obstacle(failure, deadline)
                    if obstacle is not None and not (obstacle.is_absence and self.endpoint.retry):
                        wait = None
                elif call_error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    self.has_reached = True
                pause, again = pause_after(wait, deadline, patient)
                await self.transport.sleep(pause)
                if not again:
                    is_late = wait is not None
                    if before is not None and is_own_deadline(call_error):
                        failure, is_late = before, True
                    text = await self._text(failure, deadline, obstacle)
                    # Not "from call_error": a traceback would show a server's text as the server sent it.
                    if is_late:
                        raise DeadlineExceededError(f"{late}{text}") from None
                    raise error_from_call(call_error, text, obstacle) from None
                before = failure

    async def _text(self, failure: _Failure, deadline: float | None, obstacle: Obstacle | None = None) -> str:
        """Returns the text of the error for a failed call; ``obstacle`` has kept it from its server, if it is known."""
        obstacle = obstacle or await self._obstacle(failure, deadline)
        return failure.details if obstacle is None else f"{obstacle.text} ({failure.details})"

    async def _obstacle(self, failure: _Failure, deadline: float | None) -> Obstacle | None:
        """Looks for what has kept a call from its server; None if nothing has, or if that cannot be told."""
        if not failure.is_unconnected or not self._server.may_look:
            return None
        look_s = max(_LATE_LOOK_S, min(_LOOK_S, seconds_to(deadline)))
        return await self.transport.convert(find_obstacle, self._server.address, self._has_tls, failure.details, look_s)

    def _own_deadline(self, wait_s: float = 0.0, deadline: float | None = None) -> float | None:
        """Returns the deadline of a call that begins now; ``deadline`` is that of the operation, if it has one."""
        timeout = self.endpoint.timeout
        own = None if timeout is None else time.monotonic() + timeout + wait_s
        return earliest(own, self.deadline) if deadline is None else own

    async def _answer(self, method: Any, request: Any, timeout: float | None) -> Any:
        return await self.transport.answer(method(request, timeout=timeout, metadata=self._server.headers()))

    async def _follow_server(self, deadline: float | None) -> None:
        """Sends further calls to where the server is now, if it can start elsewhere and has done so."""
        if self.endpoint.locate is None:
            return
        address = await self.transport.convert(self.endpoint.locate, seconds_to(deadline))
        if address is None or address == self.endpoint.address:
            return
        self.endpoint = dataclasses.replace(self.endpoint, address=address)
        server = _Server.of(address, self.endpoint, self.transport, channel_credentials(self.endpoint.tls))
        self._left += self._servers
        self._servers, self._server, self._server_wire = [server], server, None

    def _use_next_server(self) -> None:
        """Sends further calls to the server behind the present one in the client's address."""
        self._server = self._servers[(self._servers.index(self._server) + 1) % len(self._servers)]
        self._server_wire = None

    def _forget_server_after(self, error: grpc.RpcError) -> None:
        """Lets the server be asked again for its limits, when another server, with lower limits, may have answered."""
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED):
            self._server_wire = None
