"""Certificates in all ways of submitting, over HTTP, with credentials, and after a rotation of the key."""

from __future__ import annotations

import base64
import dataclasses
import json
import pathlib
import shutil

import numpy as np
import pytest
import sparseagg as sa
from guarded_server import make_token
from http_calls import request
from signing import key_pair
from sparseagg import errors
from sparseagg._internal.certificates.bundle import _read_chunks
from sparseagg._internal.certificates.statement import decode_cbor
from sparseagg._internal.commands.cli import main
from sparseagg._internal.wire.encode import varint
from sparseagg.cluster.exchange import leaves


@pytest.fixture
def certificate_key(tmp_path):
    private, public = key_pair(tmp_path)
    return private, public.read_bytes()


def test_large_export_comes_in_pages(start_server, certificate_key, tmp_path):
    """Pages that end within submissions; chunks of 128 KiB, which the store keeps in files, and small ones."""
    private, public = certificate_key
    rng = np.random.default_rng(2)
    flags = ["--certificate-key", str(private), "--data-dir", str(tmp_path / "data"), "--max-page-bytes", "65536"]
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=1 << 20)], certificate=True, allow_export=True)
    with sa.Client(start_server(*flags).address, chunk_bytes=1 << 17) as client:
        rnd = client.create_round(spec)
        for number, count in enumerate((100_000, 10, 0, 50_000, 1)):
            keys = np.sort(rng.choice(1 << 20, count, replace=False)).astype(np.uint32)
            rnd.submit(f"c{number}", {"v": (keys, rng.random(count, np.float32))}, key_encoding="plain")
        rnd.finish()
        sa.certificates.export_bundle(rnd, tmp_path / "bundle")
        certificate = rnd.certificate()
    lines = sa.certificates.verify(certificate, public, bundle=tmp_path / "bundle")
    assert "5 submissions" in lines[1]
    # The chunks of the first client in another order.
    path = tmp_path / "bundle" / "submissions.pb"
    chunks = list(_read_chunks(path))
    assert [chunk.client_id for chunk in chunks[:2]] == ["c0", "c0"]
    data = [chunk.SerializeToString() for chunk in (chunks[1], chunks[0], *chunks[2:])]
    path.write_bytes(b"".join(varint(len(each)) + each for each in data))
    with pytest.raises(sa.certificates.VerificationError, match="chunk 0 of client 'c0' cannot be read: it is chunk 1"):
        sa.certificates.verify(certificate, public, bundle=tmp_path / "bundle")


def test_key_is_rotated_without_a_restart(start_server, certificate_key, tmp_path):
    private, public = certificate_key
    other, other_file = key_pair(tmp_path, "other")
    other_public = other_file.read_bytes()
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=3)], certificate=True)
    server = start_server("--certificate-key", str(private))
    with sa.Client(server.address) as client:
        first, second = client.create_round(spec), client.create_round(spec)
        for rnd in (first, second):
            rnd.submit("c", {"v": ([1], [1.0])})
        first.finish()
        before, promise = first.certificate(), sa.certificates.receipt(second, "c")
        shutil.copy(other, tmp_path / "next")
        (tmp_path / "next").replace(private)
        key_id = json.loads(before.envelope)["signatures"][0]["keyid"]
        server.wait_until(
            lambda: json.loads(sa.certificates.receipt(second, "c").promise)["signatures"][0]["keyid"] != key_id
        )
        second.finish()
        assert first.certificate() == before
        sa.certificates.verify(before, public)
        with pytest.raises(sa.certificates.VerificationError, match="not among the 1 trusted keys"):
            sa.certificates.verify(second.certificate(), public)
        sa.certificates.verify(second.certificate(), other_public, receipt=sa.certificates.receipt(second, "c"))
        # A promise under the earlier key is verified with both keys.
        proof = sa.certificates.receipt(second, "c")
        old = dataclasses.replace(proof, promise=promise.promise)
        sa.certificates.verify(second.certificate(), public + other_public, receipt=old)
        private.write_text("no key")  # the key stays
        log = tmp_path / "server-0.log"
        server.wait_until(lambda: "certificate_key_not_reloaded" in log.read_text())
        third = client.create_round(spec)
        third.finish()
        sa.certificates.verify(third.certificate(), other_public)


