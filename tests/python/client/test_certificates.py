"""Certificates of rounds on a server: what they state, whom they convince, and what is refused."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import tracemalloc

import numpy as np
import pytest
import sparseagg as sa
from signing import key_pair, rsa_key
from sparseagg._internal.certificates.bundle import _read_chunks
from sparseagg._internal.certificates.statement import content_digest, decode_cbor, encode_cbor
from sparseagg._internal.wire.columns import decode_keys
from sparseagg._internal.wire.encode import varint
from sparseagg.v1 import aggregation_pb2 as pb

SPEC = sa.RoundSpec(
    [
        sa.TensorSpec("emb", "float32", shape=(1000, 4)),
        sa.TensorSpec("bias", "bfloat16", num_rows=7, layout="dense"),
        sa.TensorSpec("hashed", "int64", num_rows=0, op="sum", weighting="uniform"),
        sa.TensorSpec("seen", "float32", num_rows=50, op="union", weighting="uniform"),
    ],
    op="mean",
    weighting="by_weight",
    return_counts=True,
    certificate=True,
    allow_export=True,
)


def _update(rng):
    n = int(rng.integers(0, 300))
    return {
        "emb": (rng.integers(0, 1000, n).astype(np.uint32), rng.standard_normal((n, 4)).astype(np.float32)),
        "bias": rng.integers(0, 1 << 14, 7).astype(np.uint16),  # bits of finite values
        "hashed": (rng.integers(0, 1 << 63, 5).astype(np.uint64), rng.integers(-9, 9, 5)),
        "seen": (rng.integers(0, 50, 9).astype(np.uint32), None),
    }


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    for name in ("certificate", "other"):
        key_pair(folder, name)
    return folder


@pytest.fixture
def certifying(start_server, keys, tmp_path):
    def start():
        return start_server("--certificate-key", str(keys / "certificate.key"), "--data-dir", str(tmp_path / "data"))

    return start


@pytest.fixture(params=["canonical", "binned"])
def certified(certifying, keys, tmp_path, request):
    """A round of five clients, exported, with the receipts of all."""
    rng = np.random.default_rng(7)
    spec = SPEC.with_options(numerics=request.param)
    with sa.Client(certifying().address) as client:
        rnd = client.create_round(spec, "r1")
        assert rnd.spec == spec
        for name in ("b", "ä", "a", "10", "9"):
            rnd.submit(name, _update(rng), weight=float(rng.random()))
        promise = sa.certificates.receipt(rnd, "a")
        assert promise.leaf_index is None
        rnd.finish()
        sa.certificates.export_bundle(rnd, tmp_path / "bundle")
        receipts = {name: sa.certificates.receipt(rnd, name) for name in ("10", "9", "a", "b", "ä")}
        assert [receipt.leaf_index for receipt in receipts.values()] == [0, 1, 2, 3, 4]
        assert receipts["a"].promise == promise.promise
        yield rnd.certificate(), (keys / "certificate.pub").read_bytes(), receipts, tmp_path / "bundle"


def _independent_root(leaves):
    """RFC 9162, 2.1.1, as it is written there: recursion with the largest power of two below n."""
    if not leaves:
        return hashlib.sha256().digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\x00" + leaves[0]).digest()
    k = 1 << ((len(leaves) - 1).bit_length() - 1)
    return hashlib.sha256(b"\x01" + _independent_root(leaves[:k]) + _independent_root(leaves[k:])).digest()


def test_certificate_convinces_with_all_receipts_and_the_bundle(certified):
    certificate, pem, receipts, bundle = certified
    for receipt in receipts.values():
        assert sa.types.SubmissionReceipt.from_json(receipt.to_json()) == receipt
        fields = {"round", "clientId", "leaf", "promise", "leafIndex", "treeSize", "path"}  # of docs/certificates.md
        assert set(json.loads(receipt.to_json())) == fields
        lines = sa.certificates.verify(certificate, pem, receipt=receipt)
        assert "counts, as leaf" in lines[1]
    lines = sa.certificates.verify(certificate, pem, receipt=receipts["a"], bundle=bundle)
    assert [line.partition(":")[0] for line in lines] == ["certificate of rounds/r1", "receipt", "bundle", "bundle"]
    assert "computed again" in lines[-1]
    statement = certificate.statement
    assert statement["predicate"]["state"] == "DONE"
    assert statement["predicate"]["numSubmissions"] == 5
    leaves = [receipt.leaf for receipt in receipts.values()]
    assert statement["subject"][0]["digest"]["sha256"] == _independent_root(leaves).hex()
    assert [decode_cbor(leaf)[1] for leaf in leaves] == ["10", "9", "a", "b", "ä"]


def test_leaf_is_the_clients_own_digest(certifying, keys):
    """Recomputed here with hashlib alone, from what the client has sent."""
    update = {"emb": (np.arange(300_000, dtype=np.uint32) % 1000, np.ones((300_000, 4), np.float32))}
    with sa.Client(certifying().address, chunk_bytes=1 << 16) as client:
        rnd = client.create_round(sa.RoundSpec([SPEC.tensors[0]], certificate=True))
        sent = rnd.submit("c", update)
        leaf = decode_cbor(sa.certificates.receipt(rnd, "c").leaf)
        weighted = client.create_round(SPEC)
        # Of half, single and double precision in deterministic CBOR, which decode_cbor takes alone.
        for weight in (0.0, 5.960464477539063e-8, 0.00006103515625, 65504.0, 100000.0, 3.4028234663852886e38, 1.1):
            weighted.submit(f"of {weight}", _update(np.random.default_rng(7)), weight=weight)
            assert decode_cbor(sa.certificates.receipt(weighted, f"of {weight}").leaf)[3] == weight
    mib = 1 << 20
    digests = b""
    for data in (update["emb"][0].astype("<u8").tobytes(), update["emb"][1].astype("<f4").tobytes()):
        digests += b"".join(hashlib.sha256(data[at : at + mib]).digest() for at in range(0, len(data), mib))
    assert leaf[1:] == ["c", sent.submission_id, 1.0, None, ["emb", 300_000, hashlib.sha256(digests).digest()]]


def test_securesystemslib_verifies_the_envelope(certified):
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import SSlibKey

    certificate, pem, _, _ = certified
    message = json.loads(certificate.envelope)
    key_id = message["signatures"][0]["keyid"]
    key = SSlibKey.from_crypto(load_pem_public_key(pem), key_id)
    envelope = Envelope.from_dict(message)
    assert list(envelope.verify([key], 1)) == [key_id]
    assert json.loads(envelope.payload) == certificate.statement


def _refused(match, *args, **kwargs):
    with pytest.raises(sa.certificates.VerificationError, match=match):
        sa.certificates.verify(*args, **kwargs)


def test_each_flipped_byte_of_a_certificate_is_refused(certified):
    certificate, pem, _, _ = certified

    def flipped(text, at):
        changed = bytearray(base64.b64decode(text))
        changed[at] ^= 1
        return base64.b64encode(changed).decode()

    message = json.loads(certificate.envelope)
    signature = message["signatures"][0]
    for at in range(len(base64.b64decode(message["payload"]))):
        changed = {**message, "payload": flipped(message["payload"], at)}
        _refused("certificate: the signature does not fit", json.dumps(changed).encode(), pem)
    for at in range(64):
        changed = {**message, "signatures": [{**signature, "sig": flipped(signature["sig"], at)}]}
        _refused("certificate: the signature does not fit", json.dumps(changed).encode(), pem)
    _refused("certificate is no JSON", certificate.envelope[:-1], pem)
    _refused("certificate: it is no DSSE envelope", b"{}", pem)


def test_certificate_of_another_key_is_refused(certified, keys):
    certificate, pem, _, _ = certified
    other = (keys / "other.pub").read_bytes()
    _refused("not among the 1 trusted keys", certificate, other)
    assert sa.certificates.verify(certificate, other + pem)
    with pytest.raises(sa.InvalidArgumentError, match="no public key"):
        sa.certificates.verify(certificate, b"")


def test_changed_receipts_are_refused(certified):
    certificate, pem, receipts, _ = certified
    good = receipts["a"]

    def refused(match, **changes):
        _refused(match, certificate, pem, receipt=dataclasses.replace(good, **changes))

    leaf = bytearray(good.leaf)
    leaf[-1] ^= 1
    refused("the promise is for another leaf", leaf=bytes(leaf))
    refused("it names client 'b'", client_id="b")
    refused("it names 'rounds/r2', and its promise 'rounds/r1'", round="rounds/r2")
    refused("no proof of inclusion", leaf_index=None)
    refused("gives another root", leaf_index=1)
    refused("its tree has 6 leaves", tree_size=6)
    refused("gives another root", path=good.path[:-1])
    refused("gives another root", path=(*good.path, bytes(32)))
    refused("gives another root", path=(bytes(32), *good.path[1:]))
    refused("the promise is for another leaf", promise=receipts["b"].promise)
    refused("receipt: the envelope has the type", promise=certificate.envelope)


def _chunks(bundle):
    return list(_read_chunks(bundle / "submissions.pb"))


def _with_chunks(bundle, folder, chunks):
    shutil.copytree(bundle, folder)
    data = [chunk.SerializeToString() for chunk in chunks]
    (folder / "submissions.pb").write_bytes(b"".join(varint(len(each)) + each for each in data))
    return folder


def test_changed_bundles_are_refused(certified, tmp_path):
    certificate, pem, _, bundle = certified
    chunks = _chunks(bundle)
    assert [chunk.client_id for chunk in chunks] == ["10", "9", "a", "b", "ä"]
    folders = (tmp_path / f"changed{number}" for number in range(100))

    def refused(match, changed):
        _refused(match, certificate, pem, bundle=_with_chunks(bundle, next(folders), changed))

    refused("has 4 submissions, the certificate 5", chunks[1:])
    refused("client '9' has two submissions", [*chunks[:2], *chunks[1:]])
    refused("not in fold order: '9' comes after 'a'", [chunks[0], chunks[2], chunks[1], *chunks[3:]])

    def edited(**changes):
        copies = [pb.ExportedChunk.FromString(chunk.SerializeToString()) for chunk in chunks]
        for name, value in changes.items():
            setattr(copies[2], name, value)
        return copies

    refused("client_weights of the close", edited(client_weight=2.0))
    refused("the submission id of client 'a'", edited(submission_id="x"))
    refused("the leaf of client 'a' is malformed", edited(leaf=b"\xff"))
    refused("chunks of client 'a' are missing", edited(last=False))
    update = pb.UpdateChunk.FromString(chunks[2].chunk)
    update.weight += 1.0
    refused("the weight of client 'a'", edited(chunk=update.SerializeToString()))
    update = pb.UpdateChunk.FromString(chunks[2].chunk)
    for piece in update.slices:
        before = piece.values if piece.tensor != "seen" else piece.keys
        changed = bytearray(before)
        changed[-1] ^= 1
        setattr(piece, "values" if piece.tensor != "seen" else "keys", bytes(changed))
        refused(f"the content of tensor '{piece.tensor}' of client 'a'", edited(chunk=update.SerializeToString()))
        setattr(piece, "values" if piece.tensor != "seen" else "keys", before)
    # A consistent exchange of content and leaf: only the tree shows it.
    other = edited()
    leaf = decode_cbor(chunks[2].leaf)
    update = pb.UpdateChunk.FromString(chunks[2].chunk)
    update.weight = leaf[3] = 0.5
    other[2].chunk, other[2].leaf = update.SerializeToString(), encode_cbor(leaf)
    refused("has another root than the certificate's", other)

    cut = _with_chunks(bundle, next(folders), chunks)
    (cut / "submissions.pb").write_bytes((bundle / "submissions.pb").read_bytes()[:-1])
    _refused("ends within the chunk at byte", certificate, pem, bundle=cut)


def test_exchanged_result_is_refused(certified, tmp_path):
    certificate, pem, _, bundle = certified
    changed = tmp_path / "changed"
    shutil.copytree(bundle, changed)
    with np.load(bundle / "result.npz") as file:
        arrays = dict(file)
    arrays["emb.values"].view(np.uint32)[0, 0] ^= 1
    np.savez(changed / "result.npz", **arrays)
    _refused("stored result is not the certified one: array 'emb.values' differs", certificate, pem, bundle=changed)
    arrays["emb.values"].view(np.uint32)[0, 0] ^= 1
    arrays["emb.values"] = arrays["emb.values"].reshape(-1, 2)
    np.savez(changed / "result.npz", **arrays)
    _refused("stored result is not the certified one: array 'emb.values' differs", certificate, pem, bundle=changed)
    (changed / "result.npz").write_bytes(b"PK\3\4")
    _refused("result.npz cannot be read", certificate, pem, bundle=changed)


def _signed(statement, keys):
    """A certificate with another statement, by the server's own key: of a server that lies."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

    key = load_pem_private_key((keys / "certificate.key").read_bytes(), None)
    payload = json.dumps(statement).encode()
    kind = "application/vnd.in-toto+json"
    signature = key.sign(b"DSSEv1 %d %b %d %b" % (len(kind), kind.encode(), len(payload), payload))
    key_id = hashlib.sha256(key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)).hexdigest()
    return json.dumps(
        {
            "payloadType": kind,
            "payload": base64.b64encode(payload).decode(),
            "signatures": [{"keyid": key_id, "sig": base64.b64encode(signature).decode()}],
        }
    ).encode()


