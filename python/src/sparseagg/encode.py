"""From keys and values to the chunks that go over the wire."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sparseagg.arrays import TensorData
from sparseagg.v1 import aggregation_pb2 as pb

__all__ = ["DEFAULT_CHUNK_BYTES", "chunk_bytes_for", "encode_chunks"]

DEFAULT_CHUNK_BYTES = 768 * 1024
_CHUNK_OVERHEAD = 1024  # ids and the round's name, generously
_SLICE_OVERHEAD = 64  # what a slice takes besides its name, keys and values


def chunk_bytes_for(max_message_bytes: int, wanted: int | None = None) -> int:
    """Returns how many bytes of slices to put in a message, given the server's limit (0: none)."""
    wanted = wanted or DEFAULT_CHUNK_BYTES
    return wanted if max_message_bytes == 0 else max(1, min(wanted, max_message_bytes - _CHUNK_OVERHEAD))


def encode_chunks(
    tensors: Sequence[TensorData],
    *,
    client_id: str,
    submission_id: str,
    round_name: str = "",
    weight: float | None = None,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    first: int = 0,
) -> Iterator[pb.UpdateChunk]:
    """Yields the chunks of one submission, each of about ``chunk_bytes`` at most, but never less than one row.

    The same arguments give the same chunks. Bytes are made as the chunks are asked for, so that the memory taken is
    that of one chunk.

    Args:
        tensors: what to send; tensors without keys take no place.
        client_id: of the client.
        submission_id: of this content.
        round_name: "rounds/{id}", or empty for ``Aggregate``.
        weight: of the whole submission.
        chunk_bytes: of one chunk's slices.
        first: the first chunk to yield; those before it are skipped without being encoded.
    """
    sequence = 0
    plan = _plan(tensors, chunk_bytes)
    pieces = next(plan)
    while True:
        following = next(plan, None)
        if sequence >= first:
            chunk = pb.UpdateChunk(
                round=round_name,
                client_id=client_id,
                submission_id=submission_id,
                sequence=sequence,
                last=following is None,
                slices=[_slice(data, start, stop) for data, start, stop in pieces],
            )
            if weight is not None and sequence == 0:
                chunk.weight = weight
            yield chunk
        if following is None:
            return
        pieces = following
        sequence += 1


_Piece = tuple[TensorData, int, int]


def _plan(tensors: Sequence[TensorData], chunk_bytes: int) -> Iterator[list[_Piece]]:
    """Yields what each chunk holds; at least one, though it may be empty."""
    pieces: list[_Piece] = []
    room = chunk_bytes
    for data in tensors:
        overhead = _SLICE_OVERHEAD + len(data.spec.name.encode())
        row_bytes = _row_bytes(data)
        start = 0
        while start < data.num_keys:
            fits = (room - overhead) // row_bytes if row_bytes else data.num_keys
            if fits < 1 and pieces:
                yield pieces
                pieces, room = [], chunk_bytes
                continue
            stop = min(data.num_keys, start + max(1, fits))
            pieces.append((data, start, stop))
            room -= overhead + (stop - start) * row_bytes
            start = stop
    yield pieces


def _row_bytes(data: TensorData) -> int:
    key_bytes = 0 if data.keys is None else data.spec.key_bytes
    return key_bytes + (0 if data.values is None else data.spec.row_bytes)


def _slice(data: TensorData, start: int, stop: int) -> pb.TensorSlice:
    spec = data.spec
    if data.values is None:
        value_encoding, values = "NONE", b""
    else:
        value_encoding, values = spec.dtype.upper(), data.values[start:stop].tobytes()
    if data.keys is None:
        key_encoding, first_key, keys = "IMPLICIT", start, b""
    else:
        key_encoding, first_key, keys = f"U{spec.key_bytes * 8}", 0, data.keys[start:stop].tobytes()
    return pb.TensorSlice(
        tensor=spec.name,
        key_encoding="KEY_ENCODING_" + key_encoding,
        value_encoding="VALUE_ENCODING_" + value_encoding,
        first_key=first_key,
        num_keys=stop - start,
        keys=keys,
        values=values,
    )
