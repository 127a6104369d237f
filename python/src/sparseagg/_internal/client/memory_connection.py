"""The calls of a client whose rounds are in this process."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple, SupportsIndex

from sparseagg._internal.base.durations import seconds_of
from sparseagg._internal.base.ids import check_id, check_name, quoted_id
from sparseagg._internal.client.channel import checked_connections
from sparseagg._internal.client.deadlines import call_seconds
from sparseagg._internal.client.endpoint import Endpoint
from sparseagg._internal.client.progress import ProgressBar
from sparseagg._internal.client.retry import RetryPolicy
from sparseagg._internal.client.transport import Transport
from sparseagg._internal.client.upload import Upload
from sparseagg._internal.local import extension
from sparseagg._internal.local.memory_round import MemoryRound
from sparseagg._internal.results.info import RoundInfo, ServerInfo, Submission
from sparseagg._internal.results.result import Result, TensorResult
from sparseagg._internal.spec.round_spec import RoundSpec
from sparseagg._internal.wire.formats import ServerWire, checked_chunk_bytes
from sparseagg.errors import (
    AlreadyExistsError,
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    SparseaggError,
    UnimplementedError,
    error_of,
)
from sparseagg.v1 import aggregation_pb2 as pb
from sparseagg.v1 import tasks_pb2
from sparseagg.version import __version__

__all__ = ["MemoryConnection", "MemoryReader"]

_MOST_REASON_BYTES = 1024
# What rounds in this process do of the additions to the API; the names are the server's.
_FEATURES = (
    "ListSubmissions",
    "WithdrawSubmission",
    "CloseRoundRequest.only_client_ids",
    "AggregationSpec.on_empty",
    "TensorSpec.shape",
)
_TASK_METHODS = tasks_pb2.DESCRIPTOR.services_by_name["Tasks"].methods_by_name
_DISCONNECTED = "this client is closed"


class MemoryReader(NamedTuple):
    """A result that has been read, as ``ResultReader``; ``info`` is the round, if the caller does not have it."""

    tensors: dict[str, TensorResult]
    info: RoundInfo | None

    def result(self, info: RoundInfo | None = None) -> Result:
        """Returns the result; ``info`` is the round, if the reader does not have it."""
        known = self.info or info
        assert known is not None
        return Result(self.tensors, known)


class MemoryConnection:
    """The rounds of one client, and the calls to them, which a ``Connection`` would send to a server.

    A client owns its connection and shares it with its rounds, until ``close``. The methods are those of
    ``Connection``, with its errors and its rules for threads. Deadlines do not interrupt a submission or the reading of
    a result.

    Args:
        endpoint: the address ":memory:".
        transport: how to wait.
        chunk_bytes: checked, but without effect.
        connections: checked, but without effect.

    Attributes:
        deadline, has_reached: of ``Connection``; without effect.

    Raises:
        EngineMissingError: this installation has no engine; the message says what to install.
        InvalidArgumentError: an argument has a wrong type or value.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        transport: Transport,
        chunk_bytes: SupportsIndex | None,
        connections: SupportsIndex,
    ) -> None:
        self.endpoint = endpoint
        self.transport = transport
        self.retry = RetryPolicy()
        self.deadline: float | None = None
        self.has_reached = True
        checked_connections(connections)
        self._server_info = _server_info()
        self._server_wire = ServerWire.of(ServerInfo.from_proto(self._server_info), checked_chunk_bytes(chunk_bytes))
        self._pid = os.getpid()
        self._lock = threading.Lock()  # guards what follows
        self._rounds: dict[str, MemoryRound] = {}  # by name, oldest first
        self._closed = False

    async def close(self) -> None:
        """Discards the rounds. Calls under way raise ``CancelledError``, later ones ``FailedPreconditionError``."""
        self.transport.check_thread()
        with self._lock:
            self._closed = True
            discarded, self._rounds = self._rounds, {}
        for each in discarded.values():
            each.discard("the client was closed")

    async def call(
        self, method: str, request: Any, wait_s: float = 0.0, deadline: float | None = None, patient: bool = False
    ) -> Any:
        """Answers a method with one answer. The arguments after ``request`` have no effect."""
        with self._open():
            if method in _TASK_METHODS:
                raise UnimplementedError('":memory:" has no tasks; a server, also of ":local:", has them')
            if method == "GetServerInfo":
                return self._server_info
            if method == "CreateRound":
                return self._create(request).describe()
            if method == "ListRounds":
                with self._lock:
                    rounds = list(self._rounds.values())
                return pb.ListRoundsResponse(rounds=[each.describe() for each in rounds])
            if method == "WithdrawSubmission":
                check_id("client_id", request.client_id)
                found = self._find(request.round)
                # In a thread of the executor, since the call waits for an Add that is under way.
                withdrawn = await self.transport.convert(found.withdraw, request.client_id, request.submission_id)
                return pb.WithdrawSubmissionResponse(withdrawn=withdrawn)
            if method == "ListSubmissions":
                return pb.ListSubmissionsResponse(submissions=self._find(request.parent).submissions())
            found = self._find(request.name)
            if method == "WaitRound":
                await self.transport.wait(found.ended, seconds_of(request.timeout))
            elif method == "CloseRound":
                if request.only_client_ids:
                    for client_id in request.only_client_ids:
                        check_id("only_client_ids", client_id)
                    await self.transport.convert(found.close_with_only, request.only_client_ids)
                found.close()
            elif method == "CancelRound":
                if len(request.reason.encode()) > _MOST_REASON_BYTES:
                    num_bytes = len(request.reason.encode())
                    raise InvalidArgumentError(f"reason has {num_bytes} bytes; up to {_MOST_REASON_BYTES} are allowed")
                found.cancel(request.reason or "no reason given")
            return found.describe()

    async def get_round(self, name: str, deadline: float | None = None) -> RoundInfo:
        """Returns the round as it is now."""
        with self._open():
            return RoundInfo.from_proto(self._find(name).describe())

    async def delete_round(self, name: str) -> None:
        """Deletes a round."""
        with self._open():
            found = self._find(name)
            self._forget(name, found)
            found.discard("the round was deleted")

    async def server_wire(self, deadline: float | None = None) -> ServerWire:
        """Returns the value encodings to which updates may be rounded."""
        with self._open():
            return self._server_wire

    async def submit(
        self, upload: Upload, resumable: bool, bar: ProgressBar | None, deadline: float | None = None
    ) -> Submission:
        """Adds an upload to its round. ``bar`` shows the progress; None: nothing does."""
        with self._open():
            message = await self.transport.convert(_submit, self._find(upload.round_name), upload)
            if bar is not None:
                bar.move_to(upload.num_bytes)
            return Submission.from_proto(message)

    async def read(
        self, request: pb.StreamResultRequest, info: RoundInfo, deadline: float | None = None
    ) -> MemoryReader:
        """Reads a round's result."""
        with self._open():
            return MemoryReader(await self.transport.convert(self._find(request.name).read, request), None)

    async def aggregate(
        self, spec: RoundSpec, uploads: list[Upload], answer: pb.ResultFormat, deadline: float | None = None
    ) -> MemoryReader:
        """Aggregates in one call. ``answer`` has no effect; at its deadline, the call ends without a result."""
        with self._open():
            alone = MemoryRound("", spec.to_proto(), lambda _: None)
            try:
                for upload in uploads:
                    with _naming_client(upload.client_id):
                        await self.transport.convert(_submit, alone, upload)
                alone.close()
                await self.transport.wait(alone.ended, call_seconds(deadline))
            finally:
                alone.discard("the call ended")
            if alone.failure is not None:
                raise alone.failure
            info = RoundInfo.from_proto(alone.describe())
            if info.state != "done":
                raise DeadlineExceededError("the merge was under way")
            return MemoryReader(await self.transport.convert(alone.read, pb.StreamResultRequest()), info)

    @contextlib.contextmanager
    def _open(self) -> Iterator[None]:
        """Raises ``FailedPreconditionError`` if the client is closed, ``CancelledError`` in calls that this ended."""
        self.transport.check_thread()
        if self._pid != os.getpid():
            raise FailedPreconditionError(
                'rounds of ":memory:" are of the process that has made their client, and this process was forked from '
                'it; rounds of ":local:" or of another server are for several processes'
            )
        if self._closed:
            raise FailedPreconditionError(_DISCONNECTED)
        refusal = None
        try:
            yield
        except SparseaggError as error:
            if not self._closed:
                raise
            refusal = error
        if self._closed:
            raise CancelledError(_DISCONNECTED) from refusal

    def _create(self, request: pb.CreateRoundRequest) -> MemoryRound:
        """Opens a round; returns the round that exists if its id and spec are the same."""
        check_name("round_id", request.round_id)
        name = f"rounds/{request.round_id}"
        with self._lock:
            if name not in self._rounds:
                self._rounds[name] = MemoryRound(name, request.spec, lambda expired: self._forget(name, expired))
            elif self._rounds[name].describe().spec != request.spec:
                raise AlreadyExistsError(f"round '{request.round_id}' exists already, with another spec")
            return self._rounds[name]

    def _find(self, name: str) -> MemoryRound:
        prefix, slash, round_id = name.partition("/")
        if prefix != "rounds" or not slash:
            raise InvalidArgumentError(f"the name {quoted_id(name)} is not a round name; round names are rounds/ID")
        check_name("round_id", round_id)
        with self._lock:
            if name not in self._rounds:
                raise NotFoundError(f"no round '{round_id}'")
            return self._rounds[name]

    def _forget(self, name: str, forgotten: MemoryRound) -> None:
        """Removes the round, unless another one has taken its name."""
        with self._lock:
            if self._rounds.get(name) is forgotten:
                del self._rounds[name]


def _server_info() -> pb.ServerInfo:
    """Returns the description of the engine in this process, which has no limits."""
    engine, _, description = extension.describe().partition(" ")
    return pb.ServerInfo(
        version=__version__,
        api_versions=[pb.DESCRIPTOR.package],
        engine=engine,
        engine_description=description.strip("()"),
        features=_FEATURES,
        key_encodings=pb.KeyEncoding.keys()[1:],
        value_encodings=pb.ValueEncoding.keys()[1:],
    )


def _submit(found: MemoryRound, upload: Upload) -> pb.CommitSubmissionResponse:
    return found.submit(upload.tensors, upload.client_id, upload.submission_id, upload.weight, upload.wire.values)


@contextlib.contextmanager
def _naming_client(client_id: str) -> Iterator[None]:
    """Names the client in an error, as a server's Aggregate does."""
    try:
        yield
    except SparseaggError as error:
        raise error_of(error.code, f"client {quoted_id(client_id)}: {error}") from error
