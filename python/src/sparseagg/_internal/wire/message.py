"""Messages that arrive with bulk bytes, which protobuf would copy: pages of results and exports, blocks of partials."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterable, Iterator
from typing import Union

from google.protobuf.message import Message

from sparseagg.errors import InvalidArgumentError
from sparseagg.v1 import aggregation_pb2 as pb


def field_number(message: type[Message], field: str) -> int:
    """Returns the number of a message's field."""
    return int(message.DESCRIPTOR.fields_by_name[field].number)


_SMALL_BYTES = 1 << 14  # messages below this are parsed whole: that takes less time than to find their parts
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_SLICE = field_number(pb.ResultPage, "slice")
_COLUMNS = tuple(field_number(pb.ResultPage, name) for name in ("counts", "weights", "moments"))
SLICE_COLUMNS = (field_number(pb.TensorSlice, "keys"), field_number(pb.TensorSlice, "values"))


Bulk = Union[bytes, memoryview]  # of bytes


@dataclasses.dataclass(frozen=True)
class Page:
    """A ``ResultPage`` whose columns are parts of the message that came. Protocol Buffers would copy them twice."""

    head: pb.ResultPage  # the message; its columns may be empty
    # the columns, as in the message
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
    """Returns the page of a serialised ``ResultPage``, which the page keeps. Raises ``ValueError``, or ``DecodeError``,
    for other bytes.
    """
    if len(data) < _SMALL_BYTES:
        return Page.of(pb.ResultPage.FromString(data))
    rest, found = _split(memoryview(data), (_SLICE, *_COLUMNS))
    head = pb.ResultPage.FromString(rest)
    slice_rest, slice_found = _split(found.get(_SLICE, memoryview(b"")), SLICE_COLUMNS)
    head.slice.ParseFromString(slice_rest)
    columns = [slice_found.get(number, b"") for number in SLICE_COLUMNS]
    columns += [found.get(number, b"") for number in _COLUMNS]
    return Page(head, *columns)


@dataclasses.dataclass(frozen=True)
class ExportedColumns:
    """An ``ExportedSubmissions`` whose keys and values are parts of the message that came."""

    head: pb.ExportedSubmissions  # the message without them
    # the columns, as in the message
    keys: Bulk
    values: Bulk

    @property
    def next_page_token(self) -> str:
        """Of the head."""
        return str(self.head.next_page_token)


def parse_exported(data: bytes) -> ExportedColumns:
    """Returns the page of a serialised ``ExportedSubmissions``, which the page keeps. Errors: as of ``parse_page``."""
    number = field_number(pb.ExportedSubmissions, "slice")
    rest, found = _split(memoryview(data), (number,))
    head = pb.ExportedSubmissions.FromString(rest)
    slice_rest, columns = _split(found.get(number, memoryview(b"")), SLICE_COLUMNS)
    head.slice.ParseFromString(slice_rest)
    return ExportedColumns(head, *(columns.get(column, b"") for column in SLICE_COLUMNS))


def _split(message: memoryview, numbers: tuple[int, ...]) -> tuple[bytes, dict[int, memoryview]]:
    """Returns a message without some of its fields of bytes, and these; of a repeated one the last."""
    rest: list[memoryview] = []
    found: dict[int, memoryview] = {}
    at = 0
    while at < len(message):
        tag, body = read_varint(message, at)
        kind, number = tag & 7, tag >> 3
        if kind == _BYTES:
            size, body = read_varint(message, body)
            end = body + size
        elif kind == _VARINT:
            end = read_varint(message, body)[1]
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


def read_varint(message: memoryview, at: int) -> tuple[int, int]:
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


_HEAD = struct.Struct("<4sHHQ4B3I6Q")


@dataclasses.dataclass(frozen=True)
class PartialBlock:
    """One block."""

    tensor: str  # name of its tensor
    num_submissions: int  # of the whole partial
    data: memoryview  # its bytes


def split_blocks(partial: Iterable[Bulk]) -> Iterator[PartialBlock]:
    """Yields the blocks of a partial, which comes in pieces of whole blocks; ``InvalidArgumentError``: it is none, or
    cut off.
    """
    offset = 0
    for piece in partial:
        rest = memoryview(piece).cast("B")
        while rest:
            head = _HEAD.unpack_from(rest) if len(rest) >= _HEAD.size else None
            if head is None or head[0] != b"SAPR":
                raise InvalidArgumentError(f"the partial's block at byte {offset} does not begin with a head")
            if not _HEAD.size + head[2] <= head[3] <= len(rest):
                raise InvalidArgumentError(
                    f"the partial's block at byte {offset} is cut off: {len(rest)} bytes of {head[3]}"
                )
            name = bytes(rest[_HEAD.size : _HEAD.size + head[2]]).decode(errors="replace")
            yield PartialBlock(name, head[12], rest[: head[3]])
            offset += head[3]
            rest = rest[head[3] :]


def num_submissions(partial: Iterable[Bulk]) -> int:
    """Returns how many submissions a partial counts as; 0 if it has no block."""
    return next((block.num_submissions for block in split_blocks(partial)), 0)
