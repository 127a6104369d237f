"""Packed keys in Python: the documented bytes, every width, the ends of the key space, and what the client chooses."""

from __future__ import annotations

import numpy as np
import pytest
import sparseagg as sa
from sparseagg._internal.base import extension
from sparseagg._internal.client.round_calls import result_format
from sparseagg._internal.wire.columns import decode_keys
from sparseagg._internal.wire.encode import PLAIN, WireFormat
from sparseagg.v1 import aggregation_pb2 as pb

SEED = 20261125
EXAMPLE = np.array([1000, 1001, 1007, 1010], np.uint32)
ALL = WireFormat(keys=frozenset({"implicit", "delta_bitpacked"}))
DELTA = WireFormat(keys=frozenset({"delta_bitpacked"}))


def decode_delta(data: bytes, first_key: int, num_keys: int) -> np.ndarray:
    piece = pb.TensorSlice(key_encoding=pb.KEY_ENCODING_DELTA_BITPACKED, first_key=first_key, num_keys=num_keys)
    return decode_keys(piece, data, np.dtype(np.uint64))


def ascending(rng: np.random.Generator, count: int, first: int, bits: int, dtype: type) -> np.ndarray:
    gaps = rng.integers(0, 1 << bits, count, dtype=np.uint64)
    gaps[rng.integers(0, count)] = (1 << bits) - 1
    steps = gaps + np.uint64(1)
    steps[0] = first
    return np.cumsum(steps, dtype=np.uint64).astype(dtype)


def plain_delta(keys: list[int]) -> bytes:
    """The encoding, bit by bit, from docs/wire-format.md."""
    gaps = [0] + [after - before - 1 for before, after in zip(keys, keys[1:])]
    blocks = [gaps[at : at + 128] for at in range(0, len(gaps), 128)]
    widths = [max(block).bit_length() for block in blocks]
    out = bytes(widths)
    for block, width in zip(blocks, widths):
        bits = sum(gap << (width * i) for i, gap in enumerate(block))
        out += bits.to_bytes((len(block) * width + 7) // 8, "little")
    return out


@pytest.mark.parametrize("encoding", ["KEY_ENCODING_U64", "KEY_ENCODING_IMPLICIT"])
def test_keys_beyond_the_type_are_refused(encoding):
    piece = pb.TensorSlice(key_encoding=encoding, first_key=2**32 - 1, num_keys=2)
    data = b"" if encoding == "KEY_ENCODING_IMPLICIT" else np.array([1, 2**32], "<u8").tobytes()
    with pytest.raises(sa.InvalidArgumentError, match="key 4294967296 is beyond uint32"):
        decode_keys(piece, data, np.dtype("u4"))
    assert decode_keys(piece, data, np.dtype("u8"))[1] == 2**32


def test_delta_example_as_documented():
    assert bytes(DELTA.encode_keys(EXAMPLE)[2]) == bytes.fromhex("03 40 05") == plain_delta(EXAMPLE.tolist())
    assert decode_delta(bytes.fromhex("03 40 05"), 1000, 4).tolist() == EXAMPLE.tolist()


@pytest.mark.parametrize("count", [1, 2, 127, 128, 129, 256, 300])
def test_delta_any_size_and_width_is_exact(count):
    rng = np.random.default_rng(SEED)
    for bits in range(55):
        keys = ascending(rng, count, int(rng.integers(0, 1000)), bits, np.uint64)
        data = plain_delta(keys.tolist())
        assert np.array_equal(decode_delta(data, int(keys[0]), count), keys)
        for given in [keys, keys.astype(np.uint32)] if keys[-1] < 1 << 32 else [keys]:
            smallest = data if len(data) < given.nbytes else given.tobytes()
            assert bytes(DELTA.encode_keys(given)[2]) == smallest, f"{count} keys, gaps of {bits} bits, seed {SEED}"


# ---- what the client chooses


@pytest.mark.parametrize(
    ("keys", "encoding"),
    [
        (range(7, 107), "IMPLICIT"),
        ([0, 1, 2, 5, 6, 7], "DELTA_BITPACKED"),
        (range(0, 300, 3), "DELTA_BITPACKED"),
        (range(0, 100_000, 997), "DELTA_BITPACKED"),
        ([5, 4], "U32"),
        ([5, 5], "U32"),
        ([0, 2**31], "U32"),  # 9 bytes packed
        ([9], "IMPLICIT"),
        ([], "U32"),
    ],
)
def test_encode_keys_takes_the_smallest(keys, encoding):
    keys = np.array(list(keys), np.uint32)
    name, first_key, data = ALL.encode_keys(keys)
    assert name == encoding
    assert len(data) <= keys.nbytes
    decoded = {
        "IMPLICIT": lambda: np.arange(len(keys)) + first_key,
        "DELTA_BITPACKED": lambda: decode_delta(data, first_key, len(keys)),
        "U32": lambda: np.frombuffer(data, "<u4"),
    }[name]()
    assert decoded.tolist() == keys.tolist()
    assert PLAIN.encode_keys(keys) == ("U32", 0, keys.tobytes())


# ---- through a server


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_keys_without_the_engine_are_sent_as_gaps_and_asked_for_plain(monkeypatch, dtype):
    rng = np.random.default_rng([SEED, np.dtype(dtype).itemsize])
    cases = [ascending(rng, count, 5, bits, dtype) for count in (1, 2, 129, 5000) for bits in (0, 1, 3, 9, 17)]
    cases += [rng.permutation(cases[-1]), np.array([1, 1], dtype), np.array([0, np.iinfo(dtype).max], dtype)]
    packed = [ALL.encode_keys(keys) for keys in cases]
    assert {name for name, _, _ in packed} == {"IMPLICIT", "DELTA_BITPACKED", f"U{dtype().itemsize * 8}"}
    monkeypatch.setattr(extension, "find", lambda: None)
    for keys, (name, first, data) in zip(cases, packed):
        alone = ALL.encode_keys(keys)
        assert (alone[0], alone[1], bytes(alone[2])) == (name, first, bytes(data)), f"seed {SEED}"
        if len(keys) > 1 and name != f"U{dtype().itemsize * 8}":
            assert bytes(DELTA.encode_keys(keys)[2]) == plain_delta(keys.tolist()), f"seed {SEED}"
    assert list(result_format("auto", None).key_encodings) == [pb.KEY_ENCODING_IMPLICIT]


def test_engine_refuses_damaged_keys():
    good, size = plain_delta(EXAMPLE.tolist()), np.dtype(np.uint32)
    piece = pb.TensorSlice(key_encoding=pb.KEY_ENCODING_DELTA_BITPACKED, first_key=1000, num_keys=4)
    for damaged in (good[:-1], good + b"\0", bytes([65]) + good[1:], b""):
        with pytest.raises(sa.InvalidArgumentError):
            decode_keys(piece, damaged, size)
    piece.first_key = (1 << 32) - 5
    with pytest.raises(sa.InvalidArgumentError, match="too large"):
        decode_keys(piece, good, size)
    piece.first_key = (1 << 64) - 5
    with pytest.raises(sa.InvalidArgumentError, match="pass 2"):
        decode_keys(piece, good, np.dtype(np.uint64))
