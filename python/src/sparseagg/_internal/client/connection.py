"""The calls of a client to its servers: over which channels, when again, and with what error in the end."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

import grpc

from sparseagg._internal.base.credentials import is_local
from sparseagg._internal.base.text import plain
from sparseagg._internal.client.channels import ChannelPool, Headers, channel_options, checked_connections
from sparseagg._internal.client.endpoint import Endpoint, addresses_of, channel_credentials, host_and_port
from sparseagg._internal.client.obstacles import Obstacle, find_obstacle, has_not_connected, may_look
from sparseagg._internal.client.progress import ProgressBar
from sparseagg._internal.client.result_reader import ResultReader
from sparseagg._internal.client.retry import (
    Resumption,
    Retries,
    RetryPolicy,
    call_seconds,
    earliest,
    error_from_call,
    is_own_deadline,
    named_if_late,
    no_answer,
    pause_after,
    seconds_to,
)
from sparseagg._internal.client.transport import Transport
from sparseagg._internal.client.upload import Upload, aggregate_requests, counted, streamed
from sparseagg._internal.results.info import RoundInfo, Submission
from sparseagg._internal.results.server_info import ServerInfo
from sparseagg._internal.spec.bounds import home_of
from sparseagg._internal.spec.round_spec import RoundSpec
from sparseagg._internal.updates.contributors import Batch
from sparseagg._internal.wire.encode import ServerWire, checked_chunk_bytes, encode_batch
from sparseagg.errors import (
    AbortedError,
    DeadlineExceededError,
    FailedPreconditionError,
    NotFoundError,
)
from sparseagg.v1 import aggregation_pb2 as pb

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
    """One server of a client's address."""

    address: str  # "host:port" or "unix:path"
    channels: ChannelPool  # to the server
    headers: Headers  # of calls
    may_look: bool  # whether to look what keeps calls from the server

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


