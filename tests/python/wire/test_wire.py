"""Values in narrower encodings: bytes, errors and bounds, and what goes over the wire through a real server."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sparseagg as sa
from every_client import digest
from sparseagg._internal.updates.arrays import update_data
from sparseagg._internal.wire.columns import NARROW, decode_values, encode_values, encoded_bytes, first_misfit, widens
from sparseagg._internal.wire.encode import ServerWire, WireFormat, encode_chunks
from sparseagg.v1 import aggregation_pb2 as pb

SEED = 20261130
SPEC = sa.RoundSpec(
    [
        sa.TensorSpec("e", "float32", num_rows=100_000, row_width=3),
        sa.TensorSpec("d", "float64", num_rows=10_000),
        sa.TensorSpec("i", "int32", num_rows=1000),
    ],
    return_counts=True,
)


def update(seed: int) -> dict:
    rng = np.random.default_rng(SEED + seed)
    keys = {
        name: np.unique(rng.integers(0, limit, 2000)) for name, limit in [("e", 50_000), ("d", 10_000), ("i", 1000)]
    }
    return {
        "e": (keys["e"], rng.normal(size=(len(keys["e"]), 3)).astype("float32")),
        "d": (keys["d"], rng.normal(size=len(keys["d"])) * 1e-3),
        "i": (keys["i"], rng.integers(-9, 9, len(keys["i"]), dtype=np.int32)),
    }


def test_result_of_many_pages_packed_or_plain_is_the_same(start_server):
    server = start_server("--max-page-bytes", "5000")
    with sa.Client(server.address) as client:
        rnd = client.create_round(SPEC)
        for i in range(3):
            rnd.submit(f"c{i}", update(i))
        assert digest(rnd.finish()) == digest(rnd.result(key_encoding="plain"))


@pytest.mark.parametrize("row_width", [1, 3, 24, 63, 64, 65, 96, 128, 300, 1000])
def test_int8_values_of_any_width_do_not_depend_on_the_size_of_chunks(row_width):
    rng = np.random.default_rng(SEED + row_width)
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=1000, row_width=row_width)])
    rows = (rng.normal(size=(200, row_width)) * 10.0 ** rng.integers(-6, 6, (200, row_width))).astype(np.float32)
    tensors = update_data(spec, (np.arange(200), rows))
    sent = []
    for chunk_bytes in (1, 600, 5000, 77_777, 1 << 20):
        chunks = encode_chunks(
            tensors,
            client_id="c",
            submission_id="s",
            chunk_bytes=chunk_bytes,
            wire=WireFormat(values={"v": "int8_scaled"}),
        )
        pieces = [piece for chunk in chunks for piece in pb.UpdateChunk.FromString(chunk.serialise()).slices]
        assert all(piece.num_keys * row_width % 64 == 0 for piece in pieces[:-1])
        sent.append(
            np.concatenate([decode_values(p.values, "int8_scaled", "float32", p.num_keys * row_width) for p in pieces])
        )
    assert all(np.array_equal(values, sent[-1]) for values in sent), f"seed {SEED + row_width}"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ("float8", "unknown value_encoding 'float8'; known: float32, float16"),
        ({"i": "float16"}, "tensor 'i': values of int32 are not sent as float16"),
        ({"e": "float32"}, "tensor 'e': values of float32 are not sent as float32"),
        ({"nope": "float16"}, "unknown tensor 'nope'"),
    ],
)
def test_submit_values_that_make_no_sense_are_refused(client, values, words):
    rnd = client.create_round(SPEC)
    with pytest.raises(sa.InvalidArgumentError, match=words):
        rnd.submit("c", update(0), value_encoding=values)
    assert rnd.refresh().num_refused == 0


def test_format_values_the_server_does_not_know_are_refused():
    old = ServerWire(1000, frozenset({"u32"}), frozenset({"float32", "float64"}))
    with pytest.raises(
        sa.InvalidArgumentError, match="does not know value_encoding 'float16'; known: float32, float64"
    ):
        old.format(SPEC, "auto", "float16")
    assert old.format(SPEC, "auto", "float32") == WireFormat(frozenset(), {"d": "float32"})


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


@pytest.mark.parametrize(
    "options", [{"key_encoding": "zip"}, {"value_encoding": "float8"}, {"value_encoding": "float64"}]
)
def test_close_unknown_options_close_nothing(client, options):
    rnd = client.create_round(SPEC)
    with pytest.raises(sa.InvalidArgumentError, match="unknown"):
        rnd.finish(**options)
    assert rnd.refresh().state == "open"
    with pytest.raises(sa.InvalidArgumentError, match="unknown"):
        rnd.submit("c", update(0), **options)
