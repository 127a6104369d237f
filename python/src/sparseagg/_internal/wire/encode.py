"""What is sent: the encodings that a caller asks for and a server knows, and the chunks of an update in them."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Union

import numpy as np

from sparseagg._internal.base import extension
from sparseagg._internal.base.arguments import checked_integer, shown
from sparseagg._internal.base.foreign import Array
from sparseagg._internal.base.types import KeyEncoding, NarrowEncoding
from sparseagg._internal.results.server_info import ServerInfo
from sparseagg._internal.spec.options import DTYPES
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg._internal.updates.arrays import TensorData, misfit
from sparseagg._internal.updates.contributors import Batch
from sparseagg._internal.wire.columns import (
    NARROW,
    SCALE_BLOCK,
    SLICE_COLUMNS,
    Bulk,
    encode_values,
    field_number,
    first_misfit,
    pack_keys,
    widens,
)
from sparseagg.errors import InvalidArgumentError
from sparseagg.v1 import aggregation_pb2 as pb

DEFAULT_CHUNK_BYTES = 1 << 20
DEFAULT_PAGE_BYTES = 1 << 20
_LOCAL_CHUNK_BYTES = 2 << 20  # on one machine, where a chunk that is sent again costs little
_CHUNK_OVERHEAD = 1024  # upper bound of ids and the round's name
ENCODINGS = ("auto", "plain")
# Not "implicit", whose keys servers count as no bytes: delta_bitpacked takes only one byte for 128 consecutive keys.
_PACKED_KEYS = ("delta_bitpacked",)
_ALL_KEYS = ("implicit", *_PACKED_KEYS)

# A narrower encoding of values: none, one for all tensors whose dtype is wider, or one by tensor name.
ValueEncoding = Union[None, NarrowEncoding, Mapping[str, NarrowEncoding]]


@dataclasses.dataclass(frozen=True)
class WireFormat:
    """The encodings of one upload, in addition to the plain ones, which every server knows."""

    # names of key encodings, of which the smallest is used for each slice: "implicit" (for consecutive keys),
    # "delta_bitpacked". Both keep the keys and their order.
    keys: frozenset[str] = frozenset()
    # names of the narrower value encodings, by tensor. Values of other tensors are not rounded.
    values: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def value_encoding(self, spec: TensorSpec) -> str:
        """Returns the name of the encoding of a tensor's values."""
        return self.values.get(spec.name, spec.dtype)

    def encode_values(self, spec: TensorSpec, rows: Array) -> Bulk:
        """Encodes values of the tensor's dtype, shape (n, row_width). Values in the plain encoding are borrowed."""
        encoding = self.value_encoding(spec)
        return bulk_of(rows) if encoding == spec.dtype else encode_values(rows, encoding)

    def check_values(self, tensors: Iterable[TensorData]) -> None:
        """Raises ``InvalidArgumentError`` if a value is beyond its encoding's range; names tensor, key and value."""
        for data in tensors:
            encoding = self.value_encoding(data.spec)
            if data.values is None or encoding == data.spec.dtype:
                continue
            at = first_misfit(data.values, encoding)
            if at is not None:
                raise misfit(data.spec, data.keys, at, data.values.reshape(-1)[at], encoding)

    def encode_keys(self, keys: Array) -> tuple[str, int, Bulk]:
        """Encodes keys, contiguous and little-endian, in the smallest encoding. The plain one, which wins a tie,
        borrows them.

        Returns the encoding's name in ``KeyEncoding`` of the proto, first_key, and the bytes.
        """
        plain = f"U{keys.dtype.itemsize * 8}", 0, bulk_of(keys)
        if not self.keys or len(keys) == 0:
            return plain
        engine = extension.find()
        if engine is not None:
            name, data = engine.encode_keys(keys, *(each in self.keys for each in _ALL_KEYS))
            return plain if name == "plain" else (name.upper(), int(keys[0]), data)
        # The first keys alone mostly show that keys do not ascend.
        if not (keys[1:64] > keys[:-1][:63]).all() or not (keys[1:] > keys[:-1]).all():
            return plain
        if "implicit" in self.keys and int(keys[-1]) - int(keys[0]) == len(keys) - 1:
            return "IMPLICIT", int(keys[0]), b""
        packed = pack_keys(keys) if "delta_bitpacked" in self.keys else None
        return plain if packed is None or len(packed) >= keys.nbytes else ("DELTA_BITPACKED", int(keys[0]), packed)


PLAIN = WireFormat()


def checked_chunk_bytes(chunk_bytes: Any, is_local: bool = False) -> int:
    """Returns the bytes of slices in one message that a caller asks for; the default for None.

    ``is_local``: the server is on this machine.
    """
    if chunk_bytes is None:
        return _LOCAL_CHUNK_BYTES if is_local else DEFAULT_CHUNK_BYTES
    return checked_integer("chunk_bytes must be a number from 1 on, or None", chunk_bytes, 1, sys.maxsize)


def chunk_bytes_for(max_message_bytes: int, wanted: int = DEFAULT_CHUNK_BYTES) -> int:
    """Returns the bytes of slices in one message, within the server's limit (0: no limit)."""
    return wanted if max_message_bytes == 0 else max(1, min(wanted, max_message_bytes - _CHUNK_OVERHEAD))


