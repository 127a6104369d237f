"""Deterministic CBOR (RFC 8949, 4.2.1) of the types that certificates hash."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

from sparseagg.errors import InvalidArgumentError

__all__ = ["decode", "encode"]

_UINT, _BYTES, _TEXT, _ARRAY, _SIMPLE = 0, 2, 3, 4, 7
_SIMPLE_VALUES = {20: False, 21: True, 22: None}
_FLOATS = {25: ">e", 26: ">f", 27: ">d"}


def encode(item: Any) -> bytes:
    """Returns the only deterministic encoding of an item: bool, None, int ≥ 0, float, bytes, str or a list of items."""
    if item is None or isinstance(item, bool):
        return {False: b"\xf4", True: b"\xf5", None: b"\xf6"}[item]
    if isinstance(item, int):
        return _head(_UINT, item)
    if isinstance(item, float):
        return _encode_float(item)
    if isinstance(item, bytes):
        return _head(_BYTES, len(item)) + item
    if isinstance(item, str):
        text = item.encode()
        return _head(_TEXT, len(text)) + text
    assert isinstance(item, Sequence)
    return _head(_ARRAY, len(item)) + b"".join(map(encode, item))


def decode(data: bytes) -> Any:
    """Returns the item that ``data`` encodes.

    Raises:
        InvalidArgumentError: ``data`` is not the deterministic encoding of one item.
    """
    try:
        item, end = _decode(data, 0)
        if end == len(data) and encode(item) == data:
            return item
    except (IndexError, KeyError, RecursionError, UnicodeDecodeError, struct.error):
        pass
    raise InvalidArgumentError(f"{len(data)} bytes are no deterministic CBOR")


def _head(major: int, argument: int) -> bytes:
    if argument < 24:
        return bytes([major << 5 | argument])
    size = next(size for size in (1, 2, 4, 8) if argument < 1 << 8 * size)
    return bytes([major << 5 | 23 + size.bit_length()]) + argument.to_bytes(size, "big")


def _encode_float(value: float) -> bytes:
    """Returns the shortest of float16, float32 and float64 that has the value."""
    for info in (25, 26):
        try:
            packed = struct.pack(_FLOATS[info], value)
        except OverflowError:
            continue
        if struct.unpack(_FLOATS[info], packed)[0] == value or math.isnan(value):
            return bytes([_SIMPLE << 5 | info]) + packed
    return b"\xfb" + struct.pack(">d", value)


def _decode(data: bytes, at: int) -> tuple[Any, int]:
    """Returns the item that begins at ``at``, and where it ends."""
    major, info = data[at] >> 5, data[at] & 31
    at += 1
    if major == _SIMPLE:
        if info in _SIMPLE_VALUES:
            return _SIMPLE_VALUES[info], at
        return struct.unpack_from(_FLOATS[info], data, at)[0], at + struct.calcsize(_FLOATS[info])
    if info >= 24:
        size = {24: 1, 25: 2, 26: 4, 27: 8}[info]
        info, at = int.from_bytes(data[at : at + size], "big"), at + size
    if major == _UINT:
        return info, at
    if major == _ARRAY:
        items = []
        for _ in range(info):
            item, at = _decode(data, at)
            items.append(item)
        return items, at
    content, end = data[at : at + info], at + info
    if major == _TEXT:
        return content.decode(), end
    if major == _BYTES:
        return content, end
    raise KeyError(major)