def test_lies_of_the_server_are_found(certified, keys, tmp_path):
    certificate, pem, receipts, bundle = certified
    assert sa.certificates.verify(_signed(certificate.statement, keys), pem)

    def lie(change):
        statement = certificate.statement
        change(statement)
        return _signed(statement, keys)

    def bundle_with(envelope, name):
        shutil.copytree(bundle, tmp_path / name)
        (tmp_path / name / "certificate.json").write_bytes(envelope)
        return tmp_path / name

    def other_result(statement):
        statement["subject"][1]["digest"]["sha256"] = "0" * 64

    envelope = lie(other_result)
    _refused("result of tensor 'emb', computed again", envelope, pem, bundle=bundle_with(envelope, "result"))
    _refused("another certificate than the one", envelope, pem, bundle=bundle)

    envelope = lie(lambda statement: statement["predicate"].update(version="0.0.0"))
    folder = bundle_with(envelope, "version")
    _refused("the certificate is of version 0.0.0", envelope, pem, bundle=folder)
    assert sa.certificates.verify(envelope, pem, bundle=folder, any_version=True)

    envelope = lie(lambda statement: statement["predicate"].update(createTime="2020-01-01T00:00:00.000000000Z"))
    _refused("receipt: it is of another round: createTime", envelope, pem, receipt=receipts["a"])
    _refused("specSha256", lie(lambda statement: statement["predicate"].update(specSha256="0" * 64)), pem)
    _refused("the statement is malformed", lie(lambda statement: statement["subject"].pop(0)), pem)
    _refused("no in-toto statement", lie(lambda statement: statement.update(_type="x")), pem)


