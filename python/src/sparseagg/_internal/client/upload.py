"""Uploads: submissions and one-shot aggregations, from what callers have to the messages that are sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from sparseagg._internal.base.foreign import Array
from sparseagg._internal.base.types import KeyEncoding
from sparseagg._internal.results.info import Submission
from sparseagg._internal.updates.contributors import batches, columns_of, submission_columns
from sparseagg._internal.wire.encode import ValueEncoding

if TYPE_CHECKING:
    from sparseagg._internal.client.connection import Connection
    from sparseagg._internal.client.memory_connection import MemoryConnection
import asyncio
import contextlib
import dataclasses
import functools
import hashlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, SupportsFloat

import grpc

from sparseagg._internal.base.arguments import checked_text
from sparseagg._internal.base.types import Update, Updates, Weighted
from sparseagg._internal.client.progress import ProgressBar
from sparseagg._internal.local.device_tensors import DeviceData, DeviceReader, device_update_data
from sparseagg._internal.results.info import BatchReceipt
from sparseagg._internal.spec.round_spec import RoundSpec
from sparseagg._internal.updates.arrays import TensorData, is_module, update_data
from sparseagg._internal.updates.contributors import (
    Batch,
    ClientId,
    checked_client_id,
    checked_weight,
    named_updates,
    naming_client,
    split_weight,
)
from sparseagg._internal.wire.encode import PLAIN, ChunkMessage, WireFormat, bulk_of, encode_chunks, plan_chunks
from sparseagg.errors import InternalError, InvalidArgumentError, SparseaggError, error_of
from sparseagg.v1 import aggregation_pb2 as pb
from sparseagg.version import __version__


def upload_tag(tensors: Sequence[TensorData], weight: float | None, chunk_bytes: int, wire: WireFormat) -> bytes:
    """Returns a hash of the content and of the cut into chunks: with equal tags, chunks of equal numbers are equal.

    The encoding of keys does not change the tuples of a chunk, and is left out of the hash. Cost: BLAKE2b over the
    arrays, 1.2 to 1.5 ms a megabyte, without a copy.
    """
    digest = hashlib.blake2b(digest_size=16)
    columns = [
        (
            data.spec.name,
            data.spec.dtype,
            data.spec.row_width,
            wire.value_encoding(data.spec),
            data.num_keys,
            data.keys is None,
            data.values is None,
        )
        for data in tensors
    ]
    digest.update(repr((__version__, weight, columns)).encode())
    for pieces in plan_chunks(tensors, chunk_bytes, wire):
        digest.update(repr([(data.spec.name, start, stop) for data, start, stop in pieces]).encode())
    for data in tensors:
        for array in (data.keys, data.values):
            if array is not None:
                digest.update(bulk_of(array))
    return digest.digest()


@dataclasses.dataclass(frozen=True)
class Upload:
    """A submission in the making. It borrows the caller's arrays, and makes each chunk when the chunk is sent."""

    tensors: list[TensorData]
    client_id: str
    submission_id: str
    round_name: str  # "rounds/{id}" or "streams/{id}"; empty in a one-shot aggregation
    weight: float | None  # of the submission
    chunk_bytes: int  # about how many bytes one chunk has
    wire: WireFormat = PLAIN  # the encodings that may be used
    is_shared: bool = False  # the caller chose the submission id, so other processes may use the same one
    base_version: int | None = None  # of an upload to a stream; else None
    # the rest of the update, in the memory of a GPU: of rounds of ":memory:" only
    device_tensors: Sequence[DeviceData] = ()

    is_partial: ClassVar[bool] = False  # whether it has partials in the place of tensors

    @functools.cached_property
    def tag(self) -> bytes:
        """The hash of the content by which the server tells this upload from others with the same submission id.

        Empty for a random submission id, which no other upload has. Cost: about 1.5 ms a megabyte, once.
        """
        return upload_tag(self.tensors, self.weight, self.chunk_bytes, self.wire) if self.is_shared else b""

    def chunks(self, first: int = 0, tag: bytes = b"") -> Iterator[ChunkMessage]:
        """Yields the chunks from number ``first`` on; each names ``tag``."""
        return encode_chunks(
            self.tensors,
            client_id=self.client_id,
            submission_id=self.submission_id,
            round_name=self.round_name,
            weight=self.weight,
            chunk_bytes=self.chunk_bytes,
            wire=self.wire,
            upload_tag=tag,
            first=first,
            base_version=self.base_version,
        )

    @property
    def identity(self) -> dict[str, Any]:
        """The fields of a request by which the server finds the upload."""
        return {
            "round": self.round_name,
            "client_id": self.client_id,
            "submission_id": self.submission_id,
            "upload_tag": self.tag,
        }

    @property
    def num_bytes(self) -> int:
        """The bytes of keys and values in the caller's arrays."""
        arrays = [array for data in self.tensors for array in (data.keys, data.values) if array is not None]
        return sum(array.nbytes for array in arrays) + sum(data.num_bytes for data in self.device_tensors)


