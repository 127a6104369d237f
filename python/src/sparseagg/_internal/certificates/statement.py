"""Certificates that this process makes: of rounds over several servers, which none of them has whole."""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import pathlib
import stat
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sparseagg._internal.certificates import tree
from sparseagg._internal.certificates.content import result_digest
from sparseagg._internal.certificates.envelope import STATEMENT_TYPE
from sparseagg._internal.results.certificates import Certificate, Leaves
from sparseagg._internal.results.result import TensorResult
from sparseagg.errors import InvalidArgumentError, UnimplementedError
from sparseagg.version import __version__

__all__ = ["make_certificate", "read_private_key"]


def read_private_key(path: pathlib.Path) -> Any:
    """Returns the Ed25519 private key of a PEM file without a password.

    Raises:
        InvalidArgumentError: there is no such key, or everybody may replace it.
        OSError: the file cannot be read.
        UnimplementedError: the package ``cryptography`` is not installed.
    """
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError as error:
        raise UnimplementedError("certificates need cryptography: pip install cryptography") from error
    mode = path.stat().st_mode & 0o777
    if mode & stat.S_IWOTH:  # as the server refuses it
        raise InvalidArgumentError(f"{path} has the mode {mode:03o}: everybody may replace the secret; chmod 600 it")
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(f"{path} has no private key in PEM without a password: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidArgumentError(f"{path} has a private key that is not of Ed25519")
    return key


def time_now() -> str:
    """Returns the present time as statements have it: in UTC, with nanoseconds."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")


def make_certificate(
    name: str,
    spec: bytes,
    leaves: Leaves,
    results: Iterable[TensorResult],
    engine: str,
    promises: Sequence[Mapping[str, str]],
    key: Any,
    close_time: str,
) -> Certificate:
    """Signs the statement of a round that is done. docs/certificates.md has its format.

    Args:
        name: of the round, "rounds/{id}".
        spec: a ``sparseagg.v1.RoundSpec``.
        leaves: of all servers; ``counted`` in the bytewise order of client ids.
        results: of all tensors, in the order of the spec.
        engine: that has merged.
        promises: what the promises of each server's round say of it: "tenant", "specSha256" and "createTime".
        key: from ``read_private_key``.
        close_time: from ``time_now``.
    """
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    subjects = {"submissions": tree.root_of(leaves.counted.values())}
    subjects.update((f"results/{tensor.name}", result_digest(tensor)) for tensor in results)
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": each, "digest": {"sha256": digest.hex()}} for each, digest in subjects.items()],
        "predicateType": "urn:sparseagg:round:v1",
        "predicate": {
            "round": name,
            "tenant": promises[0]["tenant"],
            "specSha256": hashlib.sha256(spec).hexdigest(),
            "createTime": min(each["createTime"] for each in promises),
            "closeTime": close_time,
            "spec": base64.b64encode(spec).decode(),
            "state": "DONE",
            "stateReason": "",
            "numSubmissions": len(leaves.counted),
            "withdrawnSha256": sorted(tree.leaf_hash(leaf).hex() for leaf in leaves.withdrawn),
            "clientWeightsSha256": None,
            "engine": engine,
            "version": __version__,
            "homes": [{each: home[each] for each in ("specSha256", "createTime")} for home in promises],
        },
    }
    payload = json.dumps(statement, ensure_ascii=False, separators=(",", ":")).encode()
    signed = b"DSSEv1 %d %b %d %b" % (len(STATEMENT_TYPE), STATEMENT_TYPE.encode(), len(payload), payload)
    public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    signature = {"keyid": hashlib.sha256(public).hexdigest(), "sig": base64.b64encode(key.sign(signed)).decode()}
    envelope = {
        "payloadType": STATEMENT_TYPE,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [signature],
    }
    return Certificate(json.dumps(envelope).encode())