def _certified_again(bundle, folder, keys, *, edit=None, change=None):
    """A bundle with other submissions or another statement, as a server would certify that, with its certificate.

    edit(number, update, leaf): changes an ``UpdateChunk`` and the fields of its leaf. change(statement).
    """
    chunks = _chunks(bundle)
    for number, chunk in enumerate(chunks):
        update, leaf = pb.UpdateChunk.FromString(chunk.chunk), decode_cbor(chunk.leaf)
        if edit is not None:
            edit(number, update, leaf)
        chunk.client_id, chunk.submission_id = leaf[1], leaf[2]
        chunk.chunk, chunk.leaf = update.SerializeToString(), encode_cbor(leaf)
    folder = _with_chunks(bundle, folder, chunks)
    statement = sa.types.Certificate((bundle / "certificate.json").read_bytes()).statement
    root = _independent_root([chunk.leaf for chunk in chunks])
    statement["subject"][0]["digest"]["sha256"] = root.hex()
    if change is not None:
        change(statement)
    (folder / "certificate.json").write_bytes(_signed(statement, keys))
    return (folder / "certificate.json").read_bytes(), folder


def _set_spec(statement, data):
    predicate = statement["predicate"]
    predicate.update(spec=base64.b64encode(data).decode(), specSha256=hashlib.sha256(data).hexdigest())


