"""DSSE envelopes with Ed25519 signatures, checked with the package ``cryptography``."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any

from sparseagg.errors import InvalidArgumentError, SparseaggError, UnimplementedError

__all__ = ["PROMISE_TYPE", "STATEMENT_TYPE", "VerificationError", "open_envelope", "payload_of", "read_keys"]

STATEMENT_TYPE = "application/vnd.in-toto+json"
PROMISE_TYPE = "application/vnd.sparseagg.promise+json"
_PEM = re.compile(rb"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----\s*", re.DOTALL)


class VerificationError(SparseaggError):
    """A certificate, receipt or bundle is not what it should be; the message says which part, and why."""


def read_keys(pem: bytes) -> dict[str, Any]:
    """Returns the Ed25519 public keys of a PEM file with one key or more, by their ids.

    Raises:
        InvalidArgumentError: there is no such key.
        UnimplementedError: the package ``cryptography`` is not installed.
    """
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError as error:
        raise UnimplementedError("certificates need cryptography: pip install cryptography") from error
    keys = {}
    for block in _PEM.findall(pem):
        try:
            key = serialization.load_pem_public_key(block)
        except ValueError as error:
            raise InvalidArgumentError(f"the file of trusted keys has a key that cannot be read: {error}") from error
        if not isinstance(key, Ed25519PublicKey):
            raise InvalidArgumentError("the file of trusted keys has a public key that is not of Ed25519")
        raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        keys[hashlib.sha256(raw).hexdigest()] = key
    if not keys:
        raise InvalidArgumentError("the file of trusted keys has no public key in PEM")
    return keys


def payload_of(envelope: bytes, what: str) -> dict[str, Any]:
    """Returns the JSON object in an envelope, whose signature is not checked; ``VerificationError`` if it has none."""
    return _object(_parts(envelope, what)[1], f"{what}: the payload")


def open_envelope(envelope: bytes, payload_type: str, keys: dict[str, Any], what: str) -> dict[str, Any]:
    """Checks the signature and returns the JSON object that was signed.

    Args:
        envelope: as the server gives it.
        payload_type: the type that the envelope must have.
        keys: trusted keys, from ``read_keys``.
        what: of errors, such as "certificate".

    Raises:
        VerificationError: another type, a key that is not trusted, or a wrong signature.
    """
    from cryptography.exceptions import InvalidSignature

    found_type, payload, signatures = _parts(envelope, what)
    if found_type != payload_type:
        raise VerificationError(f"{what}: the envelope has the type {found_type!r}, and not {payload_type!r}")
    signed = b"DSSEv1 %d %b %d %b" % (len(found_type.encode()), found_type.encode(), len(payload), payload)
    trusted = [(keys[key_id], signature) for key_id, signature in signatures if key_id in keys]
    if not trusted:
        ids = ", ".join(key_id for key_id, _ in signatures)
        raise VerificationError(f"{what}: it is signed with key {ids}, which is not among the {len(keys)} trusted keys")
    for key, signature in trusted:
        try:
            key.verify(signature, signed)
        except InvalidSignature:
            raise VerificationError(f"{what}: the signature does not fit: it or the payload was changed") from None
    return _object(payload, f"{what}: the payload")


def _parts(envelope: bytes, what: str) -> tuple[str, bytes, list[tuple[str, bytes]]]:
    """Returns type, payload, and ids of keys with signatures."""
    message = _object(envelope, what)
    try:
        kind, payload = message["payloadType"], base64.b64decode(message["payload"], validate=True)
        signatures = [(each["keyid"], base64.b64decode(each["sig"], validate=True)) for each in message["signatures"]]
        texts: Iterable[Any] = (kind, *(key_id for key_id, _ in signatures))
        if signatures and all(isinstance(text, str) for text in texts):
            return kind, payload, signatures
    except (KeyError, TypeError, binascii.Error, ValueError):
        pass
    raise VerificationError(f"{what}: it is no DSSE envelope with a signature")


def _object(data: bytes, what: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise VerificationError(f"{what} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise VerificationError(f"{what} is no JSON object")
    return found
