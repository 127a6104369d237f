"""The client for programs with an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, SupportsFloat, SupportsIndex, TypeVar

from sparseagg.arguments import Timeout, checked_seconds, checked_text
from sparseagg.client.aio_connection import Connection
from sparseagg.client.calls import (
    checked_deadline,
    create_request,
    naming_round,
    poll_pause,
    poll_seconds,
    raise_if_failed,
    raise_if_going_on,
    raise_if_late,
    raise_if_past,
    raise_if_unheard,
    result_format,
    result_request,
    wait_request,
)
from sparseagg.client.channel import TLS, checked_address, credentials, metadata, round_name
from sparseagg.client.progress import ProgressBar
from sparseagg.client.retry import RetryPolicy, checked_retry
from sparseagg.client.upload import (
    Upload,
    aggregate_requests,
    aggregate_upload,
    aggregate_uploads,
    make_upload,
)
from sparseagg.errors import FailedPrecondition
from sparseagg.info import RoundInfo, ServerInfo, Submission
from sparseagg.result import Result
from sparseagg.spec import RoundSpec, checked_spec
from sparseagg.updates import checked_updates, named_updates
from sparseagg.v1 import aggregation_pb2 as pb
from sparseagg.wire.formats import Values, WireFormat

__all__ = ["Client", "Round"]

T = TypeVar("T")


class Client:
    """A connection to a server, for one event loop, that of the first call.

    See ``sparseagg.Client`` for the arguments and the errors. An asynchronous context manager that closes the
    connection. Calls may run concurrently.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        tls: TLS = False,
        timeout: Timeout = 60.0,
        retry: RetryPolicy | None = None,
        chunk_bytes: SupportsIndex | None = None,
        connections: SupportsIndex = 4,
        options: list[tuple[str, Any]] | None = None,
    ) -> None:
        self.address = checked_address(address)
        self._connection = Connection(
            address,
            metadata(token),
            credentials(tls),
            checked_seconds("timeout", timeout),
            checked_retry(retry),
            chunk_bytes,
            connections,
            options,
        )

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.disconnect()

    async def disconnect(self) -> None:
        """Closes the connection. Calls under way raise ``errors.Cancelled``, later ones ``FailedPrecondition``."""
        await self._connection.close()

    async def close(self) -> None:
        """The same as ``disconnect``. No round is closed."""
        await self.disconnect()

    async def server_info(self) -> ServerInfo:
        """Returns the server's version, engine and limits."""
        return ServerInfo.from_proto(await self._connection.call("GetServerInfo", pb.GetServerInfoRequest()))

    async def create_round(self, spec: RoundSpec, round_id: str | None = None) -> Round:
        """Opens a round; see ``sparseagg.Client.create_round``."""
        request = create_request(spec, round_id)
        return Round(self._connection, RoundInfo.from_proto(await self._connection.call("CreateRound", request)))

    async def get_round(self, name: str) -> Round:
        """Returns a round by id or by name ("rounds/{id}"); ``NotFound`` if there is none."""
        return Round(self._connection, await self._connection.get_round(round_name(name)))

    async def list_rounds(self) -> AsyncIterator[Round]:
        """Yields all rounds the server knows, oldest first."""
        token = ""
        while True:
            response = await self._connection.call("ListRounds", pb.ListRoundsRequest(page_token=token))
            for proto in response.rounds:
                yield Round(self._connection, RoundInfo.from_proto(proto))
            token = response.next_page_token
            if not token:
                return

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

        They are converted in other threads, in which the event loop does not wait for them. Iterators are asked for
        updates, one by one, in that of the event loop.
        """
        spec, updates = checked_spec(spec), checked_updates(updates)
        deadline = checked_deadline(timeout)
        with raise_if_late(deadline, "the aggregation has not ended"):
            server = await self._connection.server_wire(deadline)
            uploads = await _uploads(spec, updates, server.chunk_bytes, server.format(spec, encoding, values))
            answer = result_format(encoding, None)
            reader = await self._connection.aggregate(lambda: aggregate_requests(spec, uploads, answer), deadline)
        return reader.result()


async def _apart(function: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """Returns what a conversion does in another thread, in which the event loop does not wait for it."""

    def convert() -> T:
        try:
            return function(*arguments, **named)
        except StopIteration as error:  # of a caller's mapping; no future takes one, and its await would never end
            raise RuntimeError("an update raised StopIteration") from error

    return await asyncio.to_thread(convert)


async def _uploads(spec: RoundSpec, updates: Any, chunk_bytes: int, wire: WireFormat) -> list[Upload]:
    """Converts the updates of a one-shot aggregation apart, since that may take long."""
    if isinstance(updates, (list, Mapping)):
        return await _apart(aggregate_uploads, spec, updates, chunk_bytes, wire)
    return [await _apart(aggregate_upload, spec, *named, chunk_bytes, wire) for named in named_updates(updates)]


class Round:
    """A round on the server. Made by ``Client.create_round``, ``get_round`` and ``list_rounds``."""

    def __init__(self, connection: Connection, info: RoundInfo) -> None:
        self._connection = connection
        self._info = info

    @property
    def name(self) -> str:
        """The name, "rounds/{id}"."""
        return self._info.name

    @property
    def id(self) -> str:
        """The id, without "rounds/"."""
        return self.name.partition("/")[2]

    @property
    def spec(self) -> RoundSpec:
        """What it computes."""
        return self._info.spec

    @property
    def info(self) -> RoundInfo:
        """The round as last heard of; ``refresh`` asks again."""
        return self._info

    def __repr__(self) -> str:
        return f"Round({self.name!r}, {self._info.state})"

    async def refresh(self) -> RoundInfo:
        """Asks the server for the round as it is now."""
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
        """Sends one client's update; see ``sparseagg.Round.submit``. It is converted in another thread."""
        deadline = checked_deadline(timeout)
        with raise_if_late(deadline, f"the submission to {self.name} has not ended"), naming_round(self.name):
            server = await self._connection.server_wire(deadline)
            upload = await _apart(
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
        """Stops taking submissions, waits for the merge, and reads all tensors; see ``sparseagg.Round.close``."""
        request = result_request(self.name, None, None, result_format(encoding, values))  # refuses what is unknown
        deadline = checked_deadline(timeout)
        await self._end(deadline)
        return await self._read(request, deadline)

    async def end(self, timeout: Timeout = None) -> RoundInfo:
        """Stops taking submissions and waits for the merge, but reads nothing; see ``sparseagg.Round.end``."""
        return await self._end(checked_deadline(timeout))

    async def _end(self, deadline: float | None) -> RoundInfo:
        request = pb.CloseRoundRequest(name=self.name)
        with raise_if_unheard(deadline, self._info):
            self._info = RoundInfo.from_proto(
                await self._connection.call("CloseRound", request, deadline=deadline, patient=True)
            )
        raise_if_failed(await self._wait(deadline))
        return self._info

    async def wait(self, timeout: Timeout = None) -> RoundInfo:
        """Waits until the round has ended; see ``sparseagg.Round.wait``."""
        return await self._wait(checked_deadline(timeout))

    async def _wait(self, deadline: float | None) -> RoundInfo:
        while True:
            begun, poll = time.monotonic(), poll_seconds(deadline)
            request = wait_request(self.name, poll)
            with raise_if_unheard(deadline, self._info):
                self._info = RoundInfo.from_proto(
                    await self._connection.call("WaitRound", request, poll, deadline, patient=True)
                )
            if self._info.ended:
                return self._info
            raise_if_past(deadline, self._info)
            await asyncio.sleep(poll_pause(self._connection.retry, poll, begun))

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

    async def _read(self, request: pb.StreamResultRequest, deadline: float | None) -> Result:
        with raise_if_late(deadline, f"the result of {self.name} has not been read"):
            try:
                reader = await self._connection.read(request, self._info, deadline)
            except FailedPrecondition as error:
                self._info = await self._connection.get_round(self.name, deadline)
                raise_if_failed(self._info, error)
                raise_if_going_on(self._info, error)
                raise
            if not self._info.ended:
                self._info = await self._connection.get_round(self.name, deadline)
        return reader.result(self._info)

    async def cancel(self, reason: str = "") -> RoundInfo:
        """Ends the round without a result and drops its submissions; ``FailedPrecondition`` if it is done or failed."""
        request = pb.CancelRoundRequest(name=self.name, reason=checked_text("a reason", reason))
        self._info = RoundInfo.from_proto(await self._connection.call("CancelRound", request))
        return self._info

    async def delete(self) -> None:
        """Makes the server forget the round and its result; ``NotFound`` if it has none of this name."""
        await self._connection.delete_round(self.name)
