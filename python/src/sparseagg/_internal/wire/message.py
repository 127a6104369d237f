"""Chunk messages, serialised with one copy of their keys and values."""

from __future__ import annotations

import dataclasses
from typing import Union

import numpy as np

from sparseagg._internal.updates.arrays import Array
from sparseagg.v1 import aggregation_pb2 as pb

__all__ = ["Bulk", "ChunkMessage", "bulk_of"]

Bulk = Union[bytes, memoryview]  # of bytes


def bulk_of(array: Array) -> Bulk:
    """Returns an array's bytes; a contiguous array is not copied."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


@dataclasses.dataclass(frozen=True)
class ChunkMessage:
    """An ``UpdateChunk`` or ``SubmitBatchRequest`` that borrows keys and values, unlike one of Protocol Buffers.

    Attributes:
        head: the message without its slices.
        slices: for each slice the message without keys and values, the keys, and the values.
        end_bytes: bytes of the caller's arrays up to the end of this chunk, for the progress.
    """

    head: pb.UpdateChunk | pb.SubmitBatchRequest
    slices: list[tuple[pb.TensorSlice, Bulk, Bulk]]
    end_bytes: int

    @property
    def is_last(self) -> bool:
        """Whether the submission has no further chunk."""
        return not isinstance(self.head, pb.UpdateChunk) or self.head.last

    def serialise(self) -> bytes:
        """Returns the bytes of the message."""
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
