"""Partials: what submissions add up to, from one aggregation to another."""

from __future__ import annotations

import dataclasses
import struct

import grpc
import numpy as np
import pytest
import sparseagg as sa
from every_client import digest, one
from partial_rounds import SPECS, updates_of
from sparseagg._internal.client.channels import make_stub
from sparseagg._internal.client.result_reader import exported_page
from sparseagg._internal.wire.columns import ExportedColumns
from sparseagg.cluster.exchange import add_partial, count_keys, export_partial, export_submissions
from sparseagg.v1 import aggregation_pb2 as pb


@pytest.mark.parametrize("name", SPECS)
def test_any_split_has_one_hash(name):
    spec = SPECS[name]
    updates = updates_of(spec, 40, 3)
    expected = digest(sa.aggregate(updates, spec))
    rng = np.random.default_rng(4)
    for leaves in (1, 2, 5, 8):
        parts = [sa.Aggregator(spec) for _ in range(leaves)]
        root = sa.Aggregator(spec)
        for at, (client, update) in enumerate(updates.items()):
            # Leaf 0 is the root's own clients.
            (root if at < 3 else parts[int(rng.integers(leaves))]).add(client, *update)
        for leaf in rng.permutation(leaves):
            blocks = list(parts[leaf].export_partial())
            if parts[leaf].num_submissions == 0:
                continue
            root.add_partial(f"leaf {leaf}", b"".join(blocks) if leaf % 2 else blocks)
        assert root.num_submissions == 40
        assert digest(root.finish()) == expected, leaves


@pytest.mark.parametrize("name", SPECS)
def test_leaf_and_root_are_servers(client, name):
    spec = SPECS[name]
    updates = updates_of(spec, 12, 5)
    expected = digest(sa.aggregate(updates, spec))
    root = client.create_round(dataclasses.replace(spec, accept_partials=True, min_submissions=12))
    for leaf in range(3):
        with client.create_round(spec) as opened:
            for at, (each, update) in enumerate(updates.items()):
                if at % 3 == leaf:
                    opened.submit(each, *update)
            with pytest.raises(sa.errors.FailedPreconditionError, match="the round is OPEN"):
                export_partial(opened)
            opened.seal()
            partial = export_partial(opened)
            assert export_partial(opened) == partial
            one = b"".join(partial)
            receipt = add_partial(root, f"leaf {leaf}", one, submission_id="s")
            assert not receipt.duplicate
            assert add_partial(root, f"leaf {leaf}", partial, submission_id="s", resumable=True).duplicate
    assert root.refresh().num_submissions == 12
    assert digest(root.finish()) == expected


def test_canonical_sums_have_no_partial(client):
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=9)])
    opened = client.create_round(spec)
    opened.submit("a", ([1], [1.0]))
    opened.seal()
    with pytest.raises(sa.errors.FailedPreconditionError, match=r"'v' sums floats.*export its submissions"):
        export_partial(opened)
    with pytest.raises(sa.errors.FailedPreconditionError, match="export its submissions, or sum with binned numerics"):
        list(sa.Aggregator(spec).export_partial())
    with pytest.raises(sa.errors.InvalidArgumentError, match="accept_partials: tensor 'v' sums floats"):
        client.create_round(dataclasses.replace(spec, accept_partials=True))
    keeps = client.create_round(dataclasses.replace(SPECS["integers"], keep_submissions=True))
    keeps.seal()
    with pytest.raises(sa.errors.FailedPreconditionError, match="keeps its submissions"):
        export_partial(keeps)


