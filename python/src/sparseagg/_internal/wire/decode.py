"""The decoder: from the slices of a result to arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparseagg._internal.base import extension
from sparseagg._internal.updates.arrays import Array
from sparseagg._internal.wire.keys import decode_bitmap, decode_delta
from sparseagg._internal.wire.message import Bulk
from sparseagg._internal.wire.values import decode_values
from sparseagg.errors import InvalidArgumentError
from sparseagg.v1 import aggregation_pb2 as pb

__all__ = ["decode_keys", "decode_rows"]

_PACKED_KEYS = {pb.KEY_ENCODING_DELTA_BITPACKED: "delta_bitpacked", pb.KEY_ENCODING_BITMAP: "bitmap"}
_PLAIN_KEYS = {pb.KEY_ENCODING_U32: "<u4", pb.KEY_ENCODING_U64: "<u8"}


def decode_keys(piece: pb.TensorSlice, data: Bulk, key_type: np.dtype[Any]) -> Array:
    """Returns the keys of a slice, whose bytes are ``data``, shape (n,), as ``key_type``, uint32 or uint64.

    Raises:
        InvalidArgumentError: the encoding is unknown, or the bytes are no encoding of num_keys keys.
    """
    keys = _decode(piece, data, key_type)
    if piece.num_keys not in (0, len(keys)):
        raise InvalidArgumentError(f"num_keys {piece.num_keys}, but {len(keys)} keys")
    return keys.astype(key_type, copy=False)


def decode_rows(piece: pb.TensorSlice, data: Bulk, dtype: str, num_values: int) -> Array:
    """Returns the values of a slice, whose bytes are ``data``, shape (num_values,), as ``dtype``; bfloat16 as uint16.

    Raises:
        InvalidArgumentError: the encoding is unknown, or the bytes are no encoding of ``num_values`` values.
    """
    if piece.value_encoding == pb.VALUE_ENCODING_UNSPECIFIED:
        return decode_values(data, dtype, dtype, num_values)
    known = {number: name for name, number in pb.ValueEncoding.items()}
    name = known.get(piece.value_encoding, f"VALUE_ENCODING_{piece.value_encoding}")
    return decode_values(data, name[len("VALUE_ENCODING_") :].lower(), dtype, num_values)


def _decode(piece: pb.TensorSlice, data: Bulk, key_type: np.dtype[Any]) -> Array:
    engine = extension.find()
    if engine is not None and piece.key_encoding in _PACKED_KEYS:
        name = _PACKED_KEYS[piece.key_encoding]
        with extension.errors():
            keys: Array = engine.decode_keys(name, data, piece.first_key, piece.num_keys, key_type.itemsize)
        return keys
    if piece.key_encoding in _PLAIN_KEYS:
        wire = np.dtype(_PLAIN_KEYS[piece.key_encoding])
        if len(data) % wire.itemsize:
            raise InvalidArgumentError(f"{len(data)} bytes of keys are no multiple of {wire.itemsize}")
        return np.frombuffer(data, dtype=wire)
    if piece.key_encoding == pb.KEY_ENCODING_IMPLICIT:
        return np.arange(piece.num_keys, dtype=np.uint64) + np.uint64(piece.first_key)
    if piece.key_encoding == pb.KEY_ENCODING_DELTA_BITPACKED:
        return decode_delta(data, piece.first_key, piece.num_keys)
    if piece.key_encoding == pb.KEY_ENCODING_BITMAP:
        return decode_bitmap(data, piece.first_key)
    if piece.key_encoding == pb.KEY_ENCODING_UNSPECIFIED and not data:  # a page without keys
        return np.empty(0, dtype=np.uint64)
    raise InvalidArgumentError(f"key_encoding {piece.key_encoding} is unknown here")
