"""Certificates of rounds: signed statements that anyone can check by computing the round again.

    pem = pathlib.Path("certificate.pub").read_bytes()
    sparseagg.certificates.verify(rnd.certificate(), pem, receipt=sparseagg.certificates.receipt(rnd, "client-7"))

``verify`` needs the package ``cryptography``: ``pip install cryptography``. docs/certificates.md says what a
certificate proves, and what it does not.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Mapping
from typing import Any

from sparseagg._internal.base.arguments import Timeout
from sparseagg._internal.certificates import bundle as bundles
from sparseagg._internal.certificates.bundle import replay
from sparseagg._internal.certificates.statement import (
    PROMISE_TYPE,
    STATEMENT_TYPE,
    VerificationError,
    decode_cbor,
    leaf_hash,
    open_envelope,
    read_keys,
    result_digest,
    root_of,
    root_of_path,
)
from sparseagg._internal.results.info import Certificate, Leaves, SubmissionReceipt
from sparseagg._internal.updates.contributors import ClientId
from sparseagg.version import __version__

__all__ = [
    "Certificate",
    "Leaves",
    "SubmissionReceipt",
    "VerificationError",
    "export_bundle",
    "receipt",
    "replay",
    "verify",
]

_STATEMENT, _PREDICATE = "https://in-toto.io/Statement/v1", "urn:sparseagg:round:v1"
_OF_ROUND = ("round", "tenant", "specSha256", "createTime")  # what promise and certificate share
_OF_HOME = ("specSha256", "createTime")  # which differ between the rounds of a cluster's servers, its homes
_TEXTS = (*_OF_ROUND, "closeTime", "spec", "state", "stateReason", "engine", "version")


def receipt(rnd: Any, client_id: ClientId, submission_id: str = "") -> Any:
    """Returns what the server has signed about a client's submission that counts.

    From the commit on it has the server's promise; once the round has ended with a certificate, the proof, too,
    that the submission is in the certificate's tree. Keep the first as soon as you have submitted: only then is
    there evidence, should the submission be dropped.

    Args:
        rnd: a round, also of a cluster or a version of a stream; of ``sparseagg.aio``, for a coroutine.
        client_id: of the submission; "" for the name of this client's credential.
        submission_id: of the submission. Needed only in a version of a stream in which the client has several.

    Raises:
        NotFoundError: the client has no such submission, or it was withdrawn.
        FailedPreconditionError: the round's spec asks for no certificate, or the client has several commits.
        PermissionDeniedError: the credential is of another client.
        UnimplementedError: the server is older than this method.
    """
    return rnd._receipt(client_id, submission_id)


def export_bundle(rnd: Any, folder: bundles.Path, timeout: Timeout = None) -> Any:
    """Waits until the round is done, and writes a bundle: certificate, submissions and result.

    ``verify`` and ``replay`` compute the result of the bundle again, on any machine. The
    bundle has the clients' updates as they have sent them.

    Args:
        rnd: as of ``receipt``, but of one server.
        folder: to write; there must be nothing of this name.
        timeout: of waiting and reading, in seconds or as a timedelta; None for no limit.

    Raises:
        FailedPreconditionError: the round's spec does not allow it (``allow_export``).
        RoundFailedError: the round has ended without a result.
        PermissionDeniedError: the credential is neither of an admin nor of a coordinator.
        UnimplementedError: the server is older than this method.
        TimeoutError: (``DeadlineExceededError``) after ``timeout``; the folder then is incomplete.
        OSError: the folder cannot be written, or exists.
    """
    return rnd._export(folder, timeout)


def verify(
    certificate: Certificate | bytes,
    trusted_keys: bytes,
    *,
    receipt: SubmissionReceipt | None = None,
    bundle: bundles.Path | None = None,
    device: str | None = None,
    any_version: bool = False,
) -> list[str]:
    """Verifies a certificate, and with it a receipt and a bundle.

    Args:
        certificate: from ``Round.certificate``, or its envelope.
        trusted_keys: public keys of the server in PEM, one or more: also those that were in use before.
        receipt: of a submission: its promise is verified, and that the submission is in the tree.
        bundle: folder of ``export_bundle``: leaves, tree and result are computed again from the submissions.
        device: "cuda" or "cpu", for that computation; as of ``aggregate``.
        any_version: compute again with this version even if the certificate is of another version.

    Returns:
        A line for each thing that was verified.

    Raises:
        VerificationError: something does not fit, or is malformed; the message says which, and why.
        InvalidArgumentError: ``trusted_keys`` has no key.
        UnimplementedError: the package ``cryptography`` is not installed, or this installation has no engine.
        OSError: a file of the bundle cannot be read.
    """
    envelope = certificate.envelope if isinstance(certificate, Certificate) else certificate
    keys = read_keys(trusted_keys)
    statement = _checked_statement(open_envelope(envelope, STATEMENT_TYPE, keys, "certificate"))
    predicate = statement["predicate"]
    subjects = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
    lines = [
        f"certificate of {predicate['round']}: {predicate['state']}, {predicate['numSubmissions']} submissions, "
        f"signed by a trusted key"
    ]
    if receipt is not None:
        lines += _verify_receipt(receipt, keys, predicate, subjects["submissions"])
    if bundle is not None:
        lines += _verify_bundle(bundle, envelope, statement, subjects, device, any_version)
    return lines


def _checked_statement(statement: dict[str, Any]) -> dict[str, Any]:
    """Returns the statement; ``VerificationError`` if it lacks what a certificate has."""
    if statement.get("_type") != _STATEMENT or statement.get("predicateType") != _PREDICATE:
        raise VerificationError(f"certificate: it is no in-toto statement with a predicate {_PREDICATE}")
    try:
        predicate = statement["predicate"]
        names = [each["name"] for each in statement["subject"]]
        digests = [each["digest"]["sha256"] for each in statement["subject"]]
        complete = (
            all(isinstance(predicate[name], str) for name in _TEXTS)
            and type(predicate["numSubmissions"]) is int
            and isinstance(predicate["clientWeightsSha256"], (str, type(None)))
            and isinstance(predicate["withdrawnSha256"], list)
            and all(_is_home(home) for home in predicate.get("homes", []))
            and all(isinstance(each, str) for each in (*names, *digests, *predicate["withdrawnSha256"]))
            and names[:1] == ["submissions"]
            and len(set(names)) == len(names)
        )
        spec = base64.b64decode(predicate["spec"], validate=True)
    except (KeyError, TypeError, ValueError):
        complete, spec = False, b""
    if not complete:
        raise VerificationError("certificate: the statement is malformed")
    if hashlib.sha256(spec).hexdigest() != predicate["specSha256"]:
        raise VerificationError("certificate: specSha256 is not the digest of the spec")
    state, reason = predicate["state"], predicate["stateReason"]
    if state not in ("DONE", "FAILED") or (state == "FAILED") != bool(reason):
        raise VerificationError(f"certificate: no round is {state!r} with the reason {reason!r}")
    of_spec = {f"results/{tensor.name}" for tensor in bundles.spec_of(statement).tensors}
    if set(names[1:]) != (of_spec if state == "DONE" else set()):
        raise VerificationError(f"certificate: its results are not those of a round that is {state}, by its spec")
    return statement


def _is_home(home: Any) -> bool:
    """Whether this names the round of a server of a cluster."""
    return (
        isinstance(home, dict) and set(home) == set(_OF_HOME) and all(isinstance(text, str) for text in home.values())
    )


def _verify_receipt(
    receipt: SubmissionReceipt, keys: dict[str, Any], predicate: Mapping[str, Any], root: str
) -> list[str]:
    promise = open_envelope(receipt.promise, PROMISE_TYPE, keys, "receipt")
    if receipt.round != promise.get("round"):
        raise VerificationError(f"receipt: it names {receipt.round!r}, and its promise {promise.get('round')!r}")
    rounds = [predicate, *({**predicate, **home} for home in predicate.get("homes", []))]
    if not any(all(promise.get(name) == each[name] for name in _OF_ROUND) for each in rounds):
        name = next(name for name in _OF_ROUND if promise.get(name) != predicate[name])
        raise VerificationError(
            f"receipt: it is of another round: {name} is {promise.get(name)!r}, in the certificate {predicate[name]!r}"
        )
    if promise.get("leafSha256") != leaf_hash(receipt.leaf).hex():
        raise VerificationError("receipt: the promise is for another leaf than that of the receipt")
    fields = bundles.leaf_fields(receipt.leaf, "receipt: the leaf")
    client, submission, base_version = fields[1].partition("\0")[0], fields[2], fields[4]
    if client != receipt.client_id:
        raise VerificationError(f"receipt: it names client {receipt.client_id!r}, and its leaf client {client!r}")
    if receipt.leaf_index is None:
        if promise["leafSha256"] in predicate["withdrawnSha256"]:
            raise VerificationError(f"receipt: the submission of client {client!r} was withdrawn, says the certificate")
        raise VerificationError(
            f"receipt: client {client!r} has a promise and no proof of inclusion, and the certificate does not list it "
            "as withdrawn. Get the receipt again now that the round has ended; if the server has none, it has dropped "
            "what it had promised to count"
        )
    if receipt.tree_size != predicate["numSubmissions"]:
        raise VerificationError(
            f"receipt: its tree has {receipt.tree_size} leaves, the certificate's {predicate['numSubmissions']}"
        )
    found = root_of_path(receipt.leaf, receipt.leaf_index, receipt.tree_size, receipt.path)
    if found is None or found.hex() != root:
        raise VerificationError(
            f"receipt: the submission of client {client!r} is not in the certificate's tree: the proof of inclusion "
            "gives another root"
        )
    origin = "" if base_version is None else f", computed from version {base_version},"
    return [f"receipt: submission {submission!r} of client {client!r}{origin} counts, as leaf {receipt.leaf_index}"]


def _verify_bundle(
    folder: bundles.Path,
    envelope: bytes,
    statement: Mapping[str, Any],
    subjects: Mapping[str, str],
    device: str | None,
    any_version: bool,
) -> list[str]:
    predicate = statement["predicate"]
    if bundles.read_envelope(folder) != envelope:
        raise VerificationError("bundle: it has another certificate than the one that is verified")
    spec = bundles.spec_of(statement)
    submissions = []  # without what they have sent, of which one submission at a time is held
    for each in bundles.read_submissions(folder, spec):
        if (leaf := each.made_leaf(spec)) != each.leaf:
            raise VerificationError(f"bundle: {_difference(each.client_id, leaf, each.leaf)}")
        submissions.append(each.without_content())
    _verify_order(submissions)
    if len(submissions) != predicate["numSubmissions"]:
        raise VerificationError(
            f"bundle: it has {len(submissions)} submissions, the certificate {predicate['numSubmissions']}"
        )
    is_stream_version = bool(submissions) and submissions[0].base_version is not None
    if root_of(each.leaf for each in submissions).hex() != subjects["submissions"]:
        raise VerificationError("bundle: the tree of its submissions has another root than the certificate's")
    _verify_weights(submissions, predicate["clientWeightsSha256"])
    what = "commits to a stream" if is_stream_version else "submissions"
    lines = [f"bundle: its {len(submissions)} {what} are those of the certificate, in fold order"]
    if predicate["state"] != "DONE":
        return lines
    if predicate["version"] != __version__ and not any_version:
        raise VerificationError(
            f"bundle: the certificate is of version {predicate['version']}, and this is version {__version__}: install "
            f"that version, or compute again with this one nevertheless (--any-version)"
        )
    return lines + _verify_result(folder, submissions, subjects, device)


def _verify_order(submissions: list[bundles.StoredSubmission]) -> None:
    """Verifies that nothing counts twice, and the order: of client ids, and of a client's commits in the log."""
    for before, after in zip(submissions, submissions[1:]):
        if before.client_id == after.client_id:
            raise VerificationError(f"bundle: client {after.client_id!r} has two submissions")
        if before.client_id.encode() > after.client_id.encode():
            raise VerificationError(
                f"bundle: the submissions are not in fold order: {after.client_id!r} comes after {before.client_id!r}"
            )
    if len({(each.base_version is None, "\0" in each.client_id) for each in submissions}) > 1:
        raise VerificationError("bundle: some of the submissions are of a stream, and others are not")
    commits: set[tuple[str, ...]] = set()
    for each in submissions:
        client, zero, position = each.client_id.partition("\0")
        names = {("commit", client, each.submission_id), ("position", position)} if zero else set()
        if not names.isdisjoint(commits):
            raise VerificationError(
                f"bundle: submission {each.submission_id!r} of client {client!r}, at log position {position}, is there "
                "twice"
            )
        commits |= names