def test_bad_partials_are_refused_by_name(client):
    spec = SPECS["mean"]
    source = sa.Aggregator(spec)
    for each, update in updates_of(spec, 3, 1).items():
        source.add(each, *update)
    blocks = list(source.export_partial())
    good = b"".join(blocks)
    head = struct.Struct("<4sHHQ4B3I6Q")

    def with_field(index: int, value: object) -> bytes:
        fields = list(head.unpack_from(good))
        fields[index] = value
        return head.pack(*fields) + good[head.size :]

    bad = {
        good[:-1]: "cut off",
        blocks[0]: "has no block of tensor 'w'",
        good[:50]: "cut off|does not begin with a head",
        b"x" + good[1:]: "does not begin with",
        with_field(1, 1): "version is 1; version 2 is known",
        with_field(4, 2): "the fold is 2, and the aggregation has 8",
        with_field(7, 1): "the dtype is 1",
        with_field(8, 4): "values a row is 4",
        with_field(9, 1): "the reserved field is 1",
        with_field(12, 1 << 20): "number of submissions is 1048576, beyond 1048575",
        with_field(12, 4): "it is of 3 submissions, the blocks before of 4",
        with_field(15, 1): "keys begin at 1, where 0 is expected",
        good + blocks[0]: "keys begin at",
        good[:80] + b"x" + good[81:]: "no tensor 'x'",
    }
    root = client.create_round(dataclasses.replace(spec, accept_partials=True))
    for data, reason in bad.items():
        with pytest.raises(sa.errors.InvalidArgumentError, match=reason):
            sa.Aggregator(spec).add_partial("leaf", data)
        with pytest.raises(sa.errors.InvalidArgumentError, match=f"{reason}|cut off|unknown tensor"):
            add_partial(root, "leaf", data)
    closed = client.create_round(spec)
    with pytest.raises(sa.errors.FailedPreconditionError, match="the round takes no partials"):
        add_partial(closed, "leaf", good)
    add_partial(root, "leaf", good)
    big = sa.Aggregator(spec)
    for each, update in updates_of(spec, 62, 2).items():
        big.add(each, *update)
    with pytest.raises(sa.errors.ResourceExhaustedError, match="3 of max_submissions 64"):
        add_partial(root, "big", big.export_partial())
    assert root.refresh().num_submissions == 3


def test_partial_of_integers_has_at_most_what_its_submissions_can_make(client):
    spec = sa.RoundSpec([sa.TensorSpec("v", "int64", num_rows=0)], accept_partials=True)
    source = sa.Aggregator(dataclasses.replace(spec, accept_partials=False))
    source.add("a", {"v": ([5], [2**63 - 1])})
    good = b"".join(source.export_partial())
    at = good.index((2**63 - 1).to_bytes(16, "little"))
    for value in (2**63 - 1, -(2**63), 2**63, -(2**63) - 1):
        data = good[:at] + value.to_bytes(16, "little", signed=True) + good[at + 16 :]
        root = client.create_round(spec)
        if -(2**63) <= value < 2**63:
            add_partial(root, "leaf", data)
            assert root.finish()["v"].values.tolist() == [value]
        else:
            with pytest.raises(sa.InvalidArgumentError, match="value 0 of row 0 is larger than 1 submissions can make"):
                add_partial(root, "leaf", data)


def test_partial_survives_a_restart(start_server, tmp_path):
    spec = dataclasses.replace(SPECS["mean"], accept_partials=True)
    updates = updates_of(spec, 9, 8)
    source = sa.Aggregator(spec)
    for each, update in updates.items():
        source.add(each, *update)
    first = start_server("--data-dir", str(tmp_path / "data"))
    with sa.Client(first.address) as client:
        add_partial(client.create_round(spec, "r"), "leaf", source.export_partial())
    first.kill()
    second = start_server("--data-dir", str(tmp_path / "data"))
    with sa.Client(second.address) as client:
        opened = client.get_round("r")
        assert opened.info.num_submissions == 9
        assert digest(opened.finish()) == digest(sa.aggregate(updates, spec))


# ---- the submissions of a sealed round of a server, and merges of them


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
            partials = list(stub.ExportPartial(pb.ExportPartialRequest(round=name, tensor="sums")))
            exported = list(stub.ExportSubmissions(pb.ExportSubmissionsRequest(round=name, tensor="rows")))
            opened.start_merge()
            opened.wait()
            results = list(stub.StreamResult(pb.StreamResultRequest(round=name)))
            assert stub.GetResult(pb.GetResultRequest(round=name, tensor="rows")).next_page_token
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
