"""Values in narrower encodings: bytes, errors and bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sparseagg as sa
from sparseagg._internal.wire.columns import NARROW, decode_values, encode_values, encoded_bytes, first_misfit, widens

SEED = 20261127


def test_int8_example_as_documented():
    values = np.array([1.0, -0.5, 0.25, 0.0], np.float32)
    assert encode_values(values, "int8_scaled") == bytes.fromhex("04 02 01 3c 7f c0 20 00")
    decoded = decode_values(bytes.fromhex("04 02 01 3c 7f c0 20 00"), "int8_scaled", "float32", 4)
    scale = np.frombuffer(bytes.fromhex("04 02 01 3c"), "<f4")[0]
    assert decoded.dtype == np.float32
    assert decoded.tolist() == [scale * np.float32(m) for m in (127, -64, 32, 0)]


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 128, 1000])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_int8_error_is_half_a_step_of_its_block(count, dtype):
    rng = np.random.default_rng(SEED)
    values = (rng.normal(size=count) * 10.0 ** rng.integers(-30, 30, count)).astype(dtype)
    data = encode_values(values, "int8_scaled")
    assert len(data) == encoded_bytes("int8_scaled", count) == count + 4 * math.ceil(count / 64)
    decoded = decode_values(data, "int8_scaled", dtype, count).astype(np.float64)
    assert decoded.shape == (count,)
    for begin in range(0, count, 64):
        block = values[begin : begin + 64].astype(np.float64)
        step = np.abs(block).max() / 127
        assert np.abs(decoded[begin : begin + 64] - block).max() <= 0.5 * step * (1 + 1e-5), f"seed {SEED}"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("encoding", ["float32", "float16", "bfloat16"])
def test_floats_round_once_and_come_back_exactly(encoding, dtype):
    if not widens(encoding, dtype):
        return
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rng = np.random.default_rng(SEED)
    values = np.concatenate([rng.normal(size=1000), [0.0, -0.0, math.inf, -math.inf, 2.0**-149, 65504.0]]).astype(dtype)
    narrow = ml_dtypes.bfloat16 if encoding == "bfloat16" else encoding
    data = encode_values(values, encoding)
    assert len(data) == encoded_bytes(encoding, len(values))
    decoded = decode_values(data, encoding, dtype, len(values))
    assert decoded.dtype == dtype
    assert np.array_equal(decoded, values.astype(narrow).astype(dtype), equal_nan=True)


@pytest.mark.parametrize(
    ("values", "encoding", "position"),
    [
        ([1.0, 65519.0], "float16", None),
        ([1.0, -65520.0, 1e9], "float16", 1),
        ([1e9, math.inf], "float16", 0),
        ([math.inf, math.nan], "float16", None),
        ([math.nan, 1e9], "float16", 1),
        ([3.4e38], "bfloat16", 0),
        ([1e39], "float32", 0),
        ([1e38], "float32", None),
        ([], "float16", None),
        ([1.0, math.inf], "int8_scaled", 1),
        ([1.0, math.nan], "int8_scaled", 1),
        ([1.6e38], "int8_scaled", None),
        ([0.0, 1.7e38], "int8_scaled", 1),
    ],
)
def test_first_misfit_names_the_position(values, encoding, position):
    assert first_misfit(np.array(values, np.float64), encoding) == position


@pytest.mark.parametrize(
    ("size", "encoding", "dtype", "count", "words"),
    [
        (3, "float16", "float32", 2, "3 bytes"),
        (70, "int8_scaled", "float32", 65, "70 bytes"),
        (8, "float64", "float32", 1, "do not come as"),
        (4, "float32", "float16", 1, "do not come as"),
        (4, "int32", "float32", 1, "do not come as"),
    ],
)
def test_decode_values_what_does_not_fit_is_refused(size, encoding, dtype, count, words):
    with pytest.raises(sa.InvalidArgumentError, match=words):
        decode_values(bytes(size), encoding, dtype, count)


@pytest.mark.parametrize("encoding", NARROW)
def test_narrow_values_raise_nothing_where_numpy_is_told_to_raise(encoding):
    values = np.array([1e-310, -1e-320, 1e-40, 0.0, 1.0])
    expected = first_misfit(values, encoding), encode_values(values, encoding)
    decoded = decode_values(expected[1], encoding, "float32" if encoding != "float32" else "float64", 5)
    tiny = np.full(64, 5e-324)
    with np.errstate(all="raise"):
        assert (first_misfit(values, encoding), encode_values(values, encoding)) == expected
        assert decode_values(expected[1], encoding, str(decoded.dtype), 5).tolist() == decoded.tolist()
        assert first_misfit(tiny, encoding) is None
        assert first_misfit(np.array([math.nan, 1e300]), encoding) == (0 if encoding == "int8_scaled" else 1)