def _difference(client: str, made: bytes, given: bytes) -> str:
    """Returns, as a text, where the leaf made of a submission's content differs from the leaf in the bundle."""
    fields, others = decode_cbor(made), decode_cbor(given)
    names = ["salt", "client id", "submission id", "weight", "base version"]  # as of leaf_fields
    for position, (mine, other) in enumerate(zip(fields, others)):
        if mine == other:
            continue
        what = names[position] if position < len(names) else f"content of tensor {mine[0]!r}"
        return f"the {what} of client {client!r} is not that of its leaf"
    return f"the leaf of client {client!r} has {len(others) - 5} tensors, the spec {len(fields) - 5}"


def _verify_weights(submissions: list[bundles.StoredSubmission], digest: str | None) -> None:
    has_weights = any(each.client_weight is not None for each in submissions)
    factors = [1.0 if each.client_weight is None else each.client_weight for each in submissions]
    packed = struct.pack(f"<{len(factors)}d", *factors)
    if (hashlib.sha256(packed).hexdigest() if has_weights else None) != digest:
        raise VerificationError("bundle: the client_weights of the close are not those of the certificate")


def _verify_result(
    folder: bundles.Path,
    submissions: list[bundles.StoredSubmission],
    subjects: Mapping[str, str],
    device: str | None,
) -> list[str]:
    result = bundles.replay(folder, submissions=submissions, device=device)
    for name, tensor in result.items():
        found = result_digest(tensor).hex()
        if found != subjects[f"results/{name}"]:
            raise VerificationError(
                f"bundle: the result of tensor {name!r}, computed again, has the digest {found}, and the certificate "
                f"states {subjects[f'results/{name}']}"
            )
    made, stored = bundles.result_columns(result), bundles.read_result(folder)
    for name in sorted(made.keys() | stored.keys()):
        columns = [array[name] for array in (made, stored) if name in array]
        if len({(column.dtype, column.shape, column.tobytes()) for column in columns}) != 1 or len(columns) != 2:
            raise VerificationError(f"bundle: the stored result is not the certified one: array {name!r} differs")
    return [f"bundle: computed again, the results have the certified bits: {', '.join(result)}"]