def test_clients_get_their_own_receipt_and_no_export(start_server, certificate_key, tmp_path):
    table = tmp_path / "tokens"
    tokens = {role: make_token(table, role) for role in ("coordinator", "observer")}
    tokens["client"] = make_token(table, "client", "--name", "alice")
    private, public = certificate_key
    flags = ["--certificate-key", str(private), "--data-dir", str(tmp_path / "data"), "--tokens-file", str(table)]
    address = start_server(*flags).address
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=3)], certificate=True, allow_export=True)
    clients = {role: sa.Client(address, token=token, insecure_token=True) for role, token in tokens.items()}
    rounds = {}
    rounds["coordinator"] = clients["coordinator"].create_round(spec, "r")
    for role in ("client", "observer"):
        rounds[role] = clients[role].get_round("r")
    rounds["client"].submit("", {"v": ([1], [1.0])})
    rounds["coordinator"].submit("bob", {"v": ([1], [1.0])})
    rounds["coordinator"].finish()
    certificate = rounds["observer"].certificate()
    assert certificate == rounds["client"].certificate()
    sa.certificates.verify(certificate, public, receipt=sa.certificates.receipt(rounds["client"], ""))
    assert sa.certificates.receipt(rounds["coordinator"], "bob").leaf_index == 1
    for call in (
        lambda: sa.certificates.receipt(rounds["client"], "bob"),
        lambda: sa.certificates.receipt(rounds["observer"], "bob"),
    ):
        with pytest.raises(sa.errors.PermissionDeniedError):
            call()
    for role in ("client", "observer"):
        with pytest.raises(sa.errors.PermissionDeniedError, match="may not call ExportRound"):
            sa.certificates.export_bundle(rounds[role], tmp_path / role)
        with pytest.raises(
            sa.errors.PermissionDeniedError, match=r"may not call ListSubmissions|observers may not read"
        ):
            leaves(rounds[role])
    assert list(leaves(rounds["coordinator"]).counted) == ["alice", "bob"]
    sa.certificates.export_bundle(rounds["coordinator"], tmp_path / "bundle")
    for client in clients.values():
        client.close()


def test_files_of_the_http_gateway_are_verified(start_server, certificate_key, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    private, public = certificate_key
    server = start_server("--certificate-key", str(private), "--http-address", "127.0.0.1:0")
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=3)], certificate=True)
    with sa.Client(server.address) as client:
        rnd = client.create_round(spec, "r")
        rnd.submit("c", {"v": ([1], [1.0])})
        rnd.finish()
        envelope = rnd.certificate().envelope
    for path, name in (("certificate", "cert.json"), ("receipt?client_id=c", "receipt.json")):
        pathlib.Path(name).write_bytes(request(server.http_address, "GET", f"/v1/rounds/r/{path}").body)
    assert base64.b64decode(json.loads(pathlib.Path("cert.json").read_text())["envelope"]) == envelope
    pathlib.Path("key.pub").write_bytes(public)
    assert main(["verify", "cert.json", "--key", "key.pub", "--receipt", "receipt.json"]) == 0
    assert capsys.readouterr().out.count("ok: ") == 2
    receipt = json.loads(pathlib.Path("receipt.json").read_text())
    for wrong, error in (("{", "receipt.json: "), (json.dumps({**receipt, "clientId": "b"}), "it names client 'b'")):
        pathlib.Path("receipt.json").write_text(wrong)
        assert main(["verify", "cert.json", "--key", "key.pub", "--receipt", "receipt.json"]) == 1
        assert error in capsys.readouterr().err
    refused = request(server.http_address, "GET", "/v1/rounds/r/export")
    assert (refused.status, "allow_export" in refused.json["detail"]) == (400, True)