def make_upload(
    spec: RoundSpec,
    update: Update,
    *,
    client_id: ClientId,
    weight: SupportsFloat | None,
    chunk_bytes: int,
    wire: WireFormat = PLAIN,
    round_name: str = "",
    submission_id: str | None = None,
    base_version: int | None = None,
    device: DeviceReader | None = None,
) -> Upload:
    """Converts an update and checks it. ``arrays.update_data`` has the types of ``update``; ``device`` reads arrays of
    a GPU.

    Raises ``InvalidArgumentError`` for a wrong argument; the message names the client if it is the update.
    """
    client_id = checked_client_id(client_id)
    is_shared = submission_id is not None
    submission_id = checked_text("a submission id", uuid.uuid4().hex if submission_id is None else submission_id)
    with naming_client(client_id):
        weight = checked_weight(weight)
        on_device: list[DeviceData] = []
        if device is None:
            tensors = update_data(spec, update)
        else:
            tensors, on_device = device_update_data(spec, update, device)
        wire.check_values(tensors)
        for data in on_device:
            if data.values is not None and wire.value_encoding(data.spec) != data.spec.dtype:
                raise InvalidArgumentError(
                    f"tensor {data.spec.name!r}: value_encoding rounds values in host memory only, not on a GPU"
                )
    return Upload(
        tensors=tensors,
        client_id=client_id,
        submission_id=submission_id,
        round_name=round_name,
        weight=weight,
        chunk_bytes=chunk_bytes,
        wire=wire,
        is_shared=is_shared,
        base_version=base_version,
        device_tensors=on_device,
    )


def aggregate_uploads(
    spec: RoundSpec,
    updates: Updates,
    chunk_bytes: int,
    wire: WireFormat = PLAIN,
    device: DeviceReader | None = None,
) -> list[Upload]:
    """Converts the updates of a one-shot aggregation, as of ``Client.aggregate``; an error names the client."""
    return [aggregate_upload(spec, *named, chunk_bytes, wire, device) for named in named_updates(updates)]


def aggregate_upload(
    spec: RoundSpec,
    client_id: str,
    weighted: Weighted,
    chunk_bytes: int,
    wire: WireFormat = PLAIN,
    device: DeviceReader | None = None,
) -> Upload:
    """Converts one update of a one-shot aggregation; see ``aggregate_uploads``."""
    update, weight = split_weight(weighted)
    upload = make_upload(
        spec,
        update,
        client_id=client_id,
        submission_id="0",
        weight=weight,
        chunk_bytes=chunk_bytes,
        wire=wire,
        device=device,
    )
    if is_module(update) and device is None:  # training may change the gradients before they are sent
        upload = dataclasses.replace(upload, tensors=[data.copied() for data in upload.tensors])
    return upload


def aggregate_requests(
    spec: RoundSpec, uploads: list[Upload], result_format: pb.ResultFormat | None = None
) -> Iterator[pb.AggregateRequest | ChunkMessage]:
    """Yields the messages of a one-shot aggregation; ``result_format`` has the encodings of its result."""
    yield pb.AggregateRequest(spec=spec._to_proto(), format=result_format)
    for upload in uploads:
        yield from upload.chunks()


@contextlib.contextmanager
def streamed(requests: Iterator[Any]) -> Iterator[Iterator[Any]]:
    """Lends the messages of a streaming call, and raises the error of ``requests`` if making a message has failed.

    gRPC alone would end the call with an error of its own, and hide the reason.
    """
    failed: list[Exception] = []

    def watched() -> Iterator[Any]:
        try:
            yield from requests
        except Exception as error:
            failed.append(error)
            raise

    try:
        yield watched()
    except (grpc.RpcError, asyncio.CancelledError):
        if not failed:
            raise
    if failed:
        raise failed.pop()  # no reference stays in this frame, so that the error ends with its handler


