"""What all operations of a round use, and what rounds of both clients say of themselves."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from typing import Any

from sparseagg._internal.base.fields import as_of
from sparseagg._internal.base.text import html_table, plain
from sparseagg._internal.client.connection import Connection
from sparseagg._internal.client.memory_connection import MemoryConnection
from sparseagg._internal.client.progress import ProgressBar
from sparseagg._internal.client.requests import wait_request
from sparseagg._internal.client.retry import poll_pause, poll_seconds, raise_if_late, seconds_to
from sparseagg._internal.results.info import RoundInfo
from sparseagg._internal.results.result import Result
from sparseagg._internal.spec.round_spec import RoundSpec
from sparseagg.errors import DeadlineExceededError, FailedPreconditionError, RoundClosedError, RoundFailedError
from sparseagg.v1 import aggregation_pb2 as pb

_NOT_OPEN = re.compile(r"the round is (?P<state>[A-Z]+)(?P<reason>(: .*)?)", re.DOTALL)


def raise_if_failed(info: RoundInfo, cause: Exception | None = None) -> None:
    """Raises ``RoundFailedError`` if the round has ended without a result."""
    if info.state in ("failed", "cancelled"):
        reason = f": {info.state_reason}" if info.state_reason else ""
        raise RoundFailedError(plain(f"{info.name} {info.state}{reason}"), info.state) from cause


@contextlib.contextmanager
def naming_round(name: str) -> Iterator[None]:
    """Turns the error for a call that came after the close into a ``RoundClosedError`` that names the round.

    The proto promises the form of that error's message.
    """
    try:
        yield
    except FailedPreconditionError as error:
        match = _NOT_OPEN.fullmatch(str(error))
        if match is None:
            raise
        state = match["state"].lower()
        raise RoundClosedError(f"{name} is {state}{match['reason']}", state) from error


class RoundAttributes:
    """What rounds of both clients say of themselves, from their ``info``."""

    @property
    def info(self) -> RoundInfo:
        """The round as the server described it at ``info.as_of``; ``refresh`` asks again.

        ``submit`` and calls of others do not change it.
        """
        raise NotImplementedError

    @property
    def handle(self) -> str:
        """A string from which ``Round.from_handle`` makes this round in another process, such as "sparseagg://host:port/rounds/ID".

        It has the client's ``public_address``, by default its ``address``.

        Raises:
            FailedPreconditionError: the round is one of ":memory:", which no other process can reach.
        """
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The name, "rounds/{id}"."""
        return self.info.name

    @property
    def spec(self) -> RoundSpec:
        """The round's spec."""
        return self.info.spec

    def __repr__(self) -> str:
        info = self.info
        return f"Round({self.name!r}, {info.state}, submissions: {info.num_submissions}{as_of(info.as_of)})"

    def _repr_html_(self) -> str:
        """The state that the server told last, as a table, which notebooks show."""
        info = self.info
        heads = ("round", f"state{as_of(info.as_of)}", "submissions", "refused", "tuples", "MB", "engine")
        sizes = (info.num_submissions, info.num_refused, info.num_tuples, f"{info.num_bytes / 1e6:.1f}")
        return html_table(heads, [(self.name, f"{info.state} {info.state_reason}", *sizes, info.engine)])


class RoundCalls(RoundAttributes):
    """What all operations of a round use: its connection, and the round as the server described it last."""

    def __init__(
        self, connection: Connection | MemoryConnection, info: RoundInfo, owns_connection: bool = False
    ) -> None:
        self._connection = connection
        self._info = info
        self._spec = info.spec  # one for all updates, for its table_columns
        self._owns_connection = owns_connection

    @property
    def handle(self) -> str:
        return self._connection.endpoint.handle(self.name)

    @property
    def info(self) -> RoundInfo:
        return self._info

    @property
    def spec(self) -> RoundSpec:
        return self._spec

    async def refresh(self) -> RoundInfo:
        """Asks the server for the round, and returns it as it is now."""
        self._info = await self._connection.get_round(self.name)
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
        self._info = RoundInfo._from_proto(answer)
        return self._info

    async def _read(self, request: pb.StreamResultRequest, deadline: float | None, *, progress: bool = False) -> Result:
        """Waits until the round has ended, and reads its result; ``RoundFailedError`` if it has none.

        ``progress``: whether a bar on standard error shows the rows that have arrived.
        """
        if not self._info.ended:
            await self._wait(deadline)
        raise_if_failed(self._info)
        with raise_if_late(deadline, f"the result of {self.name} has not been read"):
            if progress:
                with ProgressBar(f"result {self.name}", _num_rows(self._info, request), "rows") as bar:
                    reader = await self._connection.read(request, self._info, deadline, bar)
            else:
                reader = await self._connection.read(request, self._info, deadline)
        return reader.result(self._info)


def _num_rows(info: RoundInfo, request: pb.StreamResultRequest) -> int:
    """Returns how many rows the result has at most: within a range of keys a sparse tensor may have fewer."""
    begin, end = request.range.begin, request.range.end
    return sum(
        min(tensor.num_keys, max(0, (end or tensor.num_rows) - begin))
        for tensor in info.results
        if not request.tensors or tensor.name in request.tensors
    )
