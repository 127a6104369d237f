"""Certificates of a cluster's rounds: they state what one server does."""

from __future__ import annotations

import numpy as np
import pytest
import sparseagg as sa
from signing import key_pair, rsa_key
from sparseagg.cluster import Cluster
from sparseagg.cluster.exchange import leaves

SPEC = sa.RoundSpec(
    [
        sa.TensorSpec("emb", "float32", shape=(1000, 4)),
        sa.TensorSpec("bias", "float64", num_rows=7, layout="dense"),
        sa.TensorSpec("hashed", "int64", num_rows=0, op="sum", weighting="uniform"),
    ],
    op="mean",
    weighting="by_weight",
    certificate=True,
)
CLIENTS = [f"client-{i}" for i in range(23)]
TIMES = ("createTime", "closeTime")


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    """The file of a private key; that of its public key has the suffix .pub."""
    return key_pair(tmp_path_factory.mktemp("keys"))[0]


def _submit_all(rnd):
    rng = np.random.default_rng(11)
    for name in CLIENTS:
        n = int(rng.integers(0, 200))
        update = {
            "emb": (rng.integers(0, 1000, n).astype(np.uint32), rng.standard_normal((n, 4)).astype(np.float32)),
            "bias": rng.standard_normal(7),
            "hashed": (rng.integers(0, 1 << 63, 5).astype(np.uint64), rng.integers(-9, 9, 5)),
        }
        rnd.submit(name, update, weight=float(rng.random()), submission_id=f"of {name}")
    assert rnd.withdraw("client-5")


def _on_cluster(key, servers):
    options = ["--certificate-key", str(key)]
    with (
        Cluster(servers, ranges=2, server_options=options, certificate_key=key) as cluster,
        cluster.create_round(SPEC, "r") as rnd,
    ):
        _submit_all(rnd)
        early = sa.certificates.receipt(rnd, "client-3")
        assert early.leaf_index is None
        rnd.finish()
        return rnd.certificate(), sa.certificates.receipt(rnd, "client-3"), early


def _statement(certificate):
    """What is stated, without times, engine and homes."""
    statement = certificate.statement
    for name in (*TIMES, "engine", "homes"):
        statement["predicate"].pop(name, None)
    return statement


def test_same_statement_on_one_two_and_four_servers(key):
    trusted = key.with_suffix(".pub").read_bytes()
    with sa.Server(options=["--certificate-key", str(key)]) as server, sa.Client(server.address) as client:
        rnd = client.create_round(SPEC, "r")
        _submit_all(rnd)
        rnd.finish()
        alone = _statement(rnd.certificate())
    assert alone["predicate"]["numSubmissions"] == len(CLIENTS) - 1
    assert len(alone["predicate"]["withdrawnSha256"]) == 1
    for servers in (1, 2, 4):
        certificate, receipt, _ = _on_cluster(key, servers)
        assert _statement(certificate) == alone, f"{servers} servers"
        lines = sa.certificates.verify(certificate, trusted, receipt=receipt)
        assert "counts, as leaf" in lines[-1]


def test_certificate_of_a_closed_round(key):
    """``close`` leaves the result on the servers: whoever has the key certifies it, in another process too."""
    trusted = key.with_suffix(".pub").read_bytes()
    options = {"server_options": ["--certificate-key", str(key)], "certificate_key": key}
    with Cluster(2, ranges=3, **options) as cluster, cluster.create_round(SPEC, "r") as rnd:
        _submit_all(rnd)
        missing = pytest.raises(sa.errors.FailedPreconditionError, match=r"finish\(\) or start_merge\(\) makes it")
        with missing:
            rnd.certificate()
        rnd.start_merge()
        closed = rnd.certificate()
        assert (
            "counts, as leaf"
            in sa.certificates.verify(closed, trusted, receipt=sa.certificates.receipt(rnd, "client-3"))[-1]
        )
        with Cluster(cluster.addresses, certificate_key=key) as other:
            again = other.resume("r").certificate()
        assert again.statement == closed.statement
        rnd.finish()
        assert _statement(rnd.certificate()) == _statement(closed)
        with cluster.create_round(SPEC, "some") as some:
            _submit_all(some)
            some.start_merge(only=CLIENTS[:3])
            with missing:
                some.certificate()


def test_no_certificate_before_the_end_or_without_a_key(key):
    options = ["--certificate-key", str(key)]
    with Cluster(1, server_options=options) as cluster, cluster.create_round(SPEC) as rnd:
        _submit_all(rnd)
        rnd.finish()
        with pytest.raises(
            sa.errors.FailedPreconditionError,
            match="if all clients count, the spec asks for one, and the cluster has a",
        ):
            rnd.certificate()


def test_wrong_key_files_are_named(key, tmp_path):
    options = ["--certificate-key", str(key)]
    wrong = tmp_path / "wrong.key"
    for content, mode, text in (
        (b"no key", 0o600, "has no private key in PEM"),
        (rsa_key(tmp_path).read_bytes(), 0o600, "is not of Ed25519"),
        (key.read_bytes(), 0o666, "has the mode 666: everybody may replace the secret"),
    ):
        wrong.write_bytes(content)
        wrong.chmod(mode)
        with (
            Cluster(1, server_options=options, certificate_key=wrong) as cluster,
            cluster.create_round(SPEC) as rnd,
        ):
            _submit_all(rnd)
            with pytest.raises(sa.InvalidArgumentError, match=f"wrong.key.*{text}"):
                rnd.finish()


def test_many_leaves_are_read_in_pages(key):
    spec = sa.RoundSpec([sa.TensorSpec("t", "float32", num_rows=50)], certificate=True)
    with sa.Server(options=["--certificate-key", str(key)]) as server, sa.Client(server.address) as client:
        rnd = client.create_round(spec)
        ids = [f"c{i:05}" for i in range(5000)]
        rnd.submit_batch(
            ids, {"t": (np.arange(5001), np.arange(5000, dtype=np.uint32) % 50, np.ones(5000, np.float32))}
        )
        assert list(leaves(rnd).counted) == ids
