"""What a certificate states, and how it is signed: COSE and CBOR, the tree of submissions, and the statement."""

from __future__ import annotations

import base64
import binascii
import datetime
import hashlib
import json
import math
import pathlib
import re
import stat
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sparseagg._internal.base.foreign import Array, bits_from_float, is_bfloat16
from sparseagg._internal.results.info import Certificate, Leaves
from sparseagg._internal.results.result import TensorResult
from sparseagg.errors import InvalidArgumentError, SparseaggError, UnimplementedError
from sparseagg.version import __version__

_UINT, _BYTES, _TEXT, _ARRAY, _SIMPLE = 0, 2, 3, 4, 7
_SIMPLE_VALUES = {20: False, 21: True, 22: None}
_FLOATS = {25: ">e", 26: ">f", 27: ">d"}


def encode_cbor(item: Any) -> bytes:
    """Returns the only deterministic encoding of an item: bool, None, int ≥ 0, float, bytes, str or a list of items."""
    if item is None or isinstance(item, bool):
        return {False: b"\xf4", True: b"\xf5", None: b"\xf6"}[item]
    if isinstance(item, int):
        return _head(_UINT, item)
    if isinstance(item, float):
        return _encode_float(item)
    if isinstance(item, bytes):
        return _head(_BYTES, len(item)) + item
    if isinstance(item, str):
        text = item.encode()
        return _head(_TEXT, len(text)) + text
    assert isinstance(item, Sequence)
    return _head(_ARRAY, len(item)) + b"".join(map(encode_cbor, item))


def decode_cbor(data: bytes) -> Any:
    """Returns the item that ``data`` encodes; ``InvalidArgumentError`` if it is not the deterministic encoding of
    one.
    """
    try:
        item, end = _decode(data, 0)
        if end == len(data) and encode_cbor(item) == data:
            return item
    except (IndexError, KeyError, RecursionError, UnicodeDecodeError, struct.error):
        pass
    raise InvalidArgumentError(f"{len(data)} bytes are no deterministic CBOR")


def _head(major: int, argument: int) -> bytes:
    if argument < 24:
        return bytes([major << 5 | argument])
    size = next(size for size in (1, 2, 4, 8) if argument < 1 << 8 * size)
    return bytes([major << 5 | 23 + size.bit_length()]) + argument.to_bytes(size, "big")


def _encode_float(value: float) -> bytes:
    """Returns the shortest of float16, float32 and float64 that has the value."""
    for info in (25, 26):
        try:
            packed = struct.pack(_FLOATS[info], value)
        except OverflowError:
            continue
        if struct.unpack(_FLOATS[info], packed)[0] == value or math.isnan(value):
            return bytes([_SIMPLE << 5 | info]) + packed
    return b"\xfb" + struct.pack(">d", value)


def _decode(data: bytes, at: int) -> tuple[Any, int]:
    """Returns the item that begins at ``at``, and where it ends."""
    major, info = data[at] >> 5, data[at] & 31
    at += 1
    if major == _SIMPLE:
        if info in _SIMPLE_VALUES:
            return _SIMPLE_VALUES[info], at
        return struct.unpack_from(_FLOATS[info], data, at)[0], at + struct.calcsize(_FLOATS[info])
    if info >= 24:
        size = {24: 1, 25: 2, 26: 4, 27: 8}[info]
        info, at = int.from_bytes(data[at : at + size], "big"), at + size
    if major == _UINT:
        return info, at
    if major == _ARRAY:
        items = []
        for _ in range(info):
            item, at = _decode(data, at)
            items.append(item)
        return items, at
    content, end = data[at : at + info], at + info
    if major == _TEXT:
        return content.decode(), end
    if major == _BYTES:
        return content, end
    raise KeyError(major)


def leaf_hash(leaf: bytes) -> bytes:
    """Returns the hash of a leaf."""
    return hashlib.sha256(b"\0" + leaf).digest()


def root_of(leaves: Iterable[bytes]) -> bytes:
    """Returns the root of the tree of ``leaves``, which are not hashed yet (RFC 9162, 2.1.1)."""
    level = [leaf_hash(leaf) for leaf in leaves]
    if not level:
        return hashlib.sha256().digest()
    while len(level) > 1:
        odd = level[len(level) & ~1 :]  # a node without a sibling moves up as it is
        level = [_node(left, right) for left, right in zip(level[::2], level[1::2])] + odd
    return level[0]


