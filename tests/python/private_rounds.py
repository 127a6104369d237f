"""Specs and updates of rounds with privacy; ``noise_of`` and ``check_noise`` define their noise byte by byte."""

from __future__ import annotations

import hashlib
import hmac
import math
import struct
from typing import Any

import numpy as np
import sparseagg as sa

KEY = bytes(range(32))


def private_spec(privacy: sa.PrivacySpec | None = None, **options: Any) -> sa.RoundSpec:
    """Returns a spec that privacy takes: a sparse tensor "v" of 100 rows of two, and a dense one of four."""
    tensors = [
        sa.TensorSpec("v", "float64", num_rows=100, row_width=2),
        sa.TensorSpec("bias", "float64", num_rows=4, row_width=1, layout="dense"),
    ]
    given = {
        "max_submissions": 1000,
        "clip": sa.ClipSpec(l2=1.0, max_keys=4),
        "privacy": privacy or sa.PrivacySpec(noise_multiplier=2**-10, key_noise_multiplier=0.5, delta=1e-6),
        **options,
    }
    return sa.RoundSpec(tensors, **given)


def crowd(clients: int, keys: tuple[int, ...] = (3, 70)) -> dict[str, dict[str, Any]]:
    """Returns updates of clients that all have the same keys, and of norms below 1."""
    rows = np.full((len(keys), 2), 0.125)
    return {f"c{i}": {"v": (np.array(keys), rows), "bias": np.full((4, 1), 0.25)} for i in range(clients)}


def noise_of(
    release_id: bytes,
    submissions: dict[str, dict[str, tuple[list[int], list[list[int]]]]],
    specs: list[bytes],
    sigma: int,
    rows: dict[str, tuple[list[int], int]],
    names: tuple[str, str] = ("", ""),
) -> dict[str, list[list[int]]]:
    """Computes the noise of a round's values again, independently of the engine.

    Numbers are uint64, little-endian; a text is its number of bytes, then itself in UTF-8.

    Args:
        release_id: of the result.
        submissions: by client id and tensor in the spec's order: ascending keys, and the terms of their rows;
            where keys are selected, a row ends with its score.
        specs: of each tensor, what the digest of the spec is made of.
        sigma: of the lattice.
        rows: of each tensor, the keys of the result, and the number of columns.
        names: tenant and id of the round.

    Returns:
        By tensor, the noise of each row, in units of the lattice.
    """
    root = hashlib.sha256()
    for client_id in sorted(submissions, key=str.encode):
        digest = hashlib.sha256()
        for tensor, (keys, terms) in submissions[client_id].items():
            digest.update(text(tensor) + number(len(keys)) + b"".join(map(number, keys)))
            digest.update(b"".join(term.to_bytes(8, "little", signed=True) for row in terms for term in row))
        root.update(text(client_id) + digest.digest())
    info = b"sparseagg round noise 2" + b"".join(map(text, names)) + text(release_id)
    round_key = _hkdf(KEY, info + hashlib.sha256(b"".join(specs)).digest() + root.digest())
    noise = {}
    for tensor, (keys, width) in rows.items():
        stream_key = _hkdf(round_key, b"sparseagg stream 1" + b"\1" + text(tensor))
        streams = [_Stream(stream_key, number(key) + bytes(4)) for key in keys]
        noise[tensor] = [[_discrete_gaussian(sigma, stream) for _ in range(width)] for stream in streams]
    return noise


def number(value: float) -> bytes:
    """Returns the encoding of an integer or a float64."""
    return struct.pack("<d", value) if isinstance(value, float) else struct.pack("<Q", value)


def text(value: str | bytes) -> bytes:
    """Returns the encoding of a text."""
    data = value if isinstance(value, bytes) else value.encode()
    return number(len(data)) + data


def _hkdf(key: bytes, info: bytes) -> bytes:
    extracted = hmac.digest(bytes(32), key, "sha256")
    return hmac.digest(extracted, info + b"\1", "sha256")


