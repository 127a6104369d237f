"""The key encodings DELTA_BITPACKED and BITMAP of docs/wire-format.md: encoders and decoders.

    keys 1000, 1001, 1007, 1010   delta: 03 40 05   bitmap: 83 04   (both with first_key 1000)

All functions work on whole arrays. Loops in Python run over blocks of 128 keys.
"""

from __future__ import annotations

import numpy as np

from sparseagg._internal.updates.arrays import Array
from sparseagg._internal.wire.message import Bulk
from sparseagg.errors import InvalidArgumentError

__all__ = ["Gaps", "bitmap_bytes", "decode_bitmap", "decode_delta", "encode_bitmap", "strictly_ascends"]

BLOCK_KEYS = 128
_GROUP = 8  # keys of any width together fill whole bytes
_MAX_WIDTH = 64


def strictly_ascends(keys: Array) -> bool:
    """Returns whether each key, of shape (n,), is larger than the key before, which both encodings require."""
    # Keys in no order mostly show that among the first.
    return bool((keys[1:64] > keys[:63][: len(keys[1:64])]).all()) and bool((keys[1:] > keys[:-1]).all())


class Gaps:
    """The gaps between keys, and the size of their encoding, which is known before ``encode``.

    Args:
        keys: uint32 or uint64, shape (n,) with n ≥ 1, strictly ascending.

    Attributes:
        num_bytes: size of the encoding.
    """

    def __init__(self, keys: Array) -> None:
        num_blocks = -(-len(keys) // BLOCK_KEYS)
        padded = np.zeros(num_blocks * BLOCK_KEYS, dtype=keys.dtype)
        gaps = padded[1 : len(keys)]
        np.subtract(keys[1:], keys[:-1], out=gaps)
        gaps -= keys.dtype.type(1)
        self._blocks = padded.reshape(num_blocks, BLOCK_KEYS)
        self._widths = _bit_lengths(self._blocks.max(axis=1))
        self._num_keys = len(keys)
        self.num_bytes = num_blocks + int(_block_sizes(self._widths, len(keys)).sum())

    def encode(self) -> bytes:
        """Returns the bytes of DELTA_BITPACKED, whose first_key is the first key."""
        pieces: list[bytes] = [b""] * len(self._widths)
        for width in np.unique(self._widths).tolist():
            rows = np.flatnonzero(self._widths == width)
            packed = _pack(self._blocks[rows], width)
            size = BLOCK_KEYS // 8 * width
            for position, row in enumerate(rows.tolist()):
                pieces[row] = packed[position * size : (position + 1) * size]
        # The last block ends with its last key, without the padding.
        return (self._widths.tobytes() + b"".join(pieces))[: self.num_bytes]


def decode_delta(data: Bulk, first_key: int, num_keys: int) -> Array:
    """Returns the keys of DELTA_BITPACKED bytes, uint64, shape (num_keys,).

    Raises:
        InvalidArgumentError: the bytes are not the encoding of ``num_keys`` keys from ``first_key`` on.
    """
    num_blocks = -(-num_keys // BLOCK_KEYS)
    widths = np.frombuffer(data, dtype=np.uint8, count=num_blocks) if num_blocks <= len(data) else None
    if widths is None or (num_blocks and int(widths.max()) > _MAX_WIDTH):
        raise InvalidArgumentError(f"{len(data)} bytes of keys are no encoding of {num_keys}")
    sizes = _block_sizes(widths, num_keys)
    ends = num_blocks + np.cumsum(sizes)
    total = int(ends[-1]) if num_blocks else 0
    if len(data) != total:
        raise InvalidArgumentError(f"{len(data)} bytes of keys, where {num_keys} keys of these widths make {total}")
    bits_of_last_byte = num_keys % BLOCK_KEYS * int(widths[-1]) % 8 if num_blocks else 0
    if bits_of_last_byte and data[-1] >> bits_of_last_byte:
        raise InvalidArgumentError("the bits behind the last key are not zero")
    gaps = np.zeros((num_blocks, BLOCK_KEYS), dtype=np.uint64)
    begins = (ends - sizes).tolist()
    for width in np.unique(widths).tolist():
        if width == 0:
            continue
        rows = np.flatnonzero(widths == width)
        size = BLOCK_KEYS // 8 * width
        blocks = b"".join([data[begins[row] : begins[row] + size] for row in rows.tolist()])
        gaps[rows] = _unpack(blocks.ljust(len(rows) * size, b"\0"), width).reshape(len(rows), BLOCK_KEYS)
    steps = gaps.reshape(-1)[:num_keys]
    wraps = num_keys > 0 and int(steps[0]) + first_key >= 1 << 64
    if num_keys and not wraps:
        steps[1:] += np.uint64(1)
        steps[0] += np.uint64(first_key)
    keys = np.cumsum(steps, dtype=np.uint64)
    if wraps or not strictly_ascends(keys):
        raise InvalidArgumentError("the keys pass 2^64-1")
    return keys


def encode_bitmap(keys: Array) -> bytes:
    """Returns the bytes of BITMAP, whose first_key is ``keys[0]``; ``keys`` strictly ascend."""
    if len(keys) == 0:
        return b""
    bits = np.zeros(int(keys[-1]) - int(keys[0]) + 1, dtype=np.uint8)
    bits[keys - keys[0]] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def bitmap_bytes(keys: Array) -> int:
    """Returns the length of ``encode_bitmap(keys)``; ``keys`` are not empty."""
    return (int(keys[-1]) - int(keys[0])) // 8 + 1


def decode_bitmap(data: Bulk, first_key: int) -> Array:
    """Returns the keys of BITMAP bytes, uint64, shape (n,).

    Raises:
        InvalidArgumentError: the last byte is zero, or the keys pass 2^64-1.
    """
    if data and data[-1] == 0:
        raise InvalidArgumentError(f"the last of {len(data)} bytes of a bitmap is zero")
    places = np.flatnonzero(np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little"))
    if data and first_key + int(places[-1]) >= 1 << 64:
        raise InvalidArgumentError("the keys pass 2^64-1")
    return places.astype(np.uint64) + np.uint64(first_key)


def _bit_lengths(numbers: Array) -> Array:
    """Returns the number of bits of each number, uint8; exact for all of uint64."""
    high = numbers.astype(np.uint64) >> np.uint64(32)
    low = (numbers & numbers.dtype.type(0xFFFFFFFF)).astype(np.float64)
    lengths = np.where(high > 0, 32 + np.frexp(high.astype(np.float64))[1], np.frexp(low)[1])
    return lengths.astype(np.uint8)


def _block_sizes(widths: Array, num_keys: int) -> Array:
    """Returns the bytes of each block, int64; the last block may have fewer keys."""
    sizes = widths.astype(np.int64) * (BLOCK_KEYS // 8)
    if len(sizes):
        last = num_keys - (len(sizes) - 1) * BLOCK_KEYS
        sizes[-1] = (last * int(widths[-1]) + 7) // 8
    return sizes


def _places(width: int) -> list[tuple[int, int, int]]:
    """Returns for each key of a group: its position, the 64-bit word in which it begins, and the bit there."""
    return [(k, k * width // 64, k * width % 64) for k in range(_GROUP)]


def _pack(blocks: Array, width: int) -> bytes:
    """Returns the bytes of whole blocks of gaps, of ``width`` bits each."""
    if width == 0:
        return b""
    groups = blocks.reshape(-1, _GROUP)
    words = np.zeros((-(-width // 8), len(groups)), dtype="<u8")
    for k, word, shift in _places(width):
        gaps = groups[:, k].astype(np.uint64)
        if shift + width > 64:
            words[word + 1] |= gaps >> np.uint64(64 - shift)
        words[word] |= gaps << np.uint64(shift) if shift else gaps
    return np.ascontiguousarray(words.T).view(np.uint8)[:, :width].tobytes()


def _unpack(data: bytes, width: int) -> Array:
    """Returns the gaps, uint64, of whole blocks."""
    octets = np.frombuffer(data, dtype=np.uint8).reshape(-1, width)
    padded = np.zeros((len(octets), -(-width // 8) * 8), dtype=np.uint8)
    padded[:, :width] = octets
    words = padded.view("<u8")
    gaps = np.empty((len(octets), _GROUP), dtype=np.uint64)
    for k, word, shift in _places(width):
        bits = words[:, word] >> np.uint64(shift)
        if shift + width > 64:
            bits |= words[:, word + 1] << np.uint64(64 - shift)
        gaps[:, k] = bits & np.uint64((1 << width) - 1)
    return gaps
