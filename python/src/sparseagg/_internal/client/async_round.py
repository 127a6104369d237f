"""The rounds of both clients: every operation of a round as a coroutine.

To *close* a round is to take no more submissions and to start the merge. A round that is done, failed or cancelled *has
ended*. Only a round that is *done* has a result. To *finish* a round is to close it and to read its result.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, SupportsFloat

from sparseagg._internal.base.arguments import Timeout, checked_text
from sparseagg._internal.base.renamed import ENCODINGS, renamed
from sparseagg._internal.base.types import Update
from sparseagg._internal.client.connection import Connection
from sparseagg._internal.client.deadlines import checked_deadline, poll_pause, poll_seconds, raise_if_late, seconds_to
from sparseagg._internal.client.endpoint import Endpoint
from sparseagg._internal.client.memory_connection import MemoryConnection
from sparseagg._internal.client.progress import ProgressBar
from sparseagg._internal.client.requests import close_request, result_format, result_request, wait_request
from sparseagg._internal.client.round_errors import naming_round, raise_if_failed
from sparseagg._internal.client.transport import Transport
from sparseagg._internal.client.upload import make_upload
from sparseagg._internal.results.info import RoundInfo, Submission
from sparseagg._internal.results.result import Result
from sparseagg._internal.spec.round_spec import RoundSpec
from sparseagg._internal.updates.contributors import ClientId, checked_client_id, naming_client
from sparseagg._internal.wire.formats import ValueEncoding
from sparseagg.errors import DeadlineExceededError, FailedPreconditionError, UnimplementedError
from sparseagg.v1 import aggregation_pb2 as pb

__all__ = ["Round", "RoundAttributes"]


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


@renamed({"end": "close() and wait()", **ENCODINGS})
class Round(RoundAttributes):
    """A round on the server, from the methods of ``Client``, or from ``open_round``. Threads: as ``Client``.

    ``sparseagg.Round`` has the same methods, and documents their arguments and errors. After an error, ``info`` is
    the last description that the server has given; after a ``RoundFailedError``, that of the failed or cancelled round.
    """

    def __init__(
        self, connection: Connection | MemoryConnection, info: RoundInfo, owns_connection: bool = False
    ) -> None:
        self._connection = connection
        self._info = info
        self._owns_connection = owns_connection

    def __reduce__(self) -> tuple[Any, ...]:
        return _reconnected, (self._connection.endpoint, type(self._connection.transport), self._info)

    async def __aenter__(self) -> Round:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    async def release(self) -> None:
        """Closes the connection of a round that has its own; see ``sparseagg.Round.release``."""
        if self._owns_connection:
            await self._connection.close()

    @property
    def handle(self) -> str:
        """A string from which ``open_round`` makes this round in another process; see ``sparseagg.Round.handle``."""
        return self._connection.endpoint.handle(self.name)

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
        client_id: ClientId,
        update: Update,
        weight: SupportsFloat | None = None,
        *,
        key_encoding: str = "auto",
        value_encoding: ValueEncoding = None,
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
        # No answer by the deadline is a DeadlineExceededError. A FailedPreconditionError names the round and its state.
        with raise_if_late(deadline, f"the submission to {self.name} has not ended"), naming_round(self.name):
            server = await self._connection.server_wire(deadline)
            upload = await self._connection.transport.convert(
                make_upload,
                self.spec,
                update,
                client_id=client_id,
                weight=weight,
                chunk_bytes=server.chunk_bytes,
                wire=server.format(self.spec, key_encoding, value_encoding),
                round_name=self.name,
                submission_id=submission_id,
            )
            with naming_client(upload.client_id):
                if not progress:
                    return await self._connection.submit(upload, resumable, None, deadline)
                with ProgressBar(f"upload {client_id}", upload.num_bytes, "B") as bar:
                    return await self._connection.submit(upload, resumable, bar, deadline)

    async def submissions(self) -> list[Submission]:
        """Returns the submissions that count, in order of client id; see ``sparseagg.Round.submissions``."""
        submissions: list[Submission] = []
        token: str | None = ""  # of a page: "" for the first one, None after the last one
        while token is not None:
            page = await self._connection.call(
                "ListSubmissions", pb.ListSubmissionsRequest(parent=self.name, page_token=token)
            )
            submissions += [Submission.from_proto(proto, self.name) for proto in page.submissions]
            token = page.next_page_token or None
        return submissions

    async def withdraw(self, client_id: ClientId) -> bool:
        """Takes a client's submission out of the open round; see ``sparseagg.Round.withdraw``."""
        request = pb.WithdrawSubmissionRequest(round=self.name, client_id=checked_client_id(client_id))
        with naming_round(self.name):
            return bool((await self._connection.call("WithdrawSubmission", request)).withdrawn)

    async def close(self, timeout: Timeout = None, *, only: Iterable[ClientId] | None = None) -> RoundInfo:
        """Closes the round, which starts the merge; see ``sparseagg.Round.close``. Returns the round as it is then."""
        return await self._close(close_request(self.name, only), checked_deadline(timeout))

    async def wait(self, timeout: Timeout = None) -> RoundInfo:
        """Waits until the round has ended; see ``sparseagg.Round.wait``."""
        return await self._wait(checked_deadline(timeout))

    async def result(
        self,
        tensors: Sequence[str] | None = None,
        *,
        keys: tuple[int, int | None] | None = None,
        key_encoding: str = "auto",
        value_encoding: str | None = None,
        timeout: Timeout = None,
    ) -> Result:
        """Waits until the round has ended, and reads its result; see ``sparseagg.Round.result``."""
        request = result_request(self.name, tensors, keys, result_format(key_encoding, value_encoding))
        return await self._read(request, checked_deadline(timeout))

    async def finish(
        self,
        timeout: Timeout = None,
        *,
        only: Iterable[ClientId] | None = None,
        key_encoding: str = "auto",
        value_encoding: str | None = None,
    ) -> Result:
        """Closes the round, waits until it has ended, and reads its result; see ``sparseagg.Round.finish``."""
        # All arguments are checked before the round is closed.
        request = result_request(self.name, None, None, result_format(key_encoding, value_encoding))
        deadline = checked_deadline(timeout)
        await self._close(close_request(self.name, only), deadline)
        return await self._read(request, deadline)

    async def cancel(self, reason: str = "") -> RoundInfo:
        """Ends the round without a result; see ``sparseagg.Round.cancel``."""
        return await self._call(
            "CancelRound", pb.CancelRoundRequest(name=self.name, reason=checked_text("a reason", reason))
        )

    async def delete(self) -> None:
        """Removes the round and its result from the server; ``NotFoundError`` if the server has no such round."""
        await self._connection.delete_round(self.name)

    async def _close(self, request: pb.CloseRoundRequest, deadline: float | None) -> RoundInfo:
        """Closes the round on the server."""
        try:
            await self._call("CloseRound", request, deadline)
        except FailedPreconditionError as error:  # with only_client_ids
            self._info = await self._connection.get_round(self.name, deadline)
            raise_if_failed(self._info, error)
            raise
        wanted, counted = len(request.only_client_ids), self._info.num_submissions
        if wanted not in (0, counted):  # an older server does not see the field, and counts all
            raise UnimplementedError(
                f"{self.name} counts {counted} submissions instead of {wanted}: the server is too old"
            )
        return self._info

    async def _wait(self, deadline: float | None) -> RoundInfo:
        """Returns the round when it has ended. Asks the server to answer then, or after ``poll`` seconds; repeats."""
        while True:
            begun, poll = time.monotonic(), poll_seconds(deadline)
            await self._call("WaitRound", wait_request(self.name, poll), deadline, poll)
            if self._info.ended:
                return self._info
            if seconds_to(deadline) == 0:
                raise DeadlineExceededError(f"{self.name} is still {self._info.state}")
            # The server may have answered early, at its own --max-wait.
            await self._connection.transport.sleep(poll_pause(self._connection.retry, poll, begun))

    async def _call(self, method: str, request: Any, deadline: float | None = None, wait_s: float = 0.0) -> RoundInfo:
        """Calls a method whose answer is the round, keeps the answer in ``info`` and returns it.

        ``wait_s``: how long the server may wait before it answers. The call is patient: it waits for its answer a few
        seconds beyond the deadline. If none has come by then, the ``DeadlineExceededError`` has the state last known.
        """
        with raise_if_late(deadline, f"{self.name} was {self._info.state} when last heard of"):
            answer = await self._connection.call(method, request, wait_s, deadline, patient=True)
        self._info = RoundInfo.from_proto(answer)
        return self._info

    async def _read(self, request: pb.StreamResultRequest, deadline: float | None) -> Result:
        """Waits until the round has ended, and reads its result; ``RoundFailedError`` if it has none."""
        if not self._info.ended:
            await self._wait(deadline)
        raise_if_failed(self._info)
        with raise_if_late(deadline, f"the result of {self.name} has not been read"):
            reader = await self._connection.read(request, self._info, deadline)
        return reader.result(self._info)


def _reconnected(endpoint: Endpoint, transport_class: type[Transport], info: RoundInfo) -> Round:
    """Returns a round that was pickled, with a connection of its own, which opens at the first call."""
    connection = Connection(endpoint, transport_class())
    connection.has_reached = True  # by the round that was pickled: the server may restart now
    return Round(connection, info, owns_connection=True)