def test_statements_that_no_server_makes_are_refused(certified, keys, tmp_path):
    _, pem, _, bundle = certified
    folders = (tmp_path / f"odd{number}" for number in range(100))

    def refused(match, edit=None, change=None):
        envelope, folder = _certified_again(bundle, next(folders), keys, edit=edit, change=change)
        _refused(match, envelope, pem, bundle=folder)

    def other_content(number, update, leaf):
        for piece in update.slices:
            if piece.tensor == "hashed" and number == 2:
                values = np.frombuffer(piece.values, np.int64) + 1
                piece.values = values.tobytes()
                leaf[7][2] = content_digest(decode_keys(piece, piece.keys, np.dtype("u8")), values)

    refused("the result of tensor 'hashed', computed again, has the digest", other_content)

    def position(number, update, leaf):
        leaf[1] = f"a\0{number:016x}"

    refused("has a log position behind client 'a', but no stream's base version", position)

    def some_of_a_stream(number, update, leaf):
        if number == 0:
            update.base_version = leaf[4] = 0

    refused("some of the submissions are of a stream", some_of_a_stream)

    def one_commit_twice(number, update, leaf):
        position(number, update, leaf)
        leaf[2] = "s"
        update.base_version = leaf[4] = 0

    refused("submission .* of client 'a', at log position 0000000000000001, is there twice", one_commit_twice)

    def nan(number, update, leaf):
        for piece in update.slices:
            if piece.tensor == "emb" and number == 2:
                values = np.full(len(piece.values) // 4, np.nan, np.float32)
                piece.values = values.tobytes()
                leaf[5][2] = content_digest(decode_keys(piece, piece.keys, np.dtype("u8")), values)

    refused("cannot be computed again: client 'a': tensor 'emb'", nan)

    def state(**fields):
        return lambda statement: statement["predicate"].update(fields)

    refused("its results are not those of a round that is FAILED", change=state(state="FAILED", stateReason="no"))
    refused("no round is 'OPEN'", change=state(state="OPEN"))
    refused("no round is 'DONE' with the reason 'why'", change=state(stateReason="why"))
    refused("its results are not those", change=lambda statement: statement["subject"].pop())
    refused("statement is malformed", change=state(numSubmissions=True))
    refused("statement is malformed", change=state(clientWeightsSha256=1))
    refused("statement is malformed", change=state(withdrawnSha256=[1]))
    refused("statement is malformed", change=state(homes=[{"round": "rounds/r2"}]))
    refused("the spec is malformed", change=lambda statement: _set_spec(statement, b"\xff"))
    no_dtype = pb.RoundSpec(tensors=[pb.TensorSpec(name="v")]).SerializeToString()
    refused("the spec is malformed", change=lambda statement: _set_spec(statement, no_dtype))


def test_damage_is_answered_with_a_verification_error_only(certified, keys, tmp_path):
    certificate, pem, receipts, bundle = certified
    seed = int.from_bytes(os.urandom(4), "little")
    print("seed", seed)
    rng = np.random.default_rng(seed)

    def damaged(data):
        changed = bytearray(data)
        for _ in range(rng.integers(1, 4)):
            at = int(rng.integers(0, len(changed)))
            kind = rng.integers(0, 3)
            if kind == 0:
                changed[at] = int(rng.integers(0, 256))
            elif kind == 1:
                del changed[at : at + int(rng.integers(1, 9))]
            else:
                changed[at:at] = rng.bytes(int(rng.integers(1, 9)))
            if not changed:
                break
        return bytes(changed)

    copied = shutil.copytree(bundle, tmp_path / "damaged")
    for number in range(200):
        name = ("submissions.pb", "result.npz", "certificate.json")[number % 3]
        (copied / name).write_bytes(damaged((bundle / name).read_bytes()))
        with contextlib.suppress(sa.certificates.VerificationError):
            sa.certificates.verify(certificate, pem, bundle=copied)
        with contextlib.suppress(sa.certificates.VerificationError):
            sa.certificates.replay(copied)
        (copied / name).write_bytes((bundle / name).read_bytes())
    for number in range(200):
        receipt = receipts["a"]
        changes = {"leaf": damaged(receipt.leaf)} if number % 2 else {"promise": damaged(receipt.promise)}
        with contextlib.suppress(sa.certificates.VerificationError):
            sa.certificates.verify(certificate, pem, receipt=dataclasses.replace(receipt, **changes))
        # Whatever a server signs.
        payload = damaged(json.dumps(certificate.statement).encode())
        with contextlib.suppress(ValueError):
            statement = json.loads(payload)
            with contextlib.suppress(sa.certificates.VerificationError):
                sa.certificates.verify(_signed(statement, keys), pem, receipt=receipts["a"], bundle=bundle)


def test_memory_of_an_audit_does_not_grow_with_the_submissions(certifying, keys, tmp_path):
    pem = (keys / "certificate.pub").read_bytes()
    clients, n = 30, 300_000
    spec = sa.RoundSpec(
        [sa.TensorSpec("v", "float32", num_rows=1 << 16)],
        numerics="binned",
        keep_submissions=True,  # which concerns withdrawals, not audits
        certificate=True,
        allow_export=True,
    )
    rng = np.random.default_rng(3)
    with sa.Client(certifying().address) as client:
        rnd = client.create_round(spec)
        for number in range(clients):
            keys_of_it = rng.integers(0, 1 << 16, n).astype(np.uint32)
            rnd.submit(number, {"v": (keys_of_it, rng.standard_normal(n, np.float32))})
        rnd.finish()
        certificate = rnd.certificate()
        sa.certificates.export_bundle(rnd, tmp_path / "bundle")
    tracemalloc.start()
    assert "computed again" in sa.certificates.verify(certificate, pem, bundle=tmp_path / "bundle")[-1]
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Arrays of Python; the engine merges before its own copies of them take 64 MiB.
    assert held < 50 << 20  # of 30 submissions: 72 MB of values and keys of 32 bits, and the file


def test_bundle_that_changes_while_it_is_verified_is_refused(certified, tmp_path, monkeypatch):
    certificate, pem, _, bundle = certified
    chunks = _chunks(bundle)
    changed = [pb.ExportedChunk.FromString(chunk.SerializeToString()) for chunk in chunks]
    update = pb.UpdateChunk.FromString(changed[2].chunk)
    update.slices[0].values = bytes(len(update.slices[0].values))
    changed[2].chunk = update.SerializeToString()
    for number, others in enumerate((changed, chunks[:-1], [*chunks[1:], chunks[0]])):
        folder = shutil.copytree(bundle, tmp_path / f"changing{number}")
        other = _with_chunks(bundle, tmp_path / f"other{number}", others)

        def replay(path, *args, other=other, **kwargs):
            shutil.copyfile(other / "submissions.pb", path / "submissions.pb")
            return sa.certificates.replay(path, *args, **kwargs)

        with monkeypatch.context() as patched:
            patched.setattr("sparseagg._internal.certificates.bundle.replay", replay)
            _refused("submissions.pb was changed while it was read", certificate, pem, bundle=folder)


def test_weights_of_the_close_and_withdrawals(certifying, keys, tmp_path):
    pem = (keys / "certificate.pub").read_bytes()
    spec = sa.RoundSpec([SPEC.tensors[0]], op="mean", certificate=True, allow_export=True)
    rng = np.random.default_rng(5)
    with sa.Client(certifying().address) as client:
        rnd = client.create_round(spec)
        for name in "abcd":
            rnd.submit(name, rng.random((1000, 4)).astype(np.float32))
        promise = sa.certificates.receipt(rnd, "d")
        rnd.withdraw("d")
        with pytest.raises(sa.errors.NotFoundError, match="'d' has no submission that counts"):
            sa.certificates.receipt(rnd, "d")
        rnd.seal()
        rnd.finish(client_weights={"a": 0.5, "b": 3.0, "c": 0.0})
        certificate = rnd.certificate()
        assert certificate.statement["predicate"]["numSubmissions"] == 2
        sa.certificates.export_bundle(rnd, tmp_path / "bundle")
        receipt = sa.certificates.receipt(rnd, "b")
        assert len(sa.certificates.verify(certificate, pem, receipt=receipt, bundle=tmp_path / "bundle")) == 4
        assert len(certificate.statement["predicate"]["withdrawnSha256"]) == 2  # c by its weight, and d
        _refused("client 'd' was withdrawn, says the certificate", certificate, pem, receipt=promise)
        hidden = certificate.statement
        hidden["predicate"]["withdrawnSha256"] = []
        _refused("it has dropped what it had promised", _signed(hidden, keys), pem, receipt=promise)


def test_rounds_that_get_no_certificate(start_server, certifying, keys):
    plain = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=9)])
    asks = sa.RoundSpec(plain.tensors, certificate=True)
    without_key = sa.Client(start_server().address)
    with without_key as client, pytest.raises(sa.errors.FailedPreconditionError, match="--certificate-key"):
        client.create_round(asks)
    with sa.Client(start_server("--certificate-key", str(keys / "certificate.key")).address) as client:
        with pytest.raises(sa.errors.FailedPreconditionError, match="--data-dir"):
            client.create_round(sa.RoundSpec(plain.tensors, certificate=True, allow_export=True))
        with pytest.raises(sa.InvalidArgumentError, match="one-shot"):
            client.aggregate([{"v": ([1], [1.0])}], asks)
        for spec in (plain, asks):
            rnd = client.create_round(spec)
            rnd.submit("c", {"v": ([1], [1.0])})
            with pytest.raises(sa.errors.FailedPreconditionError, match="does not allow an export"):
                sa.certificates.export_bundle(rnd, "/nonexistent")
            if spec is asks:
                rnd.cancel()
                with pytest.raises(sa.errors.FailedPreconditionError, match="CANCELLED and has no certificate"):
                    rnd.certificate()
            else:
                for call in (rnd.certificate, lambda: sa.certificates.receipt(rnd, "c")):  # noqa: B023
                    with pytest.raises(sa.errors.FailedPreconditionError, match="does not ask for one"):
                        call()
    with sa.Client(":memory:") as client, pytest.raises(sa.errors.FailedPreconditionError, match="no certificate"):
        client.create_round(asks)
    with pytest.raises(sa.InvalidArgumentError, match="allow_export is for rounds with a certificate"):
        sa.RoundSpec(plain.tensors, allow_export=True)


