"""The streams of both clients: every operation of a stream as a coroutine."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, SupportsFloat, SupportsIndex

from sparseagg import staleness as tables
from sparseagg._internal.base.arguments import Timeout, checked_integer, checked_text
from sparseagg._internal.base.fields import Seconds, as_of, duration, read
from sparseagg._internal.base.types import KeyEncoding, Update
from sparseagg._internal.client.async_round import Round
from sparseagg._internal.client.connection import Connection
from sparseagg._internal.client.memory_connection import MemoryConnection
from sparseagg._internal.client.retry import checked_deadline, long_poll, pages, raise_if_late
from sparseagg._internal.client.upload import submit_columns, submit_update
from sparseagg._internal.results.info import BatchReceipt, StreamInfo, StreamVersion, Submission
from sparseagg._internal.results.result import Result
from sparseagg._internal.spec.round_spec import RoundSpec, checked_spec
from sparseagg._internal.updates.contributors import (
    ClientId,
    checked_client_id,
)
from sparseagg._internal.wire.encode import ValueEncoding
from sparseagg.errors import InvalidArgumentError
from sparseagg.v1 import aggregation_pb2 as pb

_MOST = 2**64 - 1


def checked_version(what: str, version: SupportsIndex) -> int:
    """Returns a version; ``InvalidArgumentError`` if it is none."""
    return checked_integer(f"{what} must be from 0 to 2^64 - 1", version, 0, _MOST)


class StreamCalls:
    """A part of both clients."""

    _connection: Connection | MemoryConnection

    async def create_stream(
        self,
        spec: RoundSpec,
        *,
        buffer: SupportsIndex,
        staleness: tables.Staleness | None = None,
        max_staleness: SupportsIndex | None = None,
        max_interval: Seconds | None = None,
        one_per_client: bool = False,
        stream_id: str | None = None,
    ) -> Stream:
        """Opens a stream: buffered asynchronous aggregation. ``docs/streams.md`` has the contract.

        Version 1, 2, … of the stream are rounds of the next ``buffer`` commits each. Nobody waits for the slowest
        client: an update that was computed from an older version counts less, as ``staleness`` says. What a version is
        made of is in the log of the server, so that it can be computed again, to the bit.

        Args:
            spec: what each version computes, without ``max_submissions``, ``deadline`` and ``privacy``. A mean with
                ``mean_divisor="submissions"`` divides by K, as the paper of FedBuff does: stale updates make the step
                shorter. Without it, a mean divides by the weights, and so by the factors of ``staleness``, too.
            buffer: commits of a version, K.
            staleness: the factor of the weight of an update of staleness τ, from 0 to 1: a function such as
                ``sparseagg.staleness.polynomial(0.5)``, or the numbers for τ = 0, 1, … None: 1 for each.
            max_staleness: the largest τ that is taken; None: 20, or the end of the given numbers.
            max_interval: seconds from the first commit of a version to its cut at the latest; None: no limit.
            one_per_client: whether a version takes one commit of each client.
            stream_id: ``[A-Za-z0-9_][A-Za-z0-9._-]{0,107}``; None: a random one. If the server has a stream of this id
                with the same arguments, that stream is returned.

        Raises:
            InvalidArgumentError: an argument has no meaning; the message names it.
            AlreadyExistsError: the server has a stream of this id with other arguments, or a round of this id.
            ResourceExhaustedError: the server has too many rounds, or no memory for another one.
        """
        if stream_id == "":
            raise InvalidArgumentError("a stream's id is not empty; None is for a random one")
        stream_id = checked_text("a stream's id", uuid.uuid4().hex if stream_id is None else stream_id)
        most = (
            None
            if max_staleness is None
            else checked_integer("max_staleness must be 0 or more", max_staleness, 0, 65535)
        )
        message = pb.StreamSpec(
            round=checked_spec(spec)._to_proto(),
            buffer=checked_integer("buffer must be 1 or more", buffer, 1, _MOST),
            staleness_weights=tables.table(staleness, most),
            max_interval=duration("max_interval", max_interval),
            one_per_client=bool(one_per_client),
        )
        request = pb.CreateStreamRequest(stream_id=stream_id, spec=message)
        answer = await self._connection.call("CreateStream", request)
        return Stream(self._connection, StreamInfo._from_proto(answer))

    async def get_stream(self, name: str) -> Stream:
        """Returns a stream by its id or its name ("streams/{id}"); ``NotFoundError`` if the server has none."""
        name = checked_text("a stream's name", name)
        name = name if name.startswith("streams/") else f"streams/{name}"
        answer = await self._connection.call("GetStream", pb.GetStreamRequest(stream=name))
        return Stream(self._connection, StreamInfo._from_proto(answer))

    async def list_streams(self) -> AsyncIterator[Stream]:
        """Yields all streams of the server, in ascending order of ids."""
        async for page in pages(self._connection, "ListStreams", pb.ListStreamsRequest()):
            for proto in page.streams:
                yield Stream(self._connection, StreamInfo._from_proto(proto))


class StreamAttributes:
    """What streams of both clients say of themselves."""

    name: str
    spec: RoundSpec
    info: StreamInfo

    def __repr__(self) -> str:
        return f"Stream({self.name!r}, version {self.info.version}{as_of(self.info.as_of)})"


class Stream(StreamAttributes):
    """A stream on the server, from ``Client.create_stream`` or ``Client.get_stream``. Threads: as ``Client``.

    stream = await client.create_stream(spec, buffer=32, staleness=sa.staleness.polynomial(0.5), max_staleness=20)
    await stream.submit("client-7", update, base_version=version)   # a client, whenever it is ready
    async for version in stream.versions():                        # the coordinator
        result = await stream.result(version.version)

    The attributes are those of ``sparseagg.Stream``.
    """

    def __init__(self, connection: Connection | MemoryConnection, info: StreamInfo) -> None:
        self._connection = connection
        self.name, self.spec, self.info = info.name, info.spec, info

    async def refresh(self) -> StreamInfo:
        """Asks the server for the stream, and returns it as it is now."""
        answer = await self._connection.call("GetStream", pb.GetStreamRequest(stream=self.name))
        self.info = StreamInfo._from_proto(answer)
        return self.info

    async def submit(
        self,
        client_id: ClientId,
        update: Update,
        weight: SupportsFloat | None = None,
        *,
        base_version: SupportsIndex,
        key_encoding: KeyEncoding = "auto",
        value_encoding: ValueEncoding = None,
        submission_id: str | None = None,
        resumable: bool = False,
        timeout: Timeout = None,
    ) -> Submission:
        """Commits one client's update. When this method returns, it counts, in one version, completely and once.

        Args:
            client_id, update, weight, key_encoding, value_encoding, resumable, timeout: as of ``Round.submit``. A
                client may submit again, also to the version that is being filled, unless the stream is
                ``one_per_client``.
            base_version: the version that the update was computed from; 0: the model before version 1.
            submission_id: the name of this content; None for a random one. The same id with the same content is the
                same commit, also after its version was cut, as long as the server keeps the version.

        Returns:
            The commit; its ``stream`` has the version, the staleness and the weight.

        Raises:
            InvalidArgumentError: the update is wrong, or ``base_version`` has not been cut yet.
            StaleError: ``base_version`` is too old; the error has its ``staleness``.
            AlreadyExistsError: the client has committed other content under this ``submission_id``; or has a commit in
                the version, which is ``one_per_client``.
            NotFoundError: the stream was deleted.
        """
        deadline = checked_deadline(timeout)
        base = checked_version("base_version", base_version)
        with raise_if_late(deadline, f"the submission to {self.name} has not ended"):
            return await submit_update(
                self._connection,
                self.spec,
                update,
                client_id=client_id,
                weight=weight,
                round_name=self.name,
                submission_id=submission_id,
                base_version=base,
                key_encoding=key_encoding,
                value_encoding=value_encoding,
                resumable=resumable,
                deadline=deadline,
            )

    async def submit_batch(
        self,
        client_ids: Sequence[ClientId],
        updates: Mapping[str, tuple[Any, Any, Any]],
        weights: Sequence[SupportsFloat] | Any = None,
        *,
        base_version: SupportsIndex,
        submission_id: str | None = None,
        timeout: Timeout = None,
    ) -> BatchReceipt:
        """Commits the updates of many clients in few messages; the arguments are those of ``Round.submit_batch``.

        Args:
            client_ids, updates, weights, submission_id, timeout: as of ``Round.submit_batch``.
            base_version: of all updates.
        """
        deadline = checked_deadline(timeout)
        base = checked_version("base_version", base_version)
        with raise_if_late(deadline, f"the submissions to {self.name} have not ended"):
            homes, name = {self._connection: None}, self.name
            return await submit_columns(
                homes, self.spec, name, client_ids, updates, weights, submission_id, deadline, base
            )

    async def withdraw(self, client_id: ClientId, submission_id: str = "") -> bool:
        """Takes a commit out of the version that is being filled; no other commit moves.

        Args:
            client_id: of the client.
            submission_id: of the commit; "": the client's latest one in the version.

        Returns:
            Whether there was such a commit.

        Raises:
            FailedPreconditionError: its version was cut; or the server merges submissions when they arrive, as of
                ``Round.withdraw``.
        """
        request = pb.WithdrawSubmissionRequest(
            round=self.name,
            client_id=checked_client_id(client_id),
            submission_id=checked_text("a submission id", submission_id),
        )
        return bool((await self._connection.call("WithdrawSubmission", request)).withdrawn)

    async def cut(self, version: SupportsIndex | None = None) -> StreamInfo:
        """Ends the version that is being filled, if it has a commit. Does not wait for its merge.

        Args:
            version: only if this version is being filled; None: whichever is. With a version, the call is safe to
                repeat.
        """
        number = 0 if version is None else checked_version("version", version)
        answer = await self._connection.call("CutStream", pb.CutStreamRequest(stream=self.name, version=number))
        self.info = StreamInfo._from_proto(answer)
        return self.info

    async def watch(self, after: SupportsIndex = 0, timeout: Timeout = None) -> list[StreamVersion]:
        """Returns the versions after ``after`` that have ended, and waits until there is one.

        Args:
            after: a version, or 0. It must have been cut.
            timeout: in seconds or as a timedelta; None for no limit. After it, the list is empty.
        """
        deadline = checked_deadline(timeout)
        since = checked_version("after", after)
        request = pb.WatchVersionsRequest(stream=self.name, after_version=since)
        answer = await long_poll(self._connection, "WatchVersions", request, deadline, lambda found: found.versions)
        return [read(StreamVersion, version) for version in answer.versions]

    async def versions(self, after: SupportsIndex = 0) -> AsyncIterator[StreamVersion]:
        """Yields the versions after ``after``, in order, as they end; without end itself."""
        last = checked_version("after", after)
        while True:
            for version in await self.watch(last):
                yield version
                last = version.version

    async def round(self, version: SupportsIndex) -> Round:
        """Returns the round that a version is, with its state, its submissions and its result."""
        number = checked_integer("version must be 1 or more", version, 1, _MOST)
        name = f"rounds/{self.name.removeprefix('streams/')}.v{number}"
        return Round(self._connection, await self._connection.get_round(name))

    async def result(self, version: SupportsIndex, timeout: Timeout = None) -> Result:
        """Waits until a version has ended, and returns its result.

        Raises:
            NotFoundError: there is no such version yet, or its result_ttl is over.
            RoundFailedError: the version has no result.
            TimeoutError: (``DeadlineExceededError``) it has not ended within ``timeout``.
        """
        return await (await self.round(version)).result(timeout=timeout)

    async def delete(self) -> None:
        """Deletes the stream with all its versions. A buffer that was not cut is lost."""
        await self._connection.call("DeleteStream", pb.DeleteStreamRequest(stream=self.name))
