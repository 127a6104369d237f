"""The submissions of a sealed round of a server, and merges of them."""

from __future__ import annotations

import grpc
import numpy as np
import pytest
import sparseagg as sa
from every_client import digest, one
from sparseagg._internal.client.channels import make_stub
from sparseagg._internal.client.result_reader import exported_page
from sparseagg._internal.wire.columns import ExportedColumns
from sparseagg.cluster.exchange import count_keys, export_submissions
from sparseagg.v1 import aggregation_pb2 as pb


def test_weights_and_keys_of_a_union(client):
    spec = sa.RoundSpec(
        [sa.TensorSpec("u", "float32", num_rows=0, op="union"), sa.TensorSpec("v", "float32", num_rows=5)],
        op="mean",
        weighting="by_weight",
        keep_submissions=True,
    )
    opened = client.create_round(spec)
    opened.submit("b", {"u": ([2**60, 1], None)}, 2.5)
    opened.submit("a", {"v": ([3], [1.0])}, 0)
    opened.seal()
    exported = export_submissions(opened, "u")
    assert {each: (u.keys.tolist(), u.values, u.weight) for each, u in exported.items()} == {
        "a": ([], None, 0.0),
        "b": ([1, 2**60], None, 2.5),
    }
    assert [u.values.tolist() for u in export_submissions(opened, "v").values()] == [[1.0], []]
    assert count_keys(opened, "u", bits=59).tolist() == [1, 0, 1, *[0] * 29]
    assert count_keys(opened, "u", bits=0, within=(1, [2**59, 7, 0])).tolist() == [1, 0, 0, 0, 0, 1]
    with pytest.raises(sa.errors.InvalidArgumentError, match="'w'"):
        export_submissions(opened, "w")
    with pytest.raises(sa.errors.InvalidArgumentError, match="the request must name one"):
        export_submissions(opened)
    with pytest.raises(sa.errors.InvalidArgumentError, match="bits"):
        count_keys(opened, "u", bits=-1)
    with pytest.raises(sa.errors.InvalidArgumentError, match=r"'u': buckets: parts of 9 bits .* at most 131072 parts"):
        count_keys(opened, "u", bits=9)


def test_export_goes_on_after_a_broken_connection(flaky):
    rng = np.random.default_rng(6)
    updates = {
        f"c{i:02}": (rng.integers(0, 10**6, 50_000), rng.standard_normal(50_000).astype("f4")) for i in range(20)
    }
    spec = one(num_rows=10**6, keep_submissions=True)
    proxy = flaky(3_000_000, 3_000_000, of_answers=True)
    with sa.Client(proxy.address, connections=1) as client:
        opened = client.create_round(spec)
        for client_id, update in updates.items():
            opened.submit(client_id, update)
        opened.seal()
        exported = export_submissions(opened)  # 8 MB
        assert proxy.broken == 2
        merged = sa.aggregate({each: (u.keys, u.values) for each, u in exported.items()}, spec)
    assert digest(merged) == digest(sa.aggregate(updates, spec))


def test_rounds_in_memory_export_nothing():
    with sa.Client(":memory:") as client:
        opened = client.create_round(one())
        opened.seal()
        with pytest.raises(sa.errors.UnimplementedError, match=":memory:"):
            export_submissions(opened)


def test_pages_of_bulk_data_suit_clients_with_the_limits_of_grpc(start_server):
    """A server that allows pages of any size, read by a client that takes messages of 4 MiB."""
    server = start_server("--max-page-bytes", "0")
    keys = np.arange(1_200_000, dtype=np.uint32)
    tensors = [
        sa.TensorSpec("sums", "int32", num_rows=keys.size, op="sum", return_counts=True),
        sa.TensorSpec("rows", "float32", num_rows=keys.size, return_weights=True, return_moments=True),
    ]
    with sa.Client(server.address) as client:
        opened = client.create_round(sa.RoundSpec(tensors, op="mean"), "large")
        opened.submit("a", {"sums": (keys, keys.astype("i4")), "rows": (keys, keys.astype("f4"))})
        opened.seal()
        name = opened.name
        with grpc.insecure_channel(server.address) as channel:
            stub = make_stub(channel)
            partials = list(stub.ExportPartial(pb.ExportPartialRequest(name=name, tensor="sums")))
            exported = list(stub.ExportSubmissions(pb.ExportSubmissionsRequest(name=name, tensor="rows")))
            opened.start_merge()
            opened.wait()
            results = list(stub.StreamResult(pb.StreamResultRequest(name=name)))
            assert stub.GetResult(pb.GetResultRequest(name=name, tensor="rows")).next_page_token
        sizes = [page.ByteSize() for page in (*partials, *exported, *results)]
        assert max(sizes) < 1 << 21, max(sizes)
        assert sum(page.slice.num_keys or len(page.slice.keys) // 4 for page in exported) == keys.size
        assert len(partials) > 1


def test_wrong_pages_by_place_are_refused():
    spec = sa.TensorSpec("v", "float32", num_rows=9)
    piece = pb.TensorSlice(key_encoding="KEY_ENCODING_U32", value_encoding="VALUE_ENCODING_FLOAT32", num_keys=2)
    right = pb.ExportedSubmissions(
        first_place=5, end_place=8, has_rows=b"\5", num_keys=np.ones(2, "<u4").tobytes(), num_submissions=9, slice=piece
    )

    def page_of(**fields):
        head = pb.ExportedSubmissions(**fields)
        return exported_page(spec, ExportedColumns(head, np.arange(2, dtype="<u4").tobytes(), bytes(8)))

    fields = {field.name: value for field, value in right.ListFields()}
    assert page_of(**fields).places.tolist() == [5, 7]
    wrong = [{"has_rows": bits} for bits in (b"\11", b"\5\0", b"", b"\7")]
    for change in (*wrong, {"end_place": 7}):
        with pytest.raises(sa.errors.InternalError, match="tensor 'v' that is wrong"):
            page_of(**{**fields, **change})
    with pytest.raises(sa.errors.UnimplementedError, match="by place"):
        page_of(client_ids="a", weights=bytes(8))
