"""The calls of the asyncio client."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, SupportsIndex, TypeVar

import grpc

from sparseagg.client.calls import (
    call_seconds,
    commit_request,
    counted,
    named_if_late,
    pause_after,
    status_request,
    streamed,
)
from sparseagg.client.channel import channel_options, checked_connections
from sparseagg.client.channels import Channels
from sparseagg.client.progress import ProgressBar
from sparseagg.client.result_reader import ResultReader
from sparseagg.client.resumption import Resumption
from sparseagg.client.retry import RetryPolicy, error_from_call, wait_before_retry
from sparseagg.client.upload import Upload
from sparseagg.errors import Aborted, Cancelled, FailedPrecondition, NotFound
from sparseagg.info import RoundInfo, ServerInfo, Submission
from sparseagg.v1 import aggregation_pb2 as pb
from sparseagg.wire.formats import ServerWire, checked_chunk_bytes

__all__ = ["Connection"]

T = TypeVar("T")


class Connection:
    """What clients and rounds share: the channels, with retries, errors and uploads. For one event loop."""

    def __init__(
        self,
        address: str,
        metadata: tuple[tuple[str, str], ...],
        credentials: grpc.ChannelCredentials | None,
        timeout: float | None,
        retry: RetryPolicy | None,
        chunk_bytes: SupportsIndex | None,
        connections: SupportsIndex,
        options: list[tuple[str, Any]] | None,
    ) -> None:
        self._metadata = metadata
        self._timeout = timeout
        self.retry = retry or RetryPolicy()
        self._wanted_chunk_bytes = checked_chunk_bytes(chunk_bytes)
        self._server_wire: ServerWire | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # of the first call

        options = channel_options(address, options)

        def open_channel() -> Any:
            if credentials is None:
                return grpc.aio.insecure_channel(address, options)
            return grpc.aio.secure_channel(address, credentials, options)

        self._channels = Channels(open_channel, checked_connections(connections))

    async def close(self) -> None:
        """Closes the channels; calls under way are cancelled: ``Cancelled``."""
        self._check_loop()
        for channel in self._channels.close():
            await channel.close()

    async def call(
        self, method: str, request: Any, extra_s: float = 0.0, deadline: float | None = None, patient: bool = False
    ) -> Any:
        """Calls a unary method until it answers.

        Args:
            method: its name.
            request: its message.
            extra_s: what the server may wait before it answers, on top of the timeout.
            deadline: on the monotonic clock. The call is given up then, and not tried again.
            patient: whether an answer is waited for a little longer, which may be on its way.
        """

        async def attempt() -> Any:
            timeout = call_seconds(deadline, self._timeout, extra_s, patient)
            with self._channels.first() as stub, named_if_late(method, timeout):
                return await getattr(stub, method)(request, timeout=timeout, metadata=self._metadata)

        return await self._retried(attempt, deadline, patient=patient)

    async def aggregate(
        self, make_requests: Callable[[], Iterator[Any]], deadline: float | None = None
    ) -> ResultReader:
        """Aggregates in one call, from the beginning again if the connection breaks.

        Args:
            make_requests: returns an iterator over the messages.
            deadline: on the monotonic clock, of all attempts.
        """

        async def attempt() -> ResultReader:
            reader, timeout = ResultReader(), call_seconds(deadline)
            with self._channels.least_busy() as stub, streamed(make_requests()) as requests:
                async for page in stub.Aggregate(requests, timeout=timeout, metadata=self._metadata):
                    reader.add(page)
            return reader

        return await self._retried(attempt, deadline)

    async def read(
        self, request: pb.StreamResultRequest, info: RoundInfo, deadline: float | None = None
    ) -> ResultReader:
        """Reads a round's result: in one stream and, from where that breaks off, by single calls.

        Args:
            request: of the stream.
            info: the round.
            deadline: on the monotonic clock, of all attempts.

        Raises:
            Aborted: the connection broke, and there is another round of that name now.
        """
        reader = ResultReader()
        is_resumed = False

        async def attempt() -> None:
            nonlocal is_resumed
            with self._channels.least_busy() as stub:
                if reader.num_pages == 0:
                    timeout = call_seconds(deadline)
                    async for page in stub.StreamResult(request, timeout=timeout, metadata=self._metadata):
                        reader.add(page)
                    return
                is_resumed = True
                for rest in reader.rest(request, info.spec):
                    timeout = call_seconds(deadline)
                    reader.add(await stub.GetResult(rest, timeout=timeout, metadata=self._metadata))

        await self._retried(attempt, deadline, lambda: reader.num_pages)
        if is_resumed and (await self.get_round(info.name, deadline)).create_time != info.create_time:
            raise Aborted(f"{info.name} is another round than the one whose result was begun")
        return reader

    async def get_round(self, name: str, deadline: float | None = None) -> RoundInfo:
        """Returns the round as it is now."""
        return RoundInfo.from_proto(await self.call("GetRound", pb.GetRoundRequest(name=name), deadline=deadline))

    async def delete_round(self, name: str) -> None:
        """Deletes a round; one that is gone when the call is repeated was deleted by the call before."""
        repeated = False

        async def attempt() -> None:
            nonlocal repeated
            try:
                with self._channels.first() as stub:
                    request = pb.DeleteRoundRequest(name=name)
                    await stub.DeleteRound(request, timeout=self._timeout, metadata=self._metadata)
            except grpc.RpcError as error:
                if not repeated or error.code() is not grpc.StatusCode.NOT_FOUND:
                    repeated = True
                    raise

        await self._retried(attempt)

    async def server_wire(self, deadline: float | None = None) -> ServerWire:
        """Returns what the server takes, for which it is asked once, and again when it may be another one."""
        wire = self._server_wire
        if wire is None:
            message = await self.call("GetServerInfo", pb.GetServerInfoRequest(), deadline=deadline)
            info = ServerInfo.from_proto(message)
            wire = self._server_wire = ServerWire.of(info, self._wanted_chunk_bytes)
        return wire

    async def submit(
        self, upload: Upload, resumable: bool, bar: ProgressBar | None, deadline: float | None = None
    ) -> Submission:
        """Uploads in one stream or, if ``resumable`` and in any case after a failure, by single calls that resume."""
        self._check_loop()
        resumption = Resumption(self.retry)
        while True:
            try:
                with self._channels.least_busy() as stub:
                    if not resumable:
                        return await _apart(self._submit_stream(stub, upload, bar, deadline))
                    await asyncio.to_thread(getattr, upload, "tag")  # apart, since it takes long
                    first = resumption.first_chunk(await self._upload_status(upload, deadline))
                    return await _apart(self._submit_unary(stub, upload, first, bar, resumption, deadline))
            except grpc.RpcError as call_error:
                self._forget_server_after(call_error)
                wait = resumption.wait_after(call_error)
                pause, again = pause_after(wait, deadline)
                if not again:
                    await asyncio.sleep(pause)
                    raise error_from_call(call_error, is_late=wait is not None) from call_error
            resumable = True  # from here on, what has arrived is not sent again
            await asyncio.sleep(pause)

    def _check_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        if self._loop is not loop:
            raise FailedPrecondition("this client is in use in another event loop; make one in each")

    async def _retried(
        self,
        attempt: Callable[[], Awaitable[T]],
        deadline: float | None = None,
        progress: Callable[[], int] = lambda: 0,
        patient: bool = False,
    ) -> T:
        """Attempts something until it succeeds; attempts count anew when ``progress`` has got on."""
        self._check_loop()
        waits, before = self.retry.waits(), progress()
        while True:
            try:
                return await _apart(attempt())
            except grpc.RpcError as call_error:
                self._forget_server_after(call_error)
                if progress() > before:
                    waits, before = self.retry.waits(), progress()
                wait = wait_before_retry(call_error, waits)
                pause, again = pause_after(wait, deadline, patient)
                if not again:
                    await asyncio.sleep(pause)
                    raise error_from_call(call_error, is_late=wait is not None) from call_error
            await asyncio.sleep(pause)

    def _forget_server_after(self, error: grpc.RpcError) -> None:
        """Asks anew what the server takes when one that has restarted may take less."""
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED):
            self._server_wire = None

    async def _upload_status(self, upload: Upload, deadline: float | None) -> pb.UploadStatus | None:
        """Returns what the server has of it; None: nothing."""
        try:
            status: pb.UploadStatus = await self.call("GetUploadStatus", status_request(upload), deadline=deadline)
        except NotFound:
            return None
        return status

    async def _submit_stream(
        self, stub: Any, upload: Upload, bar: ProgressBar | None, deadline: float | None
    ) -> Submission:
        chunks = counted(upload.chunks(), bar)
        first = next(chunks)
        timeout = call_seconds(deadline)
        if first.head.last:
            message = await stub.SubmitWhole(first, timeout=timeout, metadata=self._metadata)
            next(chunks, None)  # for the bar
        else:
            with streamed(itertools.chain((first,), chunks)) as requests:
                message = await stub.SubmitUpdate(requests, timeout=timeout, metadata=self._metadata)
        return Submission.from_proto(message)

    async def _submit_unary(
        self,
        stub: Any,
        upload: Upload,
        first: int,
        bar: ProgressBar | None,
        resumption: Resumption,
        deadline: float | None,
    ) -> Submission:
        for chunk in counted(upload.chunks(first, upload.tag), bar):
            # No timeout of its own, as a stream has none: pings find a server that is dead, and a network that stalls
            # goes on.
            await stub.PutChunk(chunk, timeout=call_seconds(deadline), metadata=self._metadata)
            resumption.arrived()
        request, timeout = commit_request(upload), call_seconds(deadline)
        return Submission.from_proto(await stub.CommitSubmission(request, timeout=timeout, metadata=self._metadata))


async def _apart(attempt: Awaitable[T]) -> T:
    """Awaits an attempt in a task of its own, so that one that is cancelled is told from a caller that is.

    Closing a channel cancels its calls, which raise CancelledError. A caller that sees that would take itself for
    cancelled, as would its task.
    """
    (answer,) = await asyncio.gather(attempt, return_exceptions=True)
    if isinstance(answer, asyncio.CancelledError):
        raise Cancelled("the call was cancelled, since this client has disconnected")
    try:
        if isinstance(answer, BaseException):
            raise answer
        return answer
    finally:
        del answer  # else the error would hold this frame, and this frame the error, and both the update
