"""The calls of a client whose rounds are in this process."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex

from sparseagg._internal.base import extension
from sparseagg._internal.base.arguments import quoted_id
from sparseagg._internal.client.channels import checked_connections, methods
from sparseagg._internal.client.endpoint import Endpoint
from sparseagg._internal.client.progress import ProgressBar
from sparseagg._internal.client.retry import RetryPolicy, call_seconds
from sparseagg._internal.client.transport import Transport
from sparseagg._internal.client.upload import Upload
from sparseagg._internal.local import cuda_plugin
from sparseagg._internal.local.columns import part_of, tensor_result
from sparseagg._internal.results.info import RoundInfo, Submission
from sparseagg._internal.results.result import Result, TensorResult
from sparseagg._internal.results.server_info import ServerInfo
from sparseagg._internal.spec.round_spec import RoundSpec
from sparseagg._internal.updates.arrays import TensorData
from sparseagg._internal.updates.contributors import Batch
from sparseagg._internal.wire.encode import PLAIN, ServerWire, WireFormat, bulk_of, checked_chunk_bytes
from sparseagg.errors import (
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    SparseaggError,
    UnimplementedError,
    error_of,
)
from sparseagg.v1 import aggregation_pb2 as pb
from sparseagg.v1 import tasks_pb2
from sparseagg.version import __version__

if TYPE_CHECKING:
    from sparseagg._engine import MemoryRound, MemoryRounds, Part

_MERGES = 2  # rounds of one client that merge at once, each on all cores
# What rounds in this process do of the additions to the API; the names are the server's.
_FEATURES = (
    "ListSubmissions",
    "WithdrawSubmission",
    "CloseRoundRequest.only_client_ids",
    "AggregationSpec.on_empty",
    "OP_MEDIAN",
    "AggregationSpec.result_top_k",
    "AggregationSpec.return_moments",
    "TensorSpec.shape",
    "SubmitBatch",
    "RoundSpec.clip",
    "AggregationSpec.mean_divisor",
    "SealRound",
    "InspectRound",
    "CloseRoundRequest.client_weights",
    "RoundSpec.privacy",
    "Streams",
    "Models",
)
_RESPONSES = {method.name: method.response for method in methods()}
_WAITS = ("WaitRound", "WatchVersions", "GetModel")  # end by themselves
# Compute, or wait for commits.
_LONG_OF_ROUNDS = ("WithdrawSubmission", "SealRound", "CloseRound", "CutStream", "InspectRound")
_LONG = (*_LONG_OF_ROUNDS, "CreateModel", "ReadRows", "ApplyRound", "DeleteModel")
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
    """The rounds of one client, which are those of a server without its calls, for a ``Connection``'s methods.

    A client owns its connection and shares it with its rounds, until ``close``. Errors and rules for threads are those
    of ``Connection``. Deadlines do not interrupt a submission or the reading of a result.

    Args:
        endpoint: the address ":memory:".
        transport: how to wait.
        chunk_bytes: checked, but without effect.
        connections: checked, but without effect.
        device: "cuda" merges on the GPU, and reads arrays in its memory there; "cpu" and None merge on the CPU.

    Attributes:
        deadline, has_reached: of ``Connection``; without effect.
        device_reader: borrows arrays in the memory of the GPU; None: rounds take none.

    Raises:
        EngineMissingError, UnavailableError, FailedPreconditionError: as of ``Aggregator``.
        InvalidArgumentError: an argument has a wrong type or value.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        transport: Transport,
        chunk_bytes: SupportsIndex | None,
        connections: SupportsIndex,
        device: str | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.transport = transport
        self.retry = RetryPolicy()
        self.deadline: float | None = None
        self.has_reached = True
        checked_connections(connections)
        on_gpu = cuda_plugin.uses_gpu(device)
        with extension.errors():
            self._rounds: MemoryRounds = extension.load().MemoryRounds(_MERGES, os.urandom(32), on_gpu)
        self.device_reader = self._rounds if on_gpu else None
        self._server_info = _server_info(self._rounds.engine)
        self._server_wire = ServerWire.of(ServerInfo._from_proto(self._server_info), checked_chunk_bytes(chunk_bytes))
        self._pid = os.getpid()
        self._closed = False
        self._waits: dict[int, concurrent.futures.Future[bytes]] = {}  # each is done when its wait is over
        self._numbers = itertools.count()  # keys of _waits
        thread = threading.Thread(target=_end_waits, args=(self._rounds, self._waits), name=":memory:", daemon=True)
        thread.start()
        self._end = weakref.finalize(self, _close, self._rounds, thread, self._pid)  # by the end of Python

    def at_home(self, spec: RoundSpec, client_id: str) -> MemoryConnection:
        """Returns this connection, which has all clients."""
        return self

    async def close(self) -> None:
        """Discards the rounds. Calls under way raise ``CancelledError``, later ones ``FailedPreconditionError``."""
        self.transport.check_thread()
        self._closed = True
        self._end()

    async def call(
        self, method: str, request: Any, wait_s: float = 0.0, deadline: float | None = None, patient: bool = False
    ) -> Any:
        """Answers a method with one answer. The arguments after ``request`` have no effect."""
        with self._open():
            if method in _TASK_METHODS:
                raise UnimplementedError('":memory:" has no tasks; a server, also of ":local:", has them')
            if method == "CreateBackup":
                raise FailedPreconditionError('":memory:" has no data directory; a server with --data-dir has one')
            if method == "GetServerInfo":
                return self._server_info
            if method == "CreateRound":
                _check_round_spec(request.spec)
            elif method == "CreateStream":
                _check_round_spec(request.spec.round)
            answer = _RESPONSES[method].FromString
            message = request.SerializeToString()
            if method in _WAITS:
                return answer(await self._wait(functools.partial(self._rounds.start, method, message)))
            call = functools.partial(self._rounds.call, method, message)
            return answer(await self.transport.convert(call) if method in _LONG else call())

    async def get_round(self, name: str, deadline: float | None = None) -> RoundInfo:
        """Returns the round as it is now."""
        return RoundInfo._from_proto(await self.call("GetRound", pb.GetRoundRequest(round=name)))

    async def server_wire(self, deadline: float | None = None) -> ServerWire:
        """Returns the value encodings to which updates may be rounded."""
        with self._open():
            return self._server_wire

    async def submit(
        self, upload: Upload, resumable: bool, bar: ProgressBar | None, deadline: float | None = None
    ) -> Submission:
        """Adds an upload to its round. ``bar`` shows the progress; None: nothing does."""
        if upload.is_partial:
            raise UnimplementedError('rounds of ":memory:" take no partials; an Aggregator and those of a server do')
        with self._open():
            message = await self.transport.convert(_submit, self._rounds.find_target(upload.round_name), upload)
            if bar is not None:
                bar.move_to(upload.num_bytes)
            return Submission._from_proto(message)

    async def submit_batch(
        self,
        batch: Batch,
        round_name: str,
        submission_id: str,
        deadline: float | None = None,
        base_version: int | None = None,
    ) -> pb.SubmitBatchResponse:
        """Adds the updates of many clients; those that are refused are in the answer."""
        with self._open():
            found = self._rounds.find_target(round_name)
            return await self.transport.convert(_submit_batch, found, batch, submission_id, base_version)

    async def read(
        self,
        request: pb.StreamResultRequest,
        info: RoundInfo,
        deadline: float | None = None,
        bar: ProgressBar | None = None,
    ) -> MemoryReader:
        """Reads a round's result. ``bar`` is not moved: the arrays are there at once."""
        with self._open():
            found = self._rounds.find(request.round)
            return MemoryReader(await self.transport.convert(_read, found, request, info.spec), None)

    async def export(self, method: str, request: Any, deadline: float | None = None) -> list[Any]:
        """Raises ``UnimplementedError``: the caller has the submissions, and an ``Aggregator`` exports partials."""
        if method == "ExportSubmissions":
            raise UnimplementedError('rounds of ":memory:" export no submissions; those of a server do')
        raise UnimplementedError('rounds of ":memory:" export no partials; an Aggregator and those of a server do')

    async def aggregate(
        self, spec: RoundSpec, uploads: list[Upload], answer: pb.ResultFormat, deadline: float | None = None
    ) -> MemoryReader:
        """Aggregates in one call. ``answer`` has no effect; at its deadline, the call ends without a result."""
        with self._open():
            message = spec._to_proto()
            _check_round_spec(message)
            alone = self._rounds.create_private(message.SerializeToString())
            try:
                for upload in uploads:
                    with _naming_client(upload.client_id):
                        await self.transport.convert(_submit, alone, upload)
                await self.transport.convert(alone.close)
                await self._wait(functools.partial(alone.await_end, call_seconds(deadline)))
                alone.raise_failure()
                info = RoundInfo._from_proto(pb.Round.FromString(alone.describe()))
                if info.state != "done":
                    raise DeadlineExceededError("the merge was under way")
                return MemoryReader(await self.transport.convert(_read, alone, pb.StreamResultRequest(), spec), info)
            finally:
                with contextlib.suppress(FailedPreconditionError), extension.errors():
                    alone.cancel("the call ended")  # which frees the updates, though an error may keep `alone`

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
            with extension.errors():
                yield
        except SparseaggError as error:
            if not self._closed:
                raise
            refusal = error
        if self._closed:
            raise CancelledError(_DISCONNECTED) from refusal

    async def _wait(self, start: Callable[[int], None]) -> bytes:
        """Returns the response of a call, or of a wait without one, that ``start`` begins under a number.

        ``close`` ends it, too.
        """
        ended: concurrent.futures.Future[bytes] = concurrent.futures.Future()
        ended.set_running_or_notify_cancel()  # so that a caller who stops waiting cannot cancel the future
        number = next(self._numbers)
        self._waits[number] = ended
        if self._closed:  # nobody may be left to end the wait
            return b""
        start(number)
        await self.transport.wait(ended, None)
        return ended.result()