# ---- certificates, receipts and bundles of versions of a stream


TENSOR = sa.TensorSpec("v", "float32", num_rows=100, row_width=2)


@pytest.fixture
def keys(tmp_path):
    return key_pair(tmp_path)


@pytest.fixture
def client(start_server, keys, tmp_path):
    server = start_server("--certificate-key", str(keys[0]), "--data-dir", str(tmp_path / "data"))
    with sa.Client(server.address) as client:
        yield client


def fill(client, **options):
    """A stream with two versions of 6 commits each by 4 clients; in the second one, their base versions differ."""
    spec = sa.RoundSpec([TENSOR], op="mean", certificate=True, allow_export=True, **options)
    stream = client.create_stream(spec, buffer=6, staleness=sa.staleness.polynomial(0.5), max_staleness=3)
    rng = np.random.default_rng(3)
    for number in range(12):
        keys = np.sort(rng.choice(100, 30, replace=False))
        base = 0 if number < 6 else number % 2
        weight = 1.0 + number / 7 if "weighting" in options else None
        update = {"v": (keys, rng.random((30, 2), np.float32))}
        stream.submit(f"c{number % 4}", update, weight, base_version=base, submission_id=f"s{number}")
    return stream


def test_receipts_of_versions_name_the_commit_and_its_base_version(client, keys):
    stream = fill(client)
    version = stream.round(2)
    certificate = version.certificate()
    listed = version.submissions()
    assert [each.client_id for each in listed] == ["c0", "c1", "c2", "c2", "c3", "c3"]
    salts = set()
    for place, each in enumerate(listed):
        receipt = sa.certificates.receipt(version, each.client_id, each.submission_id)
        assert (receipt.client_id, receipt.leaf_index) == (each.client_id, place)
        salt, client_id, submission_id, weight, base_version, content = decode_cbor(receipt.leaf)
        assert client_id == f"{each.client_id}\0{each.stream.position:016x}"
        assert (submission_id, weight, base_version) == (each.submission_id, 1.0, each.stream.base_version)
        assert content[:2] == ["v", 30]
        salts.add(salt)
        [_, line] = sa.certificates.verify(certificate, keys[1].read_bytes(), receipt=receipt)
        assert f"of client '{each.client_id}', computed from version {base_version}, counts" in line
    assert len(salts) == len(listed)
    assert sa.certificates.receipt(version, "c0").leaf == sa.certificates.receipt(version, "c0", "s8").leaf
    with pytest.raises(errors.FailedPreconditionError, match="client 'c2' has several commits in the version"):
        sa.certificates.receipt(version, "c2")
    for client_id, submission_id in (("c2", "s0"), ("c", ""), ("c9", "")):
        with pytest.raises(errors.NotFoundError, match=f"client '{client_id}' has no submission"):
            sa.certificates.receipt(version, client_id, submission_id)


def test_promises_of_a_version_that_is_being_filled(client, keys):
    stream = fill(client, mean_divisor="submissions")
    update = {"v": ([3], np.ones((1, 2), np.float32))}
    stream.submit("late", update, base_version=1, submission_id="x")
    promise = sa.certificates.receipt(stream.round(3), "late", "x")
    assert promise.leaf_index is None
    assert stream.withdraw("late", "x")
    with pytest.raises(errors.NotFoundError, match="client 'late' has no submission 'x' that counts"):
        sa.certificates.receipt(stream.round(3), "late", "x")
    stream.submit("other", update, base_version=1)
    stream.cut()
    with pytest.raises(sa.certificates.VerificationError, match="client 'late' was withdrawn, says the certificate"):
        sa.certificates.verify(stream.round(3).certificate(), keys[1].read_bytes(), receipt=promise)
