"""Keys and values of tensors as bytes, and back, and the messages that hold them."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterable, Iterator
from typing import Any, Union

import numpy as np
from google.protobuf.message import Message

from sparseagg._internal.base import extension
from sparseagg._internal.base.foreign import Array, bits_from_float, default_float_environment
from sparseagg._internal.spec.options import DTYPES
from sparseagg.errors import InvalidArgumentError
from sparseagg.v1 import aggregation_pb2 as pb

_BLOCK_KEYS = 128  # whose gaps have as many bits as the largest one needs
_GROUP = 8  # gaps of any width together fill whole bytes


def pack_keys(keys: Array) -> bytes:
    """Returns the bytes of DELTA_BITPACKED, whose first_key is the first key; keys strictly ascend.

    For installations without the engine, which does the same ten times as fast: plain keys of the smallest values are
    twice the bytes.
    """
    num_blocks = -(-len(keys) // _BLOCK_KEYS)
    blocks = np.zeros((num_blocks, _BLOCK_KEYS), np.uint64)
    blocks.reshape(-1)[1 : len(keys)] = keys[1:] - keys[:-1] - keys.dtype.type(1)
    widths = _bit_lengths(blocks.max(axis=1))
    pieces = [b""] * num_blocks
    for width in np.unique(widths).tolist():
        of_width = np.flatnonzero(widths == width)
        groups = blocks[of_width].reshape(-1, _GROUP)
        words = np.zeros((width // 8 + 1, len(groups)), "<u8")
        for k in range(_GROUP):
            word, shift = divmod(k * width, 64)
            words[word] |= groups[:, k] << np.uint64(shift)
            if shift + width > 64:
                words[word + 1] |= groups[:, k] >> np.uint64(64 - shift)
        packed = np.ascontiguousarray(words.T).view(np.uint8)[:, :width].reshape(len(of_width), -1)
        for at, block in zip(of_width.tolist(), packed):
            pieces[at] = block.tobytes()
    last = len(keys) - (num_blocks - 1) * _BLOCK_KEYS  # the last block ends with its last key
    pieces[-1] = pieces[-1][: (last * int(widths[-1]) + 7) // 8]
    return widths.tobytes() + b"".join(pieces)


def _bit_lengths(numbers: Array) -> Array:
    """Returns the number of bits of each number, uint8; exact for all of uint64."""
    high, low = numbers >> np.uint64(32), numbers & np.uint64(0xFFFFFFFF)
    lengths: Array = np.where(high > 0, 32 + np.frexp(high.astype(float))[1], np.frexp(low.astype(float))[1])
    return lengths.astype(np.uint8, copy=False)


# Value encodings that round, by name; all but the last are names of dtypes, too.
NARROW = ("float32", "float16", "bfloat16", "int8_scaled")
SCALE_BLOCK = 64  # values that share a scale
_MAX_SCALE = 2.0**120  # 127 times this is within float32
_LARGEST_MULTIPLE = 127


def widens(encoding: str, dtype: str) -> bool:
    """Returns whether values of a tensor of ``dtype`` may be sent as ``encoding``, which is narrower."""
    return encoding in NARROW and (dtype == "float64" or (dtype == "float32" and encoding != "float32"))


def encoded_bytes(encoding: str, num_values: int) -> int:
    """Returns the bytes of ``num_values`` values; ``encoding`` is one of ``NARROW`` or a dtype."""
    if encoding == "int8_scaled":
        return num_values + 4 * -(-num_values // SCALE_BLOCK)
    return num_values * DTYPES[encoding]


@default_float_environment()
def first_misfit(values: Array, encoding: str) -> int | None:
    """Returns the row-major position of the first value beyond the range of ``encoding``; None if there is none.

    A finite value is beyond the range if it rounds to infinity. "int8_scaled" holds finite values only.
    """
    flat = values.reshape(-1)
    if flat.size == 0:
        return None
    with np.errstate(all="ignore"):
        ends = np.array([flat.min(), flat.max()])
        if np.isfinite(ends).all() and not _misfits(ends, encoding).any():
            return None
        bad = _misfits(flat, encoding)
    return int(np.argmax(bad)) if bad.any() else None


def _misfits(flat: Array, encoding: str) -> Array:
    if encoding == "int8_scaled":
        return ~(np.abs(flat.astype(np.float64)) / _LARGEST_MULTIPLE <= _MAX_SCALE)
    narrow = np.frombuffer(encode_values(flat, encoding), dtype=_wire_type(encoding))
    infinite = (narrow & 0x7FFF) == 0x7F80 if encoding == "bfloat16" else np.isinf(narrow)
    return infinite & np.isfinite(flat)


@default_float_environment()
def encode_values(values: Array, encoding: str) -> bytes:
    """Returns the bytes of float values, row-major, rounded to nearest even; for "int8_scaled" all of them must be
    finite.
    """
    flat = np.ascontiguousarray(values).reshape(-1)
    if encoding == "bfloat16":
        return bits_from_float(flat).astype("<u2").tobytes()
    if encoding != "int8_scaled":
        with np.errstate(over="ignore", under="ignore"):
            return flat.astype(_wire_type(encoding)).tobytes()
    num_scales = -(-flat.size // SCALE_BLOCK)
    blocks = np.zeros((num_scales, SCALE_BLOCK))
    blocks.reshape(-1)[: flat.size] = flat
    with np.errstate(under="ignore"):
        scales = (np.abs(blocks).max(axis=1, initial=0.0) / _LARGEST_MULTIPLE).astype("<f4")
        wide = scales.astype(np.float64)[:, None]
        multiples = np.rint(np.divide(blocks, wide, out=np.zeros_like(blocks), where=wide > 0))
    np.clip(multiples, -_LARGEST_MULTIPLE, _LARGEST_MULTIPLE, out=multiples)
    return bytes(scales.tobytes() + multiples.astype(np.int8).reshape(-1)[: flat.size].tobytes())


@default_float_environment()
def decode_values(data: Bulk, encoding: str, dtype: str, num_values: int) -> Array:
    """Returns values of ``dtype``, shape (num_values,), bfloat16 as uint16 bits; ``InvalidArgumentError`` for wrong
    bytes.
    """
    if encoding != dtype and not widens(encoding, dtype):
        raise InvalidArgumentError(f"values of {dtype} do not come as {encoding}")
    if len(data) != encoded_bytes(encoding, num_values):
        raise InvalidArgumentError(f"{len(data)} bytes are not those of {num_values} values as {encoding}")
    if encoding == dtype:
        return np.frombuffer(data, dtype=_wire_type(dtype))
    if encoding == "bfloat16":
        bits = np.frombuffer(data, dtype="<u2").astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32).astype(dtype, copy=False)
    if encoding != "int8_scaled":
        return np.frombuffer(data, dtype=_wire_type(encoding)).astype(dtype)
    num_scales = -(-num_values // SCALE_BLOCK)
    scales = np.frombuffer(data, dtype="<f4", count=num_scales).astype(dtype)
    multiples = np.frombuffer(data, dtype=np.int8, offset=4 * num_scales).astype(dtype)
    multiples *= np.repeat(scales, SCALE_BLOCK)[:num_values]
    return multiples


def _wire_type(dtype: str) -> np.dtype[np.generic]:
    """Returns the little-endian type of a dtype; uint16 for bfloat16."""
    return np.dtype("uint16" if dtype == "bfloat16" else dtype).newbyteorder("<")


_PLAIN_KEYS = {pb.KEY_ENCODING_U32: "<u4", pb.KEY_ENCODING_U64: "<u8"}


def decode_keys(piece: pb.TensorSlice, data: Bulk, key_type: np.dtype[Any]) -> Array:
    """Returns the keys of a slice, whose bytes are ``data``, shape (n,), as ``key_type``, uint32 or uint64.

    Raises ``InvalidArgumentError`` for an unknown encoding, wrong bytes, or a key beyond ``key_type``;
    ``EngineMissingError`` if the keys are packed, and this installation has no engine.
    """
    keys = _decode(piece, data, key_type)
    if piece.num_keys not in (0, len(keys)):
        raise InvalidArgumentError(f"num_keys {piece.num_keys}, but {len(keys)} keys")
    if keys.itemsize > key_type.itemsize and keys.size and keys.max() > np.iinfo(key_type).max:
        raise InvalidArgumentError(f"key {keys.max()} is beyond {key_type.name}")
    return keys.astype(key_type, copy=False)


def decode_rows(piece: pb.TensorSlice, data: Bulk, dtype: str, num_values: int) -> Array:
    """Returns the values of a slice, whose bytes are ``data``, as ``decode_values`` does."""
    if piece.value_encoding == pb.VALUE_ENCODING_UNSPECIFIED:
        return decode_values(data, dtype, dtype, num_values)
    known = {number: name for name, number in pb.ValueEncoding.items()}
    name = known.get(piece.value_encoding, f"VALUE_ENCODING_{piece.value_encoding}")
    return decode_values(data, name[len("VALUE_ENCODING_") :].lower(), dtype, num_values)


def _decode(piece: pb.TensorSlice, data: Bulk, key_type: np.dtype[Any]) -> Array:
    # Only the engine decodes this. Clients without one ask no server for it, but chunks of a bundle may have it.
    if piece.key_encoding == pb.KEY_ENCODING_DELTA_BITPACKED:
        with extension.errors():
            keys: Array = extension.load().decode_keys(data, piece.first_key, piece.num_keys, key_type.itemsize)
        return keys
    if piece.key_encoding in _PLAIN_KEYS:
        wire = np.dtype(_PLAIN_KEYS[piece.key_encoding])
        if len(data) % wire.itemsize:
            raise InvalidArgumentError(f"{len(data)} bytes of keys are no multiple of {wire.itemsize}")
        return np.frombuffer(data, dtype=wire)
    if piece.key_encoding == pb.KEY_ENCODING_IMPLICIT:
        return np.arange(piece.num_keys, dtype=np.uint64) + np.uint64(piece.first_key)
    if piece.key_encoding == pb.KEY_ENCODING_UNSPECIFIED and not data:  # a page without keys
        return np.empty(0, dtype=np.uint64)
    raise InvalidArgumentError(f"key_encoding {piece.key_encoding} is unknown here")


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