def _end_waits(rounds: MemoryRounds, waits: dict[int, concurrent.futures.Future[bytes]]) -> None:
    """Ends the waits that the rounds say are over, until the rounds are closed, and then all others."""
    while ended := rounds.next_ended():
        for number, error, response in ended:
            future = waits.pop(number)
            future.set_exception(extension.error_of_code(*error)) if error[0] else future.set_result(response)
    for future in list(waits.values()):
        future.set_result(b"")


def _close(rounds: MemoryRounds, thread: threading.Thread, pid: int) -> None:
    """Closes the rounds, and ends the thread before Python ends: it could not take Python's lock any more."""
    if os.getpid() == pid:
        rounds.close()
        thread.join()


def _server_info(described: str) -> pb.ServerInfo:
    """Returns the description of the engine in this process, which has no limits."""
    engine, _, description = described.partition(" ")
    return pb.ServerInfo(
        version=__version__,
        api_versions=[pb.DESCRIPTOR.package],
        engine=engine,
        engine_description=description[1:-1],
        features=_FEATURES,
        key_encodings=pb.KeyEncoding.keys()[1:],
        value_encodings=pb.ValueEncoding.keys()[1:],
    )


def _check_round_spec(spec: pb.RoundSpec) -> None:
    if spec.HasField("certificate"):
        raise FailedPreconditionError(
            'rounds of ":memory:" have no certificate: it is a server\'s statement, signed with --certificate-key'
        )
    if spec.stay_open:
        raise UnimplementedError('stay_open is for rounds of a server, not of ":memory:"')
    if spec.accept_partials:
        raise UnimplementedError('rounds of ":memory:" take no partials; an Aggregator and those of a server do')
    if spec.HasField("cluster"):
        raise InvalidArgumentError('rounds of ":memory:" are of this process alone, and have no cluster')


