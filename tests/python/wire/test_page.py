"""Pages that are parsed without a copy of their columns have what Protocol Buffers reads of the same bytes."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from sparseagg._internal.wire.message import parse_page
from sparseagg.v1 import aggregation_pb2 as pb

SEED = 20261127


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
        page.summary.CopyFrom(pb.TensorSummary(name="täg", num_keys=num_keys, fixed_point_shift=-3, has_counts=True))
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
