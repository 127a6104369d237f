"""Certificates, receipts and bundles of versions of a stream."""

from __future__ import annotations

import numpy as np
import pytest
import sparseagg as sa
from signing import key_pair
from sparseagg import errors
from sparseagg._internal.certificates.statement import decode_cbor

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
