"""Request messages made from the arguments of the client's methods, which are checked here."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsFloat

from google.protobuf import duration_pb2

from sparseagg._internal.base import extension
from sparseagg._internal.base.arguments import END_OF_KEYS, checked_key_range, checked_number, checked_text, shown
from sparseagg._internal.base.types import KeyEncoding, NarrowEncoding
from sparseagg._internal.spec.round_spec import RoundSpec, checked_spec
from sparseagg._internal.updates.contributors import ClientId, checked_client_id
from sparseagg._internal.wire.encode import check_key_encoding, check_value_encoding
from sparseagg.errors import InvalidArgumentError
from sparseagg.v1 import aggregation_pb2 as pb

# Key encodings that this client decodes in results, in addition to the plain ones: without the engine only the first.
_KEYS = (pb.KEY_ENCODING_IMPLICIT, pb.KEY_ENCODING_DELTA_BITPACKED)


def round_name(name: str) -> str:
    """Returns "rounds/{id}" for a name or an id; ``InvalidArgumentError`` if ``name`` is no string."""
    name = checked_text("a round's name", name)
    return name if name.startswith("rounds/") else f"rounds/{name}"


def create_request(spec: RoundSpec, round_id: str | None) -> pb.CreateRoundRequest:
    """Returns the request that creates a round, of a random id for None; ``InvalidArgumentError`` for no spec or no
    id.
    """
    if round_id == "":  # the server would choose an id
        raise InvalidArgumentError("a round's id is not empty; None is for a random one")
    round_id = checked_text("a round's id", uuid.uuid4().hex if round_id is None else round_id)
    return pb.CreateRoundRequest(round_id=round_id, spec=checked_spec(spec)._to_proto())


def close_request(
    name: str, only: Iterable[ClientId] | None, client_weights: Mapping[ClientId, SupportsFloat] | None = None
) -> pb.CloseRoundRequest:
    """Returns the request that closes a round; ``InvalidArgumentError`` if the clients that count are no list of ids,
    or the factors of their weights no mapping; or if both are given.
    """
    if client_weights is not None:
        if only is not None:
            raise InvalidArgumentError("only and client_weights exclude each other: a weight of 0 leaves a client out")
        return pb.CloseRoundRequest(name=name, client_weights=_checked_client_weights(client_weights))
    if only is None:
        return pb.CloseRoundRequest(name=name)
    ids = checked_only(only)
    return pb.CloseRoundRequest(name=name, only_client_ids=ids)


def checked_only(only: Any) -> dict[str, None]:
    """Returns the ids of the clients that count, each once; ``InvalidArgumentError`` if ``only`` is no list of them."""
    if isinstance(only, (str, bytes)) or not isinstance(only, Iterable):
        raise InvalidArgumentError(f"only must be a list of client ids, or None for all clients, got {shown(only)}")
    ids = dict.fromkeys(checked_client_id(client_id) for client_id in only)
    if not ids:  # on the wire, no ids would mean all clients
        raise InvalidArgumentError(
            "only has no client id; None is for all clients, and Round.cancel for a round of none"
        )
    return ids


def _checked_client_weights(client_weights: Any) -> list[pb.ClientWeight]:
    if not isinstance(client_weights, Mapping):
        raise InvalidArgumentError(
            f"client_weights must be a mapping from client ids to weights, got {shown(client_weights)}"
        )
    if not client_weights:  # on the wire, no weights would mean those of the submissions
        raise InvalidArgumentError("client_weights has no client; None is for the weights of the submissions")
    weights: dict[str, float] = {}
    for client_id, weight in client_weights.items():
        client_id = checked_client_id(client_id)
        if client_id in weights:
            raise InvalidArgumentError(f"client_weights names client {client_id!r} twice")
        weights[client_id] = checked_number(
            f"client_weights: the weight of client {client_id!r} must be 0 or more", weight
        )
    return [pb.ClientWeight(client_id=client_id, weight=weight) for client_id, weight in weights.items()]


def checked_names(tensors: Sequence[str] | None) -> list[str] | None:
    """Returns the names of tensors; ``InvalidArgumentError`` if they are no list of distinct names."""
    if isinstance(tensors, str):
        raise InvalidArgumentError(f"tensors must be a list of names, got {shown(tensors)}")
    names = None if tensors is None else [checked_text("a tensor's name", tensor) for tensor in tensors]
    if names == []:  # on the wire, no names would mean all tensors
        raise InvalidArgumentError("tensors has no name; None is for all tensors")
    if names is not None and len(set(names)) < len(names):
        raise InvalidArgumentError(f"tensors names one of them twice: {shown(names)}")
    return names


def wait_request(name: str, seconds: float) -> pb.WaitRoundRequest:
    """Returns the request of one long poll."""
    # At least a millisecond: no timeout, or zero, would mean the server's default.
    nanos = max(1_000_000, int(seconds * 1e9))
    timeout = duration_pb2.Duration(seconds=nanos // 10**9, nanos=nanos % 10**9)
    return pb.WaitRoundRequest(name=name, timeout=timeout)


def result_format(key_encoding: KeyEncoding, value_encoding: NarrowEncoding | None) -> pb.ResultFormat:
    """Returns the encodings that the server may use in a result, by the arguments of ``Round.result``."""
    check_key_encoding(key_encoding)
    if value_encoding is not None:
        check_value_encoding(value_encoding)
    decoded = _KEYS if extension.find() is not None else _KEYS[:1]
    return pb.ResultFormat(
        key_encodings=decoded if key_encoding == "auto" else (),
        value_encoding=None if value_encoding is None else f"VALUE_ENCODING_{value_encoding.upper()}",
    )


def result_request(
    name: str,
    tensors: Sequence[str] | None,
    keys: tuple[int, int | None] | None,
    result_format: pb.ResultFormat | None = None,
) -> pb.StreamResultRequest:
    """Returns the request of a round's result; ``InvalidArgumentError`` for no list of distinct names, or no range of
    keys.
    """
    request = pb.StreamResultRequest(name=name, tensors=checked_names(tensors), format=result_format)
    set_range(request.range, keys)
    return request


def set_range(message: pb.KeyRange, keys: tuple[int, int | None] | None) -> None:
    """Sets a range of keys (begin, end); None: all keys. ``InvalidArgumentError`` if ``keys`` is no range."""
    if keys is not None:
        begin, end = checked_key_range(keys)
        if begin == end:
            begin = end = 1  # any empty range will do, but 0 and 2^64 are no ends of one on the wire
        message.begin = begin
        message.end = end % END_OF_KEYS