class Connection:
    """The channels of one client to its servers, and the calls over them, repeated until one of the servers answers.

    Calls go to one server, and to the next one of the client's address where that cannot be reached.

    A client owns its connection and shares it with its rounds, until ``close``. All methods wait through the transport
    alone. Thread-safe with a ``BlockingTransport``; for one event loop with an ``AsyncioTransport``.

    Deadlines are times on ``time.monotonic``'s clock; None is no limit. A method with a deadline gives up at that time,
    whatever number of retries is left. All methods that call the server raise the ``SparseaggError`` of its answer.

    Attributes:
        endpoint: the server, and the client's arguments.
        transport: how to wait.
        retry: when to repeat calls.
        deadline: of all operations that are given none.
        has_reached: whether there is, or was, a server at the other end, so that one that is missing restarts.

    Raises:
        InvalidArgumentError: an argument of the client has a wrong type or value; the message says which one.
    """

    def __init__(self, endpoint: Endpoint, transport: Transport, follows: bool = True) -> None:
        self._is_local = all(map(is_local, addresses_of(endpoint.address)))
        self._wanted_chunk_bytes = checked_chunk_bytes(endpoint.chunk_bytes, self._is_local)
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
        self.device_reader = None  # of arrays in the memory of a GPU, which no server reads
        # Of clients whose home is another server of a cluster's round, by address. None: this is such a connection
        # itself, which sends nobody on, so that two servers with different lists make no circle.
        self._at_homes: dict[str, Connection] | None = {} if follows else None

    def at_home(self, spec: RoundSpec, client_id: str) -> Connection:
        """Returns the connection to the server that takes the client's submission to a round of this spec."""
        if spec.cluster is None or not client_id:  # the server knows the name of the credential
            return self
        home = home_of(client_id, len(spec.cluster.servers))
        if home == spec.cluster.index and len(self._servers) == 1:
            return self  # at whatever address this client knows the server by
        address, known = spec.cluster.servers[home].address, addresses_of(self.endpoint.address)
        # A handle has all servers in order, and where they are now.
        now = known[home] if address not in known and len(known) == len(spec.cluster.servers) else None
        return self._at(address, now) or self

    def add_home(self, address: str, connection: Connection) -> None:
        """Sends calls for the server that rounds have at an address over another connection, which follows it."""
        if self._at_homes is not None:
            self._at_homes[address] = connection

    def _at(self, address: str, now: str | None = None) -> Connection | None:
        """Returns the connection to another server of a round, with the arguments of this one; None: there is none.

        ``now``: where the server may be if nobody answers at its address. Raises ``FailedPreconditionError`` for an
        address to which a server may not send its clients, ``InvalidArgumentError`` where others could read the token.
        """
        if self._at_homes is None or address == self.endpoint.address:
            return None
        if address in self._at_homes:
            return self._at_homes[address]
        if host_and_port(address) is None or (is_local(address) and not self._is_local):
            raise FailedPreconditionError(
                f"the round of {self.endpoint.address} has a server at {plain(address)}, to which this client does not "
                'go: an address must be "host:port", and of this machine only if the first server is on it, too'
            )
        endpoint = dataclasses.replace(
            self.endpoint, address=address, public_address=None, locate=None if now is None else lambda _: now
        )
        found = self._at_homes.setdefault(address, Connection(endpoint, self.transport, follows=False))
        found.has_reached = True  # by the coordinator: the server may restart now
        return found

    async def close(self) -> None:
        """Closes the channels. Calls under way raise ``CancelledError``, later ones ``FailedPreconditionError``."""
        self.transport.check_thread()
        for home in list((self._at_homes or {}).values()):
            await home.close()
        for server in [*self._servers, *self._left]:
            for channel in server.channels.close():
                await self.transport.close_channel(channel)

    async def call(
        self, method: str, request: Any, wait_s: float = 0.0, deadline: float | None = None, patient: bool = False
    ) -> Any:
        """Calls a method with one answer, and returns the answer. The client's timeout limits all attempts, too.

        ``wait_s``: how long the server may wait before it answers, beyond that timeout. ``patient``: whether to wait a
        few seconds beyond the deadline for an answer that may be on its way.
        """
        try:
            return await self._call(method, request, wait_s, deadline, patient)
        except FailedPreconditionError as error:
            home = await self._at_home_of_answer(error, getattr(request, "round", ""), deadline)
            if home is None:
                raise
        return await home.call(method, request, wait_s, deadline, patient)

    async def _at_home_of_answer(
        self, error: FailedPreconditionError, name: str, deadline: float | None
    ) -> Connection | None:
        """Returns the connection to where an answer about a round sends the client; None: it is not to be followed.

        An answer alone sends nobody anywhere: the round's list must have the server.
        """
        if error.home is None or self._at_homes is None:
            return None
        cluster = (await self.get_round(name, deadline)).spec.cluster
        is_listed = cluster is not None and any(server.address == error.home for server in cluster.servers)
        return self._at(error.home) if is_listed else None

    async def _call(self, method: str, request: Any, wait_s: float, deadline: float | None, patient: bool) -> Any:
        own = self._own_deadline(wait_s, deadline)
        limit = call_seconds(deadline, own, patient)

        is_repeated = False

        async def attempt() -> Any:
            nonlocal is_repeated
            try:
                with self._server.channels.first() as stub, named_if_late(method, limit):
                    return await self._answer(getattr(stub, method), request, call_seconds(deadline, own, patient))
            except grpc.RpcError as error:
                is_gone = error.code() is grpc.StatusCode.NOT_FOUND
                if is_repeated and is_gone and method in ("DeleteRound", "DeleteModel"):  # an earlier attempt did it
                    return None
                is_repeated = True
                raise

        if limit is not None and own is not None and (deadline is None or own < deadline):
            return await self._retried(attempt, own, late=f"{no_answer(method, limit)}: ")
        return await self._retried(attempt, deadline, patient=patient)

    async def aggregate(
        self, spec: RoundSpec, uploads: list[Upload], answer: pb.ResultFormat, deadline: float | None = None
    ) -> ResultReader:
        """Aggregates in one call, which begins again if the connection breaks. ``answer``: encodings of the result."""
        deadline = self.deadline if deadline is None else deadline

        async def attempt() -> ResultReader:
            reader, timeout = ResultReader(), call_seconds(deadline)
            messages = aggregate_requests(spec, uploads, answer)
            with self._server.channels.least_busy() as stub, streamed(messages) as requests:
                pages = stub.Aggregate(requests, timeout=timeout, metadata=self._server.headers())
                await self.transport.read(pages, reader.add)
            return reader

        return await self._retried(attempt, deadline)

    async def read(
        self,
        request: pb.StreamResultRequest,
        info: RoundInfo,
        deadline: float | None = None,
        bar: ProgressBar | None = None,
    ) -> ResultReader:
        """Reads a round's result in one stream. If the stream breaks, single calls read the pages that are missing.

        Raises ``AbortedError`` if the stream broke, and the round's name is now that of another round.
        """
        reader = ResultReader(request.range, bar)
        deadline = self.deadline if deadline is None else deadline
        is_resumed = False

        async def attempt() -> None:
            nonlocal is_resumed
            with self._server.channels.least_busy() as stub:
                if reader.num_pages == 0:
                    pages = stub.StreamResult(request, timeout=call_seconds(deadline), metadata=self._server.headers())
                    await self.transport.read(pages, reader.add)
                    return
                is_resumed = True
                for rest in reader.rest(request, info.spec):
                    reader.add(await self._answer(stub.GetResult, rest, call_seconds(deadline)))

        await self._retried(attempt, deadline, Retries(self.retry, lambda: reader.num_pages))
        if is_resumed and (await self.get_round(info.name, deadline)).create_time != info.create_time:
            raise AbortedError(f"{info.name} is another round than the one whose result was begun")
        return reader

    async def export(self, method: str, request: Any, deadline: float | None = None) -> list[Any]:
        """Reads submissions or a partial of a sealed round in a stream. If that breaks, another goes on from there."""
        pages: list[Any] = []
        deadline = self.deadline if deadline is None else deadline

        async def attempt() -> None:
            rest = type(request)()
            rest.CopyFrom(request)
            if pages:
                rest.page_token = pages[-1].next_page_token
                if not rest.page_token:
                    return
            with self._server.channels.least_busy() as stub:
                call = getattr(stub, method)
                stream = call(rest, timeout=call_seconds(deadline), metadata=self._server.headers())
                await self.transport.read(stream, pages.append)

        await self._retried(attempt, deadline, Retries(self.retry, lambda: len(pages)))
        return pages

    async def get_round(self, name: str, deadline: float | None = None) -> RoundInfo:
        """Returns the round as it is now."""
        return RoundInfo._from_proto(await self.call("GetRound", pb.GetRoundRequest(round=name), deadline=deadline))

    async def server_wire(self, deadline: float | None = None) -> ServerWire:
        """Returns the encodings and the chunk size that the server takes. The server is asked once."""
        wire = self._server_wire
        if wire is None:
            message = await self.call("GetServerInfo", pb.GetServerInfoRequest(), deadline=deadline)
            wire = self._server_wire = ServerWire.of(ServerInfo._from_proto(message), self._wanted_chunk_bytes)
        return wire

    async def submit(
        self, upload: Upload, resumable: bool, bar: ProgressBar | None, deadline: float | None = None
    ) -> Submission:
        """Sends an upload and commits it.

        The first attempt is one stream, unless it is ``resumable``; others use single calls, from where the server's
        part of the upload ends.
        """
        try:
            return await self._submit(upload, resumable, bar, deadline)
        except FailedPreconditionError as error:
            home = await self._at_home_of_answer(error, upload.round_name, deadline)
            if home is None:
                raise
        return await home.submit(upload, resumable, bar, deadline)

    async def _submit(
        self, upload: Upload, resumable: bool, bar: ProgressBar | None, deadline: float | None
    ) -> Submission:
        resumption = Resumption(self.retry)
        deadline = self.deadline if deadline is None else deadline
        is_stream = not resumable

        async def attempt() -> Submission:
            nonlocal is_stream
            with self._server.channels.least_busy() as stub:
                if is_stream:
                    is_stream = False
                    return await self._submit_stream(stub, upload, bar, deadline)
                await self.transport.convert(getattr, upload, "tag")  # computed here, since it takes long
                first = resumption.first_chunk(await self._upload_status(upload, deadline))
                return await self._submit_chunks(stub, upload, first, bar, resumption, deadline)

        return await self._retried(attempt, deadline, resumption)

    async def submit_batch(
        self,
        batch: Batch,
        round_name: str,
        submission_id: str,
        deadline: float | None = None,
        base_version: int | None = None,
    ) -> pb.SubmitBatchResponse:
        """Submits for many clients in one call; those that are refused are in the answer."""
        message = await self.transport.convert(encode_batch, batch, round_name, submission_id, base_version)
        answer: pb.SubmitBatchResponse = await self.call("SubmitBatch", message, deadline=deadline)
        return answer

    async def _upload_status(self, upload: Upload, deadline: float | None) -> pb.UploadStatus | None:
        """Returns how much of the upload the server has; None where the server does not know the upload."""
        try:
            request = pb.GetUploadStatusRequest(**upload.identity)
            status: pb.UploadStatus = await self.call("GetUploadStatus", request, deadline=deadline)
        except NotFoundError:
            return None
        return status

    async def _submit_stream(
        self, stub: Any, upload: Upload, bar: ProgressBar | None, deadline: float | None
    ) -> Submission:
        chunks = counted(upload.chunks(), bar)
        first = next(chunks)
        timeout = call_seconds(deadline)
        if first.is_last:
            message = await self._answer(stub.SubmitWhole, first, timeout)
            next(chunks, None)  # for the bar
        else:
            with streamed(itertools.chain((first,), chunks)) as requests:
                message = await self._answer(stub.SubmitUpdate, requests, timeout)
        return Submission._from_proto(message)

    async def _submit_chunks(
        self,
        stub: Any,
        upload: Upload,
        first: int,
        bar: ProgressBar | None,
        resumption: Resumption,
        deadline: float | None,
    ) -> Submission:
        for chunk in counted(upload.chunks(first, upload.tag), bar):
            # Like a stream, without a timeout for the single call: keepalive pings find a dead server, and a network
            # that stalls may go on.
            await self._answer(stub.PutChunk, chunk, call_seconds(deadline))
            resumption.arrived()
        request = pb.CommitSubmissionRequest(**upload.identity)
        return Submission._from_proto(await self._answer(stub.CommitSubmission, request, call_seconds(deadline)))

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