def path_of(leaves: Iterable[bytes], index: int) -> tuple[bytes, ...]:
    """Returns the proof that leaf ``index`` is in the tree: siblings, from the leaf up (RFC 9162, 2.1.3.1)."""
    level, path = [leaf_hash(leaf) for leaf in leaves], []
    while len(level) > 1:
        if index ^ 1 < len(level):
            path.append(level[index ^ 1])
        odd = level[len(level) & ~1 :]
        level = [_node(left, right) for left, right in zip(level[::2], level[1::2])] + odd
        index //= 2
    return tuple(path)


def root_of_path(leaf: bytes, index: int, size: int, path: Sequence[bytes]) -> bytes | None:
    """Returns the root that a proof of inclusion gives (RFC 9162, 2.1.3.2); None if the proof has a wrong length."""
    if not 0 <= index < size:
        return None
    node, last, left = leaf_hash(leaf), size - 1, list(path)
    while last > 0:
        if index % 2 == 1 or index < last:  # it has a sibling
            if not left:
                return None
            sibling = left.pop(0)
            node = _node(sibling, node) if index % 2 == 1 else _node(node, sibling)
        index, last = index // 2, last // 2
    return None if left else node


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()


_BLOCK = 1 << 20


def content_digest(keys: Array, values: Array | None) -> bytes:
    """Returns the digest of one tensor of a submission: of keys of any unsigned type, in order of occurrence, and
    values of the tensor's dtype, bfloat16 as bits; None for a union.
    """
    total = hashlib.sha256()
    for digest in (*_blocks(keys.astype("<u8", copy=False)), *_blocks(values)):
        total.update(digest)
    return total.digest()


def result_digest(tensor: TensorResult) -> bytes:
    """Returns the digest of one tensor's result, a subject of the certificate. The result is of all keys."""
    columns = [tensor.counts, tensor.weights, tensor.moments]
    has_columns = [column is not None for column in (tensor.values, *columns)]
    form = ["sparseagg result 1", tensor.name, tensor.layout, tensor.dtype, tensor.row_width, tensor.num_rows]
    total = hashlib.sha256(encode_cbor([*form, len(tensor), *has_columns]))
    if tensor.layout == "sparse":
        total.update(_bytes(tensor.keys.astype("<u8", copy=False)))
    for column in (wire_values(tensor), *columns):
        total.update(_bytes(column))
    return total.digest()


def wire_values(tensor: TensorResult) -> Array | None:
    """Returns the values of a result with the bits of its dtype; bfloat16, which may have been widened, as uint16."""
    values = tensor.values
    if values is None or tensor.dtype != "bfloat16" or values.dtype == np.uint16:
        return values
    if is_bfloat16(values.dtype):
        return values.view(np.uint16)
    return bits_from_float(np.ascontiguousarray(values))


def _blocks(array: Array | None) -> Iterable[bytes]:
    data = _bytes(array)
    return (hashlib.sha256(data[begin : begin + _BLOCK]).digest() for begin in range(0, len(data), _BLOCK))


def _bytes(array: Array | None) -> Any:
    if array is None or array.size == 0:
        return b""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


STATEMENT_TYPE = "application/vnd.in-toto+json"
PROMISE_TYPE = "application/vnd.sparseagg.promise+json"
_PEM = re.compile(rb"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----\s*", re.DOTALL)


class VerificationError(SparseaggError):
    """A certificate, receipt or bundle is not what it should be; the message says which part, and why."""


def read_keys(pem: bytes) -> dict[str, Any]:
    """Returns the Ed25519 public keys of a PEM file by their ids; ``InvalidArgumentError`` if there is none or another
    one.
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
    """Checks the signature and returns the JSON object that was signed. ``keys``: from ``read_keys``.

    Raises ``VerificationError``, which names ``what``: another type, a key that is not trusted, or a wrong signature.
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


def read_private_key(path: pathlib.Path) -> Any:
    """Returns the Ed25519 private key of a PEM file without a password.

    Raises ``InvalidArgumentError`` if there is no such key, or everybody may replace it; OSError,
    ``UnimplementedError`` as usual.
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

    ``leaves``, ``results``: of all servers, in fold order and in the order of the spec. ``promises``: what the promises
    of each server's round say of it: "tenant", "specSha256" and "createTime". ``key``: from ``read_private_key``.
    """
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    subjects = {"submissions": root_of(leaves.counted.values())}
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
            "withdrawnSha256": sorted(leaf_hash(leaf).hex() for leaf in leaves.withdrawn),
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
