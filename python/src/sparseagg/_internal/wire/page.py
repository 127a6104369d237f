"""Pages of results and of exports, parsed without a copy of their keys and values."""

from __future__ import annotations

import dataclasses

from sparseagg._internal.wire.message import Bulk
from sparseagg.v1 import aggregation_pb2 as pb

__all__ = ["ExportedColumns", "Page", "parse_exported", "parse_page"]

_SMALL_BYTES = 1 << 14  # messages below this are parsed whole: that takes less time than to find their parts
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_SLICE = pb.ResultPage.SLICE_FIELD_NUMBER
_COLUMNS = (
    pb.ResultPage.COUNTS_FIELD_NUMBER,
    pb.ResultPage.WEIGHTS_FIELD_NUMBER,
    pb.ResultPage.MOMENTS_FIELD_NUMBER,
)
_SLICE_COLUMNS = (pb.TensorSlice.KEYS_FIELD_NUMBER, pb.TensorSlice.VALUES_FIELD_NUMBER)


@dataclasses.dataclass(frozen=True)
class Page:
    """A ``ResultPage`` whose columns are parts of the message that came. Protocol Buffers would copy them twice.

    Attributes:
        head: the message; its columns may be empty.
        keys, values, counts, weights, moments: the columns, as in the message.
    """

    head: pb.ResultPage
    keys: Bulk
    values: Bulk
    counts: Bulk
    weights: Bulk
    moments: Bulk

    @classmethod
    def of(cls, message: pb.ResultPage) -> Page:
        """Returns the page of a parsed message."""
        piece = message.slice
        return cls(message, piece.keys, piece.values, message.counts, message.weights, message.moments)


def parse_page(data: bytes) -> Page:
    """Returns the page of a serialised ``ResultPage``, which the page keeps.

    Raises:
        ValueError: the bytes are no such message (also ``DecodeError``, which protobuf derives from another type).
    """
    if len(data) < _SMALL_BYTES:
        return Page.of(pb.ResultPage.FromString(data))
    rest, found = _split(memoryview(data), (_SLICE, *_COLUMNS))
    head = pb.ResultPage.FromString(rest)
    slice_rest, slice_found = _split(found.get(_SLICE, memoryview(b"")), _SLICE_COLUMNS)
    head.slice.ParseFromString(slice_rest)
    columns = [slice_found.get(number, b"") for number in _SLICE_COLUMNS]
    columns += [found.get(number, b"") for number in _COLUMNS]
    return Page(head, *columns)


@dataclasses.dataclass(frozen=True)
class ExportedColumns:
    """An ``ExportedSubmissions`` whose keys and values are parts of the message that came.

    Attributes:
        head: the message without them.
        keys, values: the columns, as in the message.
    """

    head: pb.ExportedSubmissions
    keys: Bulk
    values: Bulk

    @property
    def next_page_token(self) -> str:
        """Of the head."""
        return self.head.next_page_token


def parse_exported(data: bytes) -> ExportedColumns:
    """Returns the page of a serialised ``ExportedSubmissions``, which the page keeps.

    Raises:
        ValueError: as of ``parse_page``.
    """
    number = pb.ExportedSubmissions.SLICE_FIELD_NUMBER
    rest, found = _split(memoryview(data), (number,))
    head = pb.ExportedSubmissions.FromString(rest)
    slice_rest, columns = _split(found.get(number, memoryview(b"")), _SLICE_COLUMNS)
    head.slice.ParseFromString(slice_rest)
    return ExportedColumns(head, *(columns.get(column, b"") for column in _SLICE_COLUMNS))


def _split(message: memoryview, numbers: tuple[int, ...]) -> tuple[bytes, dict[int, memoryview]]:
    """Returns a message without some of its fields of bytes, and these; of a repeated one the last."""
    rest: list[memoryview] = []
    found: dict[int, memoryview] = {}
    at = 0
    while at < len(message):
        tag, body = _varint(message, at)
        kind, number = tag & 7, tag >> 3
        if kind == _BYTES:
            size, body = _varint(message, body)
            end = body + size
        elif kind == _VARINT:
            end = _varint(message, body)[1]
        elif kind in (_FIXED64, _FIXED32):
            end = body + (8 if kind == _FIXED64 else 4)
        else:
            raise ValueError(f"field {number} has wire type {kind}")
        if end > len(message):
            raise ValueError(f"field {number} ends behind its message")
        if kind == _BYTES and number in numbers:
            found[number] = message[body:end]
        else:
            rest.append(message[at:end])
        at = end
    return b"".join(rest), found


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """Returns the number that begins at ``at``, and where it ends."""
    number = shift = 0
    while True:
        if at == len(message) or shift > 63:
            raise ValueError("a number does not end")
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
