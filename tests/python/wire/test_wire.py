"""What goes over the wire when it is asked to be small, through a real server."""

from __future__ import annotations

import numpy as np
import pytest
import sparseagg as sa
from every_client import digest
from sparseagg._internal.updates.arrays import update_data
from sparseagg._internal.wire.columns import decode_values, encode_values
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


def rounded(tensors: dict, encodings: dict[str, str]) -> dict:
    """The update that is meant when values are sent in these encodings."""
    out = dict(tensors)
    for name, encoding in encodings.items():
        keys, rows = tensors[name]
        dtype = SPEC.tensor(name).dtype
        data = encode_values(rows, encoding)
        out[name] = (keys, decode_values(data, encoding, dtype, rows.size).reshape(rows.shape))
    return out


@pytest.mark.parametrize(
    ("values", "encodings"),
    [
        ("float16", {"e": "float16", "d": "float16"}),
        ("bfloat16", {"e": "bfloat16", "d": "bfloat16"}),
        ("int8_scaled", {"e": "int8_scaled", "d": "int8_scaled"}),
        ("float32", {"d": "float32"}),
        ({"e": "float16", "d": "float32"}, {"e": "float16", "d": "float32"}),
        ({}, {}),
    ],
)
def test_submit_narrow_values_is_submitting_the_rounded_ones(client, values, encodings):
    narrow, plain = client.create_round(SPEC), client.create_round(SPEC)
    for i in range(3):
        sent = narrow.submit(f"c{i}", update(i), value_encoding=values)
        again = narrow.submit(f"c{i}", rounded(update(i), encodings), key_encoding="plain")
        assert not sent.duplicate
        assert again.duplicate, "the same content"
        assert sent.num_bytes == again.num_bytes
        plain.submit(f"c{i}", rounded(update(i), encodings), key_encoding="plain")
    assert digest(narrow.finish()) == digest(plain.finish(key_encoding="plain"))


def test_result_narrow_values_are_rounded_and_come_back_wide(client):
    rnd = client.create_round(SPEC)
    rnd.submit("a", update(0))
    exact = rnd.finish()
    for encoding in ("float16", "bfloat16", "float32"):
        result = rnd.result(value_encoding=encoding)
        for name, dtype in (("e", "float32"), ("d", "float64")):
            assert result[name].values.dtype == dtype
            if encoding == dtype:
                expected = exact[name].values
            else:
                data = encode_values(exact[name].values, encoding)
                expected = decode_values(data, encoding, dtype, exact[name].values.size)
            assert np.array_equal(result[name].values.reshape(-1), expected.reshape(-1))
        assert np.array_equal(result["i"].values, exact["i"].values)
    scaled = rnd.result(["e"], value_encoding="int8_scaled", keys=(100, 40_000))["e"]
    part = rnd.result(["e"], keys=(100, 40_000))["e"]
    assert np.array_equal(scaled.keys, part.keys)
    assert 0 < np.abs(scaled.values - part.values).max() <= 0.5 * np.abs(part.values).max() / 127 * 1.0001
    # Beyond the range of float16: as they are.
    large = client.aggregate([(([1, 2], [1e-9, 1e9]))], sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=10)]))
    assert large["v"].values.tolist() == [np.float32(1e-9), np.float32(1e9)]


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


def test_format_values_the_server_does_not_know_are_refused():
    old = ServerWire(1000, frozenset({"u32"}), frozenset({"float32", "float64"}))
    with pytest.raises(
        sa.InvalidArgumentError, match="does not know value_encoding 'float16'; known: float32, float64"
    ):
        old.format(SPEC, "auto", "float16")
    assert old.format(SPEC, "auto", "float32") == WireFormat(frozenset(), {"d": "float32"})