@dataclasses.dataclass(frozen=True)
class ServerWire:
    """The limits and encodings of one server."""

    chunk_bytes: int  # bytes of slices in one message
    key_encodings: frozenset[str]  # names of the key encodings that the server knows
    value_encodings: frozenset[str]  # names of the value encodings that the server knows
    page_bytes: int = DEFAULT_PAGE_BYTES  # of the rows in one answer

    @classmethod
    def of(cls, info: ServerInfo, wanted_chunk_bytes: int) -> ServerWire:
        """Returns the limits of the server that ``info`` describes."""
        chunk_bytes = chunk_bytes_for(info.limits.max_message_bytes, wanted_chunk_bytes)
        page_bytes = info.limits.max_page_bytes or DEFAULT_PAGE_BYTES
        return cls(chunk_bytes, frozenset(info.key_encodings), frozenset(info.value_encodings), page_bytes)

    def format(self, spec: RoundSpec, key_encoding: KeyEncoding, value_encoding: ValueEncoding) -> WireFormat:
        """Returns the encodings of an upload, from the arguments of ``Round.submit``.

        Raises ``InvalidArgumentError`` for an encoding that the client or the server does not know, or that is not
        narrower than its tensor's dtype.
        """
        check_key_encoding(key_encoding)
        by_tensor = value_encodings(spec, value_encoding)
        for name in by_tensor.values():
            if name not in self.value_encodings:
                known = ", ".join(sorted(self.value_encodings))
                raise InvalidArgumentError(f"the server does not know value_encoding {name!r}; known: {known}")
        keys = self.key_encodings.intersection(_PACKED_KEYS) if key_encoding == "auto" else frozenset()
        return WireFormat(frozenset(keys), by_tensor)


def check_key_encoding(encoding: str) -> None:
    """Raises ``InvalidArgumentError`` if ``encoding`` is none of ``ENCODINGS``."""
    if encoding not in ENCODINGS:
        raise InvalidArgumentError(f"unknown key_encoding {encoding!r}; known: {', '.join(ENCODINGS)}")


def value_encodings(spec: RoundSpec, chosen: ValueEncoding) -> dict[str, str]:
    """Returns narrower encodings by tensor name, from the ``value_encoding`` of ``ServerWire.format``."""
    if chosen is None:
        return {}
    if isinstance(chosen, str):
        check_value_encoding(chosen)
        return {tensor.name: chosen for tensor in spec.tensors if widens(chosen, tensor.dtype)}
    if not isinstance(chosen, Mapping):
        raise InvalidArgumentError(
            f"value_encoding must be a name, a mapping from tensor names to names, or None, got {shown(chosen)}"
        )
    for name, encoding in chosen.items():
        check_value_encoding(encoding)
        dtype = spec.tensor(name).dtype
        if not widens(encoding, dtype):
            raise InvalidArgumentError(f"tensor {name!r}: values of {dtype} are not sent as {encoding}")
    return dict(chosen)


def check_value_encoding(encoding: str) -> None:
    """Raises ``InvalidArgumentError`` if ``encoding`` is none of ``NARROW``."""
    if not isinstance(encoding, str) or encoding not in NARROW:
        raise InvalidArgumentError(f"unknown value_encoding {encoding!r}; known: {', '.join(NARROW)}")


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
    """Yields the chunks of one submission, each of about ``chunk_bytes`` in plain encodings at most, and of one row at
    least.

    "int8_scaled" values are cut between blocks of a scale only, so that ``chunk_bytes`` does not change the values. A
    chunk then has at least the rows that fill whole blocks, which are up to 64. Chunks before number ``first`` are not
    encoded, and a tensor without keys is not sent.

    Deterministic: the same arguments give the same chunks. Cost: memory for the packed keys and rounded values of one
    chunk. Everything else is borrowed from the arrays.
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


def bulk_of(array: Array) -> Bulk:
    """Returns an array's bytes; a contiguous array is not copied."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


_CHUNK, _SLICES = field_number(pb.AggregateRequest, "chunk"), field_number(pb.UpdateChunk, "slices")


@dataclasses.dataclass(frozen=True)
class ChunkMessage:
    """An ``UpdateChunk`` or ``SubmitBatchRequest`` that borrows keys and values, unlike one of Protocol Buffers."""

    head: pb.UpdateChunk | pb.SubmitBatchRequest  # the message without its slices
    # for each slice the message without keys and values, the keys, and the values
    slices: list[tuple[pb.TensorSlice, Bulk, Bulk]]
    end_bytes: int  # bytes of the caller's arrays up to the end of this chunk, for the progress

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
        head = _head_of_field(_CHUNK, sum(map(len, parts)))
        return b"".join([head, *parts])

    def _parts(self) -> list[Bulk]:
        parts: list[Bulk] = [self.head.SerializeToString()]
        for slice_head, keys, values in self.slices:
            inner: list[Bulk] = [slice_head.SerializeToString()]
            _append_field(inner, SLICE_COLUMNS[0], keys)
            _append_field(inner, SLICE_COLUMNS[1], values)
            parts.append(_head_of_field(_SLICES, sum(map(len, inner))))
            parts += inner
        return parts


def _append_field(parts: list[Bulk], number: int, data: Bulk) -> None:
    if len(data) > 0:
        parts += [_head_of_field(number, len(data)), data]


def _head_of_field(number: int, size: int) -> bytes:
    """Returns tag and length of a length-delimited field of ``size`` bytes."""
    return bytes([number << 3 | 2]) + varint(size)


def varint(number: int) -> bytes:
    """Returns a number as protobuf writes it: seven bits a byte, the lowest first."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])
