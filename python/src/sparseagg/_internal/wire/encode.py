"""The encoder: from keys and values to chunk messages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from sparseagg._internal.spec.round_spec import DTYPES
from sparseagg._internal.updates.arrays import TensorData
from sparseagg._internal.updates.batch import Batch
from sparseagg._internal.wire.formats import DEFAULT_CHUNK_BYTES, PLAIN, WireFormat
from sparseagg._internal.wire.message import Bulk, ChunkMessage
from sparseagg._internal.wire.values import SCALE_BLOCK
from sparseagg.v1 import aggregation_pb2 as pb

__all__ = ["Piece", "encode_batch", "encode_chunks", "plan_chunks"]

_SLICE_OVERHEAD = 64  # bytes of a slice besides its name, keys and values
_MOST_SLICES = 4096  # of one chunk; a server takes twice as many


def encode_chunks(
    tensors: Sequence[TensorData],
    *,
    client_id: str,
    submission_id: str,
    round_name: str = "",
    weight: float | None = None,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    wire: WireFormat = PLAIN,
    upload_tag: bytes = b"",
    first: int = 0,
    base_version: int | None = None,
) -> Iterator[ChunkMessage]:
    """Yields the chunks of one submission, each of about ``chunk_bytes`` at most, and of one row at least.

    "int8_scaled" values are cut between blocks of a scale only, so that ``chunk_bytes`` does not change the values. A
    chunk then has at least the rows that fill whole blocks, which are up to 64.

    Deterministic: the same arguments give the same chunks.
    Cost: memory for the packed keys and rounded values of one chunk. Everything else is borrowed from the arrays.

    Args:
        tensors: the update. A tensor without keys is not sent.
        client_id: of the client.
        submission_id: of the content.
        round_name: "rounds/{id}", or empty for ``Aggregate``.
        weight: of the submission; None for none.
        chunk_bytes: of one chunk's slices in plain encodings. Packed slices take less.
        wire: the encodings that may be used.
        upload_tag: of an upload that may be resumed.
        first: number of the first chunk to yield. Earlier chunks are not encoded.
        base_version: of an upload to a stream; None for none.
    """
    sequence, end_bytes = 0, 0
    plan = plan_chunks(tensors, chunk_bytes, wire)
    pieces = next(plan)
    while True:
        following = next(plan, None)
        end_bytes += sum((stop - start) * _plain_row_bytes(data) for data, start, stop in pieces)
        if sequence >= first:
            head = pb.UpdateChunk(
                round=round_name,
                client_id=client_id,
                submission_id=submission_id,
                sequence=sequence,
                upload_tag=upload_tag,
                last=following is None,
            )
            if weight is not None and sequence == 0:
                head.weight = weight
            if base_version is not None and sequence == 0:
                head.base_version = base_version
            yield ChunkMessage(head, [_slice(data, start, stop, wire) for data, start, stop in pieces], end_bytes)
        if following is None:
            return
        pieces = following
        sequence += 1


def encode_batch(batch: Batch, round_name: str, submission_id: str, base_version: int | None = None) -> ChunkMessage:
    """Returns the message of a batch; ``base_version`` is of one to a stream."""
    head = pb.SubmitBatchRequest(
        round=round_name,
        client_ids=batch.client_ids,
        submission_id=submission_id,
        weights=batch.weights,
        num_keys=batch.num_keys,
        base_version=base_version,
    )
    return ChunkMessage(head, [_slice(data, 0, data.num_keys, PLAIN) for data in batch.tensors], 0)


Piece = tuple[TensorData, int, int]  # a tensor, its first row, and the row behind its last


def plan_chunks(tensors: Sequence[TensorData], chunk_bytes: int, wire: WireFormat) -> Iterator[list[Piece]]:
    """Yields the pieces of each chunk. There is at least one chunk, which may be empty."""
    pieces: list[Piece] = []
    room = chunk_bytes
    for data in tensors:
        overhead = _SLICE_OVERHEAD + len(data.spec.name.encode())
        row_bytes, together = _row_bytes(data, wire)
        start = 0
        while start < data.num_keys:
            fits = int((room - overhead) // row_bytes) if row_bytes else data.num_keys
            if len(pieces) == _MOST_SLICES or (pieces and fits < min(together, data.num_keys - start)):
                yield pieces
                pieces, room = [], chunk_bytes
                continue
            stop = min(data.num_keys, start + max(together, fits - fits % together))
            pieces.append((data, start, stop))
            room -= overhead + math.ceil((stop - start) * row_bytes)
            start = stop
    yield pieces


def _plain_row_bytes(data: TensorData) -> int:
    """Returns the bytes of a row and its key in the caller's arrays."""
    return sum(array.nbytes for array in (data.keys, data.values) if array is not None) // data.num_keys


def _row_bytes(data: TensorData, wire: WireFormat) -> tuple[float, int]:
    """Returns the most bytes of an encoded row and its key, and the number of rows that are not cut."""
    key_bytes = 0 if data.keys is None else data.spec.key_bytes
    if data.values is None:
        return key_bytes, 1
    encoding = wire.value_encoding(data.spec)
    if encoding != "int8_scaled":
        return key_bytes + data.spec.row_width * DTYPES[encoding], 1
    # Every slice has whole blocks, so that the same values share a scale for any chunk_bytes.
    together = SCALE_BLOCK // math.gcd(SCALE_BLOCK, data.spec.row_width)
    return key_bytes + data.spec.row_width * (1 + 4 / SCALE_BLOCK), together


def _slice(data: TensorData, start: int, stop: int, wire: WireFormat) -> tuple[pb.TensorSlice, Bulk, Bulk]:
    spec = data.spec
    values: Bulk
    keys: Bulk
    if data.values is None:
        value_encoding, values = "NONE", b""
    else:
        value_encoding = wire.value_encoding(spec).upper()
        values = wire.encode_values(spec, data.values[start:stop])
    if data.keys is None:
        key_encoding, first_key, keys = "IMPLICIT", start, b""
    else:
        key_encoding, first_key, keys = wire.encode_keys(data.keys[start:stop])
    head = pb.TensorSlice(
        tensor=spec.name,
        key_encoding="KEY_ENCODING_" + key_encoding,
        value_encoding="VALUE_ENCODING_" + value_encoding,
        first_key=first_key,
        num_keys=stop - start,
    )
    return head, keys, values