def counted(chunks: Iterator[ChunkMessage], bar: ProgressBar | None) -> Iterator[ChunkMessage]:
    """Yields the chunks, and moves the bar to the end of each chunk when the next one is asked for."""
    for chunk in chunks:
        yield chunk
        if bar is not None:
            bar.move_to(chunk.end_bytes)


_CODES = {code.value[0]: code for code in grpc.StatusCode}


def batch_receipt(answers: Iterable[tuple[Batch, pb.SubmitBatchResponse]]) -> BatchReceipt:
    """Returns the receipt of all answers; ``InternalError`` if one is not of its batch."""
    num_submissions = num_duplicates = num_tuples = num_bytes = 0
    refused: dict[str, SparseaggError] = {}
    for batch, answer in answers:
        if len(answer.codes) != batch.stop - batch.first:
            raise InternalError(f"the server answered {len(answer.codes)} of {batch.stop - batch.first} submissions")
        num_duplicates += answer.num_duplicates
        num_tuples += answer.num_tuples
        num_bytes += answer.num_bytes
        num_counted = answer.codes.count(0)
        num_submissions += num_counted
        if num_counted == len(answer.codes):
            continue
        refusals = {refusal.index: refusal for refusal in answer.refusals}
        for index, client_id in enumerate(batch.client_ids.split("\n")):
            if answer.codes[index]:
                code = _CODES.get(answer.codes[index], grpc.StatusCode.UNKNOWN)
                refusal = refusals.get(index, pb.BatchRefusal(reason=code.name))
                text = f"client {client_id!r}: {refusal.reason}"
                refused[client_id] = error_of(code, text, refusal.error_reason, dict(refusal.error_metadata))
    return BatchReceipt(num_submissions, num_duplicates, num_tuples, num_bytes, refused)


async def submit_update(
    connection: Connection | MemoryConnection,
    spec: RoundSpec,
    update: Update,
    *,
    key_encoding: KeyEncoding,
    value_encoding: ValueEncoding,
    resumable: bool,
    progress: bool = False,
    deadline: float | None,
    **about: Any,
) -> Submission:
    """Converts an update and commits it; arguments and errors are those of ``Round.submit``.

    ``about``: of ``make_upload``.
    """
    server = await connection.server_wire(deadline)
    upload = await connection.transport.convert(
        make_upload,
        spec,
        update,
        chunk_bytes=server.chunk_bytes,
        wire=server.format(spec, key_encoding, value_encoding),
        device=connection.device_reader,
        **about,
    )
    shown = ProgressBar(f"upload {upload.client_id}", upload.num_bytes, "B") if progress else contextlib.nullcontext()
    with naming_client(upload.client_id), shown as bar:
        return await connection.submit(upload, resumable, bar, deadline)


async def submit_columns(
    homes: Mapping[Any, Array | None],
    spec: RoundSpec,
    round_name: str,
    client_ids: Sequence[ClientId],
    updates: Mapping[str, tuple[Any, Any, Any]],
    weights: Sequence[SupportsFloat] | Any,
    submission_id: str | None,
    deadline: float | None,
    base_version: int | None = None,
) -> BatchReceipt:
    """Commits the updates of many clients; arguments and errors are those of ``Round.submit_batch``.

    ``homes``: by connection, the positions of the clients whose submissions it takes; None: all.
    """
    submission_id = checked_text("a submission id", uuid.uuid4().hex if submission_id is None else submission_id)
    first = next(iter(homes))
    server, convert = await first.server_wire(deadline), first.transport.convert
    columns = await convert(submission_columns, spec, len(client_ids), updates)
    answers: list[tuple[Batch, pb.SubmitBatchResponse]] = []
    for home, clients in homes.items():
        own_ids, own_columns, own_weights = client_ids, columns, weights
        if clients is not None:
            own_ids = [client_ids[client] for client in clients]
            own_columns = await convert(columns_of, columns, clients)
            own_weights = None if weights is None else [weights[client] for client in clients]
        for batch in batches(own_ids, own_columns, own_weights, server.chunk_bytes, len(spec.tensors)):
            answer = await home.submit_batch(batch, round_name, submission_id, deadline, base_version)
            answers.append((batch, answer))
    return batch_receipt(answers)
