"""Chunk messages, serialised with one copy of their keys and values."""

from __future__ import annotations

import dataclasses
from typing import Any, Union

import numpy as np

from sparseagg._internal.updates.arrays import Array
from sparseagg._internal.wire.stub import make_call, make_stub, methods
from sparseagg.v1 import aggregation_pb2 as pb

__all__ = ["Bulk", "ChunkMessage", "bulk_of", "make_chunk_stub"]

Bulk = Union[bytes, memoryview]  # of bytes


def bulk_of(array: Array) -> Bulk:
    """Returns an array's bytes; a contiguous array is not copied."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


@dataclasses.dataclass(frozen=True)
class ChunkMessage:
    """An ``UpdateChunk`` that borrows keys and values. Protocol Buffers would copy them twice: in and out of a message.

    Attributes:
        head: the message without its slices.
        slices: for each slice the message without keys and values, the keys, and the values.
        end_bytes: bytes of the caller's arrays up to the end of this chunk, for the progress.
    """

    head: pb.UpdateChunk
    slices: list[tuple[pb.TensorSlice, Bulk, Bulk]]
    end_bytes: int

    def serialise(self) -> bytes:
        """Returns the bytes of the ``UpdateChunk``."""
        return b"".join(self._parts())

    def serialise_for_aggregate(self) -> bytes:
        """Returns the bytes of an ``AggregateRequest`` that has this chunk."""
        parts = self._parts()
        head = _head_of_field(pb.AggregateRequest.CHUNK_FIELD_NUMBER, sum(map(len, parts)))
        return b"".join([head, *parts])

    def _parts(self) -> list[Bulk]:
        parts: list[Bulk] = [self.head.SerializeToString()]
        for slice_head, keys, values in self.slices:
            inner: list[Bulk] = [slice_head.SerializeToString()]
            _append_field(inner, pb.TensorSlice.KEYS_FIELD_NUMBER, keys)
            _append_field(inner, pb.TensorSlice.VALUES_FIELD_NUMBER, values)
            parts.append(_head_of_field(pb.UpdateChunk.SLICES_FIELD_NUMBER, sum(map(len, inner))))
            parts += inner
        return parts


def make_chunk_stub(channel: Any) -> Any:
    """Returns a stub whose uploading methods take ``ChunkMessage``; ``Aggregate`` takes ``AggregateRequest``, too.

    It also has ``SubmitWhole``, which is ``SubmitUpdate`` with one message. The bytes on the wire are the same. gRPC
    starts a thread for every call with a stream of requests, which costs more than sending one message.
    """
    serialise = ChunkMessage.serialise
    stub = make_stub(channel, SubmitUpdate=serialise, PutChunk=serialise, Aggregate=_serialise_for_aggregate)
    (method,) = (method for method in methods() if method.name == "SubmitUpdate")
    stub.SubmitWhole = make_call(channel, method._replace(kind="unary_unary"), serialise)
    return stub


def _serialise_for_aggregate(message: pb.AggregateRequest | ChunkMessage) -> bytes:
    return message.serialise_for_aggregate() if isinstance(message, ChunkMessage) else message.SerializeToString()


def _append_field(parts: list[Bulk], number: int, data: Bulk) -> None:
    if len(data) > 0:
        parts += [_head_of_field(number, len(data)), data]


def _head_of_field(number: int, size: int) -> bytes:
    """Returns tag and length of a length-delimited field of ``size`` bytes."""
    head = bytearray([number << 3 | 2])
    while size >= 0x80:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head)