def test_bad_key_stops_the_start(start_server, tmp_path):
    with pytest.raises(AssertionError, match=r"--certificate-key: .*rsa.key has no Ed25519 private key"):
        start_server("--certificate-key", str(rsa_key(tmp_path)))


def test_digests_of_a_model_are_those_of_their_definition_and_outlive_a_restart(certifying):
    number = lambda value: int(value).to_bytes(8, "little")  # noqa: E731
    text = lambda octets: number(len(octets)) + octets  # noqa: E731
    head = np.random.default_rng(3).standard_normal((40_000, 8)).astype(np.float32)
    server = certifying()
    with sa.Client(server.address) as client:
        model = client.model(
            "m",
            tensors={"emb": sa.Rows(2, num_rows=9), "head": head},
            optimizer=sa.optimizers.FedAdam(),
            keep_versions=9,
        )
        spec = model._inner._spec.SerializeToString(deterministic=True)
        rows = b"".join(number(key) + row.tobytes() for key, row in enumerate(head))
        expected = [hashlib.sha256(text(spec) + number(0) + number(len(head)) + rows).digest()]
        for rate, has_round in ((None, True), (0.5, False), (0.25, True)):  # the first one is larger than a snapshot
            name = envelope = b""
            rnd = None
            if has_round:
                rnd = model.create_round("sum", certificate=True)
                rnd.submit("a", {"head": head, "emb": ([3], [[1.0, 2.0]])})
                rnd.finish()
                name, envelope = rnd.name.encode(), rnd.certificate().envelope
            model.apply(rnd, base_version=len(expected) - 1, learning_rate=rate)
            parts = text(expected[-1]) + text(name) + text(b"") + text(envelope)
            parts += number(0) * 2 if rate is None else number(1) + np.float64(rate).tobytes()
            expected.append(hashlib.sha256(parts).digest())
        assert [version.digest for version in model.refresh().versions] == expected
    server.kill()
    with sa.Client(certifying().address) as client:
        model = client.model("m")
        assert [version.digest for version in model.info.versions] == expected
        plain = model.create_round("sum")
        plain.submit("a", {"emb": ([3], [[1.0, 2.0]])})
        plain.finish()
        for at, each in enumerate((plain, None), start=len(expected) - 1):  # one round without: no digest any more
            assert model.apply(each, base_version=at, learning_rate=0.1).digest == b""
