"""Chunks: what each holds, at and around the limits; and pages, which are parsed without a copy of their columns."""

from __future__ import annotations

import numpy as np
import pytest
import sparseagg as sa
from google.protobuf.message import DecodeError
from sparseagg._internal.updates.arrays import update_data
from sparseagg._internal.wire.columns import parse_page
from sparseagg._internal.wire.encode import chunk_bytes_for, encode_chunks
from sparseagg.v1 import aggregation_pb2 as pb

SPEC = sa.RoundSpec(
    [
        sa.TensorSpec("e", "float32", num_rows=1000, row_width=2),
        sa.TensorSpec("b", "float64", num_rows=5, layout="dense"),
    ]
)
OVERHEAD = 64 + 1  # of a slice of a tensor whose name has one byte
ROW = 4 + 8


def chunks_of(update, chunk_bytes: int, **options) -> list[pb.UpdateChunk]:
    options = {"client_id": "c", "submission_id": "s", **options}
    chunks = encode_chunks(update_data(SPEC, update), chunk_bytes=chunk_bytes, **options)
    return [pb.UpdateChunk.FromString(chunk.serialise()) for chunk in chunks]


def embedding(count: int) -> dict:
    return {"e": (np.arange(count), np.arange(2 * count, dtype=np.float32).reshape(count, 2))}


@pytest.mark.parametrize(
    ("rows", "fit", "sizes"),
    [(0, 3, []), (1, 3, [1]), (2, 3, [2]), (3, 3, [3]), (4, 3, [3, 1]), (6, 3, [3, 3]), (7, 3, [3, 3, 1])],
)
def test_encode_chunks_rows_around_the_limit_are_split_there(rows, fit, sizes):
    for chunk_bytes in (OVERHEAD + fit * ROW, OVERHEAD + (fit + 1) * ROW - 1):
        chunks = chunks_of(embedding(rows), chunk_bytes)
        assert [piece.num_keys for chunk in chunks for piece in chunk.slices] == sizes
        assert [chunk.sequence for chunk in chunks] == list(range(max(1, len(sizes))))
        assert [chunk.last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
        assert (
            b"".join(piece.keys for chunk in chunks for piece in chunk.slices) == np.arange(rows, dtype="<u4").tobytes()
        )


def test_encode_chunks_messages_stay_below_the_limit():
    limit = 4000
    many = sa.RoundSpec([sa.TensorSpec(f"tensor-{i:0200}", "float32", num_rows=100) for i in range(30)])
    update = {tensor.name: (np.arange(100), np.ones(100)) for tensor in many.tensors}
    chunks = [
        pb.UpdateChunk.FromString(chunk.serialise())
        for chunk in encode_chunks(
            update_data(many, update),
            client_id="c" * 256,
            submission_id="s" * 256,
            round_name="rounds/" + "r" * 128,
            weight=1.0,
            chunk_bytes=chunk_bytes_for(limit),
        )
    ]
    assert max(chunk.ByteSize() for chunk in chunks) <= limit
    assert sum(len(piece.keys) for chunk in chunks for piece in chunk.slices) == 30 * 100 * 4


def test_serialised_chunks_are_what_protocol_buffers_makes_of_them():
    update = {**embedding(1000), "b": np.arange(5.0)}
    for chunk in encode_chunks(update_data(SPEC, update), client_id="c", submission_id="s", chunk_bytes=5000):
        message = pb.UpdateChunk()
        message.CopyFrom(chunk.head)
        for head, keys, values in chunk.slices:
            piece = message.slices.add()
            piece.CopyFrom(head)
            piece.keys, piece.values = bytes(keys), bytes(values)
        assert pb.UpdateChunk.FromString(chunk.serialise()) == message
        request = chunk.serialise_for_aggregate()
        assert pb.AggregateRequest.FromString(request) == pb.AggregateRequest(chunk=message)
        assert len(request) == pb.AggregateRequest(chunk=message).ByteSize()
        assert len(chunk.serialise()) == message.ByteSize()


def test_plain_keys_and_values_are_borrowed_until_they_are_sent():
    keys, values = np.arange(3, dtype=np.uint32), np.ones((3, 2), np.float32)
    data = update_data(SPEC, {"e": (keys, values)})
    (chunk,) = encode_chunks(data, client_id="c", submission_id="s", chunk_bytes=5000)
    keys[0], values[0, 0] = 9, 5
    sent = pb.UpdateChunk.FromString(chunk.serialise()).slices[0]
    assert np.frombuffer(sent.keys, np.uint32)[0] == 9
    assert np.frombuffer(sent.values, np.float32)[0] == 5


SEED = 20261130


def made_page(rng: np.random.Generator, num_keys: int) -> pb.ResultPage:
    """A page of which each part may be missing."""

    def some(data: bytes) -> bytes:
        return data if rng.random() < 0.7 else b""

    page = pb.ResultPage(counts=some(rng.bytes(4 * num_keys)), weights=some(rng.bytes(8 * num_keys)))
    page.next_page_token = some(b"token").decode()
    if rng.random() < 0.8:
        page.slice.CopyFrom(
            pb.TensorSlice(tensor="täg", key_encoding=pb.KEY_ENCODING_U32, first_key=int(rng.integers(1 << 63)))
        )
        page.slice.num_keys = num_keys
        page.slice.keys, page.slice.values = some(rng.bytes(4 * num_keys)), some(rng.bytes(8 * num_keys))
    if rng.random() < 0.5:
        page.summary.CopyFrom(pb.TensorSummary(name="täg", num_keys=num_keys, has_counts=True))
    return page


@pytest.mark.parametrize("num_keys", [0, 1, 3000, 40_000])
def test_page_has_what_protobuf_reads(num_keys):
    rng = np.random.default_rng([SEED, num_keys])
    for _ in range(30):
        message = made_page(rng, num_keys)
        page = parse_page(message.SerializeToString())
        columns = [bytes(column) for column in (page.keys, page.values, page.counts, page.weights)]
        assert columns == [message.slice.keys, message.slice.values, message.counts, message.weights]
        for field in ("keys", "values"):
            message.slice.ClearField(field)
            page.head.slice.ClearField(field)
        for field in ("counts", "weights"):
            message.ClearField(field)
            page.head.ClearField(field)
        if not message.HasField("slice"):
            message.slice.SetInParent()
            page.head.slice.SetInParent()
        assert page.head == message, f"seed {SEED}"


def test_bytes_that_are_no_page_are_refused():
    rng = np.random.default_rng(SEED)
    whole = pb.ResultPage(slice=pb.TensorSlice(tensor="t", values=rng.bytes(20_000)), next_page_token="more")
    data = whole.SerializeToString()
    for end in (1, 3, 19_000, len(data) - 1):
        with pytest.raises((ValueError, DecodeError)):
            parse_page(data[:end])
    for damaged in (data + b"\x0b", data + b"\x80" * 12, data + b"\x0a\xff\x7f", b"\x0f" + data):
        with pytest.raises((ValueError, DecodeError)):
            parse_page(damaged)