def _submit(found: MemoryRound, upload: Upload) -> pb.CommitSubmissionResponse:
    parts = [_part(data, upload.wire) for data in upload.tensors]
    on_device = [(data.spec.name, data.keys, data.num_keys, data.values) for data in upload.device_tensors]
    with extension.errors():
        answer = found.submit(
            upload.client_id, upload.submission_id, upload.weight, parts, upload.base_version, on_device
        )
    return pb.CommitSubmissionResponse.FromString(answer)


def _submit_batch(
    found: MemoryRound, batch: Batch, submission_id: str, base_version: int | None
) -> pb.SubmitBatchResponse:
    parts = [_part(data, PLAIN) for data in batch.tensors]
    with extension.errors():
        answer = found.submit_batch(batch.client_ids, submission_id, batch.weights, batch.num_keys, parts, base_version)
    return pb.SubmitBatchResponse(**answer)


def _part(data: TensorData, wire: WireFormat) -> Part:
    # The round checks the keys before it copies them, so that nobody may change them meanwhile.
    keys = None if data.keys is None else bulk_of(data.keys.copy())
    values = None if data.values is None else wire.encode_values(data.spec, data.values)
    return data.spec.name, keys, data.spec.key_bytes, data.num_keys, values, wire.value_encoding(data.spec)


def _read(found: MemoryRound, request: pb.StreamResultRequest, spec: RoundSpec) -> dict[str, TensorResult]:
    """Returns the tensors and keys that the request names, in new arrays."""
    with extension.errors():
        results = found.read(list(request.tensors))
    names = list(request.tensors) or [tensor.name for tensor in spec.tensors]
    encoding = pb.ValueEncoding.Name(request.format.value_encoding)[len("VALUE_ENCODING_") :].lower()
    return {
        name: part_of(tensor_result(spec, spec.tensor(name), result), request.range.begin, request.range.end, encoding)
        for name, result in zip(names, results)
    }


@contextlib.contextmanager
def _naming_client(client_id: str) -> Iterator[None]:
    """Names the client in an error, as a server's Aggregate does."""
    try:
        yield
    except SparseaggError as error:
        text = f"client {quoted_id(client_id)}: {error}"
        raise error_of(error.code, text, error.reason, error.metadata) from error