class _Stream:
    """The key stream of ChaCha20, of RFC 8439."""

    def __init__(self, key: bytes, nonce: bytes) -> None:
        self._state = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), 0]
        self._state += struct.unpack("<3I", nonce)
        self._left = b""

    def take(self, size: int) -> int:
        while len(self._left) < size:
            self._left += self._block()
        taken, self._left = self._left[:size], self._left[size:]
        return int.from_bytes(taken, "little")

    def below(self, bound: int) -> int:
        if bound == 1:
            return 0
        bits = (bound - 1).bit_length()
        while True:
            if bits <= 64:
                size = 1 if bits <= 8 else 8
                value = self.take(size) >> (8 * size - bits)
            else:
                upper = self.take(8) % (1 << (bits - 64))
                if upper > (bound - 1) >> 64:
                    continue
                value = upper << 64 | self.take(8)
            if value < bound:
                return value

    def _block(self) -> bytes:
        words = list(self._state)
        for round_ in range(20):
            for i in range(4):
                places = [i, *(4 * j + (i + j * (round_ % 2)) % 4 for j in (1, 2, 3))]
                a, b, c, d = (words[place] for place in places)
                for first, second in ((16, 12), (8, 7)):
                    a = (a + b) & 0xFFFFFFFF
                    d = _rotated(d ^ a, first)
                    c = (c + d) & 0xFFFFFFFF
                    b = _rotated(b ^ c, second)
                for place, word in zip(places, (a, b, c, d)):
                    words[place] = word
        block = struct.pack("<16I", *((a + b) & 0xFFFFFFFF for a, b in zip(words, self._state)))
        self._state[12] += 1
        return block


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) & 0xFFFFFFFF


def _discrete_gaussian(sigma: int, stream: _Stream) -> int:
    scale = sigma + 1
    while True:
        offset = stream.below(scale)
        if not _is_exp(offset, scale, stream):
            continue
        multiple = 0
        while multiple < 4096 and _is_exp(1, 1, stream):
            multiple += 1
        magnitude = offset + scale * multiple
        is_negative = bool(stream.take(1) & 1)
        if is_negative and magnitude == 0:
            continue
        if _is_exp((magnitude * scale - sigma**2) ** 2, 2 * sigma**2 * scale**2, stream):
            return -magnitude if is_negative else magnitude


def _is_exp(numerator: int, denominator: int, stream: _Stream) -> bool:
    while numerator > denominator:
        if not _is_exp(1, 1, stream):
            return False
        numerator -= denominator
    k = 1
    while stream.below(denominator * k) < numerator:
        k += 1
    return k % 2 == 1


def check_noise(result: sa.Result, clients: int, names: tuple[str, str] = ("", "")) -> None:
    """Checks all bits of the result of ``crowd(clients)`` for public keys 3 and 70, and noise of multiplier 1."""
    one = 1 << 24  # units of the lattice: s = min(62 − 10 − 0, 24 − 0)
    terms = {"v": ([3, 70], [[one // 8] * 2] * 2), "bias": ([0, 1, 2, 3], [[one // 4]] * 4)}
    specs = [
        # Name; dtype, rows, columns, layout; op, weighting, result layout and dtype; counts, min_contributors.
        b"".join([text(name), *map(number, [3, num_rows, width, dense, 0, 0, dense, 3, 0, 1])])
        # fill, dense_threshold, fixed_divisor; max_submissions; l2, linf, max_keys.
        + b"".join(map(number, [0.0, 0.0, 0.0, 1000, 1.0, math.inf, max_keys]))
        # noise_multiplier, weight_bound, selection, key_noise_multiplier, delta; the public keys.
        + b"".join(map(number, [1.0, 1.0, 0, 0.0, 0.0, len(keys), *keys]))
        for name, num_rows, width, dense, max_keys, keys in (("v", 100, 2, 0, 4, [3, 70]), ("bias", 4, 1, 1, 0, []))
    ]
    rows = {"v": ([3, 70], 2), "bias": ([0, 1, 2, 3], 1)}
    noise = noise_of(result.info.release_id, {f"c{i}": terms for i in range(clients)}, specs, one, rows, names)
    for tensor, (_, of_tensor) in terms.items():
        expected = (np.array(of_tensor) * clients + np.array(noise[tensor])) / one
        assert np.array_equal(result[tensor].values.reshape(expected.shape), expected)
