"""``sparseagg.aio``: the client and its rounds, with every operation of both clients as a coroutine.

``sparseagg.Client`` and ``sparseagg.Round`` run the same coroutines, without an event loop, over a transport that
blocks where this one awaits.

To *end* a round is to take no more submissions and to wait for the merge. To *close* a round is to end it and to read
its result. A round that is done, failed or cancelled *has ended*. Only a round that is *done* has a result.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, SupportsFloat, SupportsIndex

from sparseagg.arguments import Timeout, checked_seconds, checked_text
from sparseagg.client.channel import checked_address
from sparseagg.client.connection import Connection
from sparseagg.client.deadlines import checked_deadline, poll_pause, poll_seconds, raise_if_late, seconds_to
from sparseagg.client.memory_connection import MemoryConnection
from sparseagg.client.progress import ProgressBar
from sparseagg.client.requests import create_request, result_format, result_request, round_name, wait_request
from sparseagg.client.retry import RetryPolicy, checked_retry
from sparseagg.client.round_errors import naming_round, raise_if_failed, raise_if_not_ended
from sparseagg.client.transport import AsyncioTransport, Transport
from sparseagg.client.upload import Upload, aggregate_upload, aggregate_uploads, make_upload
from sparseagg.credentials import Headers, TLSArgument, TokenArgument, channel_credentials
from sparseagg.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument
from sparseagg.info import RoundInfo, ServerInfo, Submission
from sparseagg.local.server import Server
from sparseagg.result import Result
from sparseagg.spec import RoundSpec, checked_spec
from sparseagg.updates import checked_updates, named_updates
from sparseagg.v1 import aggregation_pb2 as pb
from sparseagg.wire.formats import Values, WireFormat

__all__ = ["Client", "Round"]

_MEMORY = ":memory:"
_LOCAL = ":local:"


class Client:
    """A client of one server. An asynchronous context manager that disconnects.

    A client may be made outside an event loop. The first call binds the client and its rounds to the running loop, and
    calls from another loop raise ``FailedPrecondition``. Tasks of one loop may make calls at the same time. Not
    thread-safe: make another client for each thread's loop, and in a forked child.

    ``sparseagg.Client`` has the same methods, and documents their arguments and errors. The client's ``timeout`` limits
    each attempt of a call that carries no update and no result; methods without a ``timeout`` have no other limit. A
    method's ``timeout`` limits the whole operation with its retries; None is no limit. The addresses ":memory:" and
    ":local:" are those of ``sparseagg.Client``; a client of ":local:" starts its server when it is made.

        async with sparseagg.aio.Client("localhost:8001") as client:
            rnd = await client.create_round(spec)
            await rnd.submit("client-7", {"embedding": (keys, rows)})
            result = await rnd.close()
    """

    _transport_class: type[Transport] = AsyncioTransport

    def __init__(
        self,
        address: str,
        *,
        token: TokenArgument = None,
        tls: TLSArgument = False,
        tenant: str | None = None,
        insecure_token: bool = False,
        timeout: Timeout = 60.0,
        retry: RetryPolicy | None = None,
        chunk_bytes: SupportsIndex | None = None,
        connections: SupportsIndex = 4,
        options: list[tuple[str, Any]] | None = None,
    ) -> None:
        transport = self._transport_class()
        self._connection: Connection | MemoryConnection
        self._server: Server | None = None  # of ":local:"
        length, policy = checked_seconds("timeout", timeout), checked_retry(retry)
        if address == _MEMORY:
            _refuse(address, token=token, tls=tls, tenant=tenant, options=options)
            self.address = address
            self._connection = MemoryConnection(transport, chunk_bytes, connections)
            return
        if address == _LOCAL:
            _refuse(address, tls=tls)
            self._server = Server().start()
            address = self._server.address
        try:
            self.address = checked_address(address)  # raises InvalidArgument
            secure = channel_credentials(tls)
            headers = Headers(token, tenant, self.address, secure is None, insecure_token)
            self._connection = Connection(
                address, headers, secure, length, policy, chunk_bytes, connections, options, transport
            )
        except BaseException:
            if self._server is not None:
                self._server.stop()
            raise

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.disconnect()

    async def disconnect(self) -> None:
        """Closes all connections. Calls under way raise ``errors.Cancelled``, later calls ``FailedPrecondition``.

        Rounds of ":memory:" end, and the server of ":local:" stops.
        """
        await self._connection.close()
        if self._server is not None:
            await self._connection.transport.convert(self._server.stop)

    async def close(self) -> None:
        """The same as ``disconnect``: rounds stay open on a server. ``Round.close`` ends a round."""
        await self.disconnect()

    async def server_info(self) -> ServerInfo:
        """Returns the server's version, engine and limits."""
        return ServerInfo.from_proto(await self._connection.call("GetServerInfo", pb.GetServerInfoRequest()))

    async def create_round(self, spec: RoundSpec, round_id: str | None = None) -> Round:
        """Opens a round; see ``sparseagg.Client.create_round``."""
        request = create_request(spec, round_id)
        return Round(self._connection, RoundInfo.from_proto(await self._connection.call("CreateRound", request)))

    async def get_round(self, name: str) -> Round:
        """Returns a round by its id or its name ("rounds/{id}"); ``NotFound`` if the server has none."""
        return Round(self._connection, await self._connection.get_round(round_name(name)))

    async def list_rounds(self) -> AsyncIterator[Round]:
        """Yields all rounds of the server, oldest first. Asks for the next page when the caller has come to its end."""
        token: str | None = ""  # of a page: "" for the first one, None after the last one
        while token is not None:
            rounds, token = await self._page_of_rounds(token)
            for each in rounds:
                yield each

    async def _page_of_rounds(self, token: str) -> tuple[list[Round], str | None]:
        """Returns the rounds of one page, and the next page's token, which is None if this page is the last."""
        response = await self._connection.call("ListRounds", pb.ListRoundsRequest(page_token=token))
        rounds = [Round(self._connection, RoundInfo.from_proto(proto)) for proto in response.rounds]
        return rounds, response.next_page_token or None

    async def aggregate(
        self,
        updates: Any,
        spec: RoundSpec,
        *,
        encoding: str = "auto",
        values: Values = None,
        timeout: Timeout = None,
    ) -> Result:
        """Merges updates in one call; see ``sparseagg.Client.aggregate``.

        Another thread converts the updates while the event loop goes on. An iterable that is neither a list nor a
        mapping is iterated in the event loop. All updates are converted before the first one is sent.
        """
        spec, updates = checked_spec(spec), checked_updates(updates)
        deadline = checked_deadline(timeout)
        with raise_if_late(deadline, "the aggregation has not ended"):
            server = await self._connection.server_wire(deadline)
            uploads = await self._uploads(spec, updates, server.chunk_bytes, server.format(spec, encoding, values))
            answer = result_format(encoding, None)  # `values` rounds the updates, not the result
            reader = await self._connection.aggregate(spec, uploads, answer, deadline)
        return reader.result()

    async def _uploads(self, spec: RoundSpec, updates: Any, chunk_bytes: int, wire: WireFormat) -> list[Upload]:
        """Converts all updates in another thread: a list or mapping as a whole, other iterables update by update."""
        convert = self._connection.transport.convert
        if isinstance(updates, (list, Mapping)):
            return await convert(aggregate_uploads, spec, updates, chunk_bytes, wire)
        return [await convert(aggregate_upload, spec, *named, chunk_bytes, wire) for named in named_updates(updates)]


