"""Chunks as they go over the wire, made with one copy of their keys and values."""

from __future__ import annotations

import dataclasses
from typing import Any, Union

import numpy as np

from sparseagg.arrays import Array
from sparseagg.v1 import aggregation_pb2 as pb

__all__ = ["Bulk", "ChunkMessage", "bulk_of", "send_chunk_messages"]

Bulk = Union[bytes, memoryview]  # of bytes


def bulk_of(array: Array) -> Bulk:
    """Returns an array's bytes, without a copy where they lie in one piece."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


@dataclasses.dataclass(frozen=True)
class ChunkMessage:
    """An ``UpdateChunk`` that borrows its bulk. Protocol Buffers would copy that twice, into the message and out of it.

    Attributes:
        head: all but the slices.
        slices: each without keys and values, its keys, and its values.
        end_bytes: keys and values of the update up to the end of this chunk, in bytes as the arrays have them.
    """

    head: pb.UpdateChunk
    slices: list[tuple[pb.TensorSlice, Bulk, Bulk]]
    end_bytes: int

    def serialise(self) -> bytes:
        """Returns the bytes that Protocol Buffers would parse."""
        return b"".join(self._parts())

    def serialise_for_aggregate(self) -> bytes:
        """Returns the bytes of an ``AggregateRequest`` with this chunk."""
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


def send_chunk_messages(stub: Any, channel: Any) -> None:
    """Lets the methods of a stub that upload take ``ChunkMessage`` as it is; ``Aggregate`` takes requests, too.

    Adds ``SubmitWhole``: ``SubmitUpdate`` of one message. On the wire that is the same; but for a stream of requests
    gRPC starts a thread at each call, which costs more than sending a message.
    """
    service = f"/{pb.DESCRIPTOR.services_by_name['Aggregation'].full_name}/"
    stub.SubmitUpdate = channel.stream_unary(
        service + "SubmitUpdate",
        request_serializer=ChunkMessage.serialise,
        response_deserializer=pb.Submission.FromString,
    )
    stub.SubmitWhole = channel.unary_unary(
        service + "SubmitUpdate",
        request_serializer=ChunkMessage.serialise,
        response_deserializer=pb.Submission.FromString,
    )
    stub.PutChunk = channel.unary_unary(
        service + "PutChunk",
        request_serializer=ChunkMessage.serialise,
        response_deserializer=pb.UploadStatus.FromString,
    )
    stub.Aggregate = channel.stream_stream(
        service + "Aggregate",
        request_serializer=_serialise_for_aggregate,
        response_deserializer=pb.ResultPage.FromString,
    )


def _serialise_for_aggregate(message: pb.AggregateRequest | ChunkMessage) -> bytes:
    return message.serialise_for_aggregate() if isinstance(message, ChunkMessage) else message.SerializeToString()


def _append_field(parts: list[Bulk], number: int, data: Bulk) -> None:
    if len(data) > 0:
        parts += [_head_of_field(number, len(data)), data]


def _head_of_field(number: int, size: int) -> bytes:
    """Returns the tag and the length of a field of ``size`` bytes."""
    head = bytearray([number << 3 | 2])
    while size >= 0x80:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head)