def _refuse(address: str, **arguments: Any) -> None:
    """Raises ``InvalidArgument`` if a client of this address does not take one of the arguments."""
    for name, value in arguments.items():
        if value is not None and value is not False:
            raise InvalidArgument(f'a client of "{address}" takes no {name}, which is for servers at other addresses')


class RoundAttributes:
    """What rounds of both clients say of themselves, from their ``info``."""

    @property
    def info(self) -> RoundInfo:
        """The round as the server described it last; ``refresh`` asks again."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The name, "rounds/{id}"."""
        return self.info.name

    @property
    def id(self) -> str:
        """The id, without "rounds/"."""
        return self.name.partition("/")[2]

    @property
    def spec(self) -> RoundSpec:
        """The round's spec."""
        return self.info.spec

    def __repr__(self) -> str:
        return f"Round({self.name!r}, {self.info.state})"


class Round(RoundAttributes):
    """A round on the server, from ``Client.create_round``, ``get_round`` or ``list_rounds``. Threads: as ``Client``.

    ``sparseagg.Round`` has the same methods, and documents their arguments and errors. After an error, ``info`` is
    the last description that the server has given; after a ``RoundFailed``, that of the failed or cancelled round.
    """

    def __init__(self, connection: Connection | MemoryConnection, info: RoundInfo) -> None:
        self._connection = connection
        self._info = info

    @property
    def info(self) -> RoundInfo:
        """The round as the server described it last; ``refresh`` asks again."""
        return self._info

    async def refresh(self) -> RoundInfo:
        """Asks the server for the round, and returns it as it is now."""
        self._info = await self._connection.get_round(self.name)
        return self._info

    async def submit(
        self,
        client_id: str,
        update: Any,
        weight: SupportsFloat | None = None,
        *,
        encoding: str = "auto",
        values: Values = None,
        submission_id: str | None = None,
        resumable: bool = False,
        progress: bool = False,
        timeout: Timeout = None,
    ) -> Submission:
        """Sends one client's update; see ``sparseagg.Round.submit``. Another thread converts the update.

        A ``submission_id`` lets a later call, also of another process, go on where this one broke off. ``resumable``
        makes the first attempt ask the server where to go on; without it, only later attempts do.
        """
        deadline = checked_deadline(timeout)
        # No answer by the deadline is a DeadlineExceeded. A FailedPrecondition names the round and its state.
        with raise_if_late(deadline, f"the submission to {self.name} has not ended"), naming_round(self.name):
            server = await self._connection.server_wire(deadline)
            upload = await self._connection.transport.convert(
                make_upload,
                self.spec,
                update,
                client_id=client_id,
                weight=weight,
                chunk_bytes=server.chunk_bytes,
                wire=server.format(self.spec, encoding, values),
                round_name=self.name,
                submission_id=submission_id,
            )
            if not progress:
                return await self._connection.submit(upload, resumable, None, deadline)
            with ProgressBar(f"upload {client_id}", upload.num_bytes, "B") as bar:
                return await self._connection.submit(upload, resumable, bar, deadline)

    async def close(self, timeout: Timeout = None, *, encoding: str = "auto", values: str | None = None) -> Result:
        """Ends the submissions, waits for the merge, and reads all tensors; see ``sparseagg.Round.close``.

        ``Client.close`` is another thing: it disconnects.
        """
        request = result_request(self.name, None, None, result_format(encoding, values))  # checks the arguments first
        deadline = checked_deadline(timeout)
        await self._end(deadline)
        return await self._read(request, deadline)

    async def end(self, timeout: Timeout = None) -> RoundInfo:
        """Ends the submissions and waits for the merge; see ``sparseagg.Round.end``."""
        return await self._end(checked_deadline(timeout))

    async def wait(self, timeout: Timeout = None) -> RoundInfo:
        """Waits until the round has ended; see ``sparseagg.Round.wait``."""
        return await self._wait(checked_deadline(timeout))

    async def result(
        self,
        tensors: Sequence[str] | None = None,
        *,
        keys: tuple[int, int | None] | None = None,
        encoding: str = "auto",
        values: str | None = None,
        timeout: Timeout = None,
    ) -> Result:
        """Reads the result of a round that is done; see ``sparseagg.Round.result``."""
        request = result_request(self.name, tensors, keys, result_format(encoding, values))
        return await self._read(request, checked_deadline(timeout))

    async def cancel(self, reason: str = "") -> RoundInfo:
        """Ends the round without a result; see ``sparseagg.Round.cancel``."""
        return await self._call(
            "CancelRound", pb.CancelRoundRequest(name=self.name, reason=checked_text("a reason", reason))
        )

    async def delete(self) -> None:
        """Removes the round and its result from the server; ``NotFound`` if the server has no such round."""
        await self._connection.delete_round(self.name)

    async def _end(self, deadline: float | None) -> RoundInfo:
        """Closes the round on the server, and waits until it has ended; ``RoundFailed`` unless it is done."""
        await self._call("CloseRound", pb.CloseRoundRequest(name=self.name), deadline)
        raise_if_failed(await self._wait(deadline))
        return self._info

    async def _wait(self, deadline: float | None) -> RoundInfo:
        """Returns the round when it has ended. Asks the server to answer then, or after ``poll`` seconds; repeats."""
        while True:
            begun, poll = time.monotonic(), poll_seconds(deadline)
            await self._call("WaitRound", wait_request(self.name, poll), deadline, poll)
            if self._info.ended:
                return self._info
            if seconds_to(deadline) == 0:
                raise DeadlineExceeded(f"{self.name} is still {self._info.state}")
            # The server may have answered early, at its own --max-wait.
            await self._connection.transport.sleep(poll_pause(self._connection.retry, poll, begun))

    async def _call(self, method: str, request: Any, deadline: float | None = None, wait_s: float = 0.0) -> RoundInfo:
        """Calls a method whose answer is the round, keeps the answer in ``info`` and returns it.

        ``wait_s``: how long the server may wait before it answers. The call is patient: it waits for its answer a few
        seconds beyond the deadline. If none has come by then, the ``DeadlineExceeded`` has the state last known.
        """
        with raise_if_late(deadline, f"{self.name} was {self._info.state} when last heard of"):
            answer = await self._connection.call(method, request, wait_s, deadline, patient=True)
        self._info = RoundInfo.from_proto(answer)
        return self._info

    async def _read(self, request: pb.StreamResultRequest, deadline: float | None) -> Result:
        """Reads a result. If the server refuses, asks for the round, to raise the error that its state means."""
        with raise_if_late(deadline, f"the result of {self.name} has not been read"):
            try:
                reader = await self._connection.read(request, self._info, deadline)
            except FailedPrecondition as error:
                self._info = await self._connection.get_round(self.name, deadline)
                raise_if_failed(self._info, error)
                raise_if_not_ended(self._info, error)
                raise
            if not self._info.ended:  # known from before the end, and the result carries the round
                self._info = await self._connection.get_round(self.name, deadline)
        return reader.result(self._info)
