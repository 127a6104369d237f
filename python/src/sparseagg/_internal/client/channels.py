"""Channels to a server: addresses, options, the pool of a client, and the methods that they call."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import grpc
from google.protobuf import descriptor_pb2

from sparseagg._internal.base.arguments import check_name, checked_integer, checked_text, shown
from sparseagg._internal.base.credentials import TOKEN_VARIABLE, TokenArgument, is_local
from sparseagg._internal.wire.columns import parse_exported, parse_page
from sparseagg._internal.wire.encode import ChunkMessage
from sparseagg.errors import CancelledError, FailedPreconditionError, InvalidArgumentError, SparseaggError
from sparseagg.v1 import aggregation_pb2, models_pb2, tasks_pb2
from sparseagg.v1 import aggregation_pb2 as pb


class Method(NamedTuple):
    """A method of a service."""

    service: str  # the service's full name, "sparseagg.v1.Tasks"
    name: str  # "LeaseTask"
    kind: str  # as gRPC names it: "unary_unary", "unary_stream", "stream_unary" or "stream_stream"
    request: Any  # the class of its requests
    response: Any  # the class of its responses


def methods() -> Iterator[Method]:
    """Yields the methods of all services; no two have one name."""
    for module in (aggregation_pb2, tasks_pb2, models_pb2):
        # Every version of protobuf says here which methods stream.
        file = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        for service, proto in zip(module.DESCRIPTOR.services_by_name.values(), file.service):
            for method, described in zip(service.methods, proto.method):
                streams = (described.client_streaming, described.server_streaming)
                yield Method(
                    service.full_name,
                    method.name,
                    "_".join("stream" if each else "unary" for each in streams),
                    method.input_type._concrete_class,
                    method.output_type._concrete_class,
                )


def make_call(
    channel: Any,
    method: Method,
    serialise: Callable[[Any], bytes] | None = None,
    parse: Callable[[bytes], Any] | None = None,
) -> Any:
    """Returns the callable of a method; ``serialise`` and ``parse`` are for others than the classes of its messages."""
    return getattr(channel, method.kind)(
        f"/{method.service}/{method.name}",
        request_serializer=serialise or method.request.SerializeToString,
        response_deserializer=parse or method.response.FromString,
    )


def make_stub(
    channel: Any,
    serialisers: Mapping[str, Callable[[Any], bytes]] | None = None,
    parsers: Mapping[str, Callable[[bytes], Any]] | None = None,
) -> Any:
    """Returns an object with a callable for each method of all services.

    ``serialisers``, ``parsers``: by name of method, what turns its requests into bytes, and bytes into its answers, if
    these are no messages.
    """
    serialisers, parsers = serialisers or {}, parsers or {}
    calls = {
        method.name: make_call(channel, method, serialisers.get(method.name), parsers.get(method.name))
        for method in methods()
    }
    return types.SimpleNamespace(**calls)


def make_bulk_stub(channel: Any) -> Any:
    """Returns a stub whose uploading methods take ``ChunkMessage``; ``Aggregate`` takes ``AggregateRequest``, too.

    Those that read results give ``Page``, and ``ExportSubmissions`` gives ``ExportedColumns``. The bytes on the wire
    are the same.

    It also has ``SubmitWhole``, which is ``SubmitUpdate`` with one message. gRPC starts a thread for every call with a
    stream of requests, which costs more than sending one message.
    """
    serialise = ChunkMessage.serialise
    uploads = dict.fromkeys(("SubmitUpdate", "PutChunk", "SubmitBatch"), serialise)
    pages = dict.fromkeys(("GetResult", "GetResultRange", "StreamResult", "Aggregate"), parse_page)
    parsers = {**pages, "ExportSubmissions": parse_exported}
    stub = make_stub(channel, {**uploads, "Aggregate": _serialise_for_aggregate}, parsers)
    (method,) = (method for method in methods() if method.name == "SubmitUpdate")
    stub.SubmitWhole = make_call(channel, method._replace(kind="unary_unary"), serialise)
    return stub


def _serialise_for_aggregate(message: pb.AggregateRequest | ChunkMessage) -> bytes:
    return message.serialise_for_aggregate() if isinstance(message, ChunkMessage) else message.SerializeToString()


def channel_options(address: str, extra: list[tuple[str, Any]] | None) -> list[tuple[str, Any]]:
    """Returns the options of a channel to ``address``: our defaults, replaced by the caller's where both have one.

    Raises ``InvalidArgumentError`` if ``extra`` is no list of pairs (name, value).
    """
    if not isinstance(extra, (list, tuple, type(None))) or not all(map(_is_option, extra or ())):
        raise InvalidArgumentError(
            f"options must be a list of pairs (name, value), got {shown(extra)}; a value is an integer or a string"
        )
    options = {
        "grpc.max_receive_message_length": -1,  # the server bounds its pages
        "grpc.max_send_message_length": -1,
        "grpc.use_local_subchannel_pool": 1,  # one connection for each channel
        "grpc.initial_reconnect_backoff_ms": 100,
        "grpc.min_reconnect_backoff_ms": 100,
        "grpc.max_reconnect_backoff_ms": 2000,
        # Pings a server that is silent during a call. Without pings, a call would wait for ever for a server that hangs
        # or that a broken network hides. Our servers take a ping every ten seconds.
        "grpc.keepalive_time_ms": 20_000,
        "grpc.keepalive_timeout_ms": 20_000,
        "grpc.http2.max_pings_without_data": 0,  # no limit
        # A proxy cannot reach this machine's loopback.
        "grpc.enable_http_proxy": 0 if is_local(address) else 1,
    }
    return list({**options, **dict(extra or ())}.items())  # each once: gRPC takes the first of two


def _is_option(pair: Any) -> bool:
    """Returns whether gRPC takes this option; otherwise gRPC would raise at the first call only."""
    if not isinstance(pair, tuple) or len(pair) != 2:
        return False
    return isinstance(pair[0], str) and isinstance(pair[1], (int, str, bytes))


def checked_connections(connections: Any) -> int:
    """Returns the number of connections that a client may make; ``InvalidArgumentError`` if it is not 1 or more."""
    return checked_integer("connections must be a number from 1 on", connections, 1, sys.maxsize)


_DISCONNECTED = "this client is closed"

_OF_PARENTS: list[Any] = []  # channels of the processes that have forked this one


class ChannelPool:
    """Channels to one server, each with its own TCP connection. Thread-safe.

    gRPC carries all calls of a channel over one connection. One thread at a time moves the connection's bytes, and on a
    long way the connection carries one window a round trip. So updates and results that are transferred at the same
    time use several channels. The pool opens a channel when it is first needed. In a forked child, the pool begins
    anew, without channels: two processes cannot share a connection.

        with pool.least_busy() as stub:
            stub.StreamResult(request)

    Args:
        open_channel: opens a channel. Channels with the same options must not share a connection.
        most: number of channels at most, 1 or more.
    """

    def __init__(self, open_channel: Callable[[], Any], most: int) -> None:
        self._open_channel = open_channel
        self._most = most
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        # Guarded by _lock. Empty before the first loan: a channel of grpc.aio belongs to the event loop that opens it.
        # Stubs and loans (numbers) have the indices of their channels.
        self._channels: list[Any] = []
        self._stubs: list[Any] = []
        self._loans: list[int] = []

    @contextlib.contextmanager
    def first(self) -> Iterator[Any]:
        """Lends the stub of the first channel, for calls with short messages. Raises ``FailedPreconditionError`` if the
        pool is closed, ``CancelledError`` if it was closed during the call.
        """
        self._begin_anew_in_child()
        with self._lock:
            self._have_one()
        with self._open():
            yield self._stubs[0]

    @contextlib.contextmanager
    def least_busy(self) -> Iterator[Any]:
        """Lends the stub of the channel with the fewest loans; of a new one if all have loans and there is room.
        Errors: as of ``first``.
        """
        self._begin_anew_in_child()
        with self._lock:
            self._have_one()
            at = self._loans.index(min(self._loans))
            if self._loans[at] > 0 and len(self._loans) < self._most and not self._closed:
                at = self._add()
            self._loans[at] += 1
        try:
            with self._open():
                yield self._stubs[at]
        finally:
            with self._lock:
                self._loans[at] -= 1

    def close(self) -> list[Any]:
        """Closes the pool, which opens no further channels. Returns all its channels, which the caller must close."""
        self._begin_anew_in_child()
        with self._lock:
            self._closed = True
            return self._channels

    def _begin_anew_in_child(self) -> None:
        """Leaves the channels of the parent to the parent, if this process is a child that was forked since."""
        if self._pid == os.getpid():
            return
        # Kept, for a channel that is freed would end the parent's connection.
        _OF_PARENTS.extend(self._channels)
        self._lock = threading.Lock()  # another thread of the parent may have held it during the fork
        self._channels, self._stubs, self._loans = [], [], []
        self._pid = os.getpid()

    @contextlib.contextmanager
    def _open(self) -> Iterator[None]:
        """Raises ``FailedPreconditionError`` if the pool is closed, and ``CancelledError`` in calls that this ended."""
        if self._closed:
            raise FailedPreconditionError(_DISCONNECTED)
        try:
            yield
        except grpc.RpcError as error:
            if not self._closed or error.code() is not grpc.StatusCode.CANCELLED:
                raise
            raise CancelledError(_DISCONNECTED) from None
        except (ValueError, grpc.aio.UsageError) as error:
            # gRPC raises these for a call on a closed channel, which another thread may have closed.
            if isinstance(error, SparseaggError) or not self._closed:
                raise
            raise FailedPreconditionError(_DISCONNECTED) from error

    def _have_one(self) -> None:
        """Opens the first channel if there is none. Requires _lock."""
        if self._closed and not self._channels:
            raise FailedPreconditionError(_DISCONNECTED)
        if not self._channels:
            self._add()

    def _add(self) -> int:
        """Opens a channel and returns its index. Requires _lock."""
        channel = self._open_channel()
        self._channels.append(channel)
        self._stubs.append(make_bulk_stub(channel))
        self._loans.append(0)
        return len(self._loans) - 1


class Headers:
    """The metadata of each call: the bearer token and the tenant, where there are any.

    Args:
        token: of ``Client``.
        tenant: of ``Client``.
        address: the server's.
        is_plain: whether the connection has no TLS.
        insecure_token: whether a token may go over such a connection to another machine.

    Raises:
        InvalidArgumentError: the token or the tenant cannot be sent, or everybody on the way could read the token. No
            error shows the token.
    """

    def __init__(
        self, token: TokenArgument, tenant: str | None, address: str, is_plain: bool, insecure_token: bool
    ) -> None:
        if token is None:
            token = os.environ.get(TOKEN_VARIABLE) or None
        if token is not None and is_plain and not insecure_token and not is_local(address):
            raise InvalidArgumentError(
                f"everybody on the way to {address} could read the token: use tls=True, or a path, or a TLS; "
                f"insecure_token=True sends the token nevertheless (token=, or {TOKEN_VARIABLE} of the environment)"
            )
        if tenant is not None:
            check_name("tenant", checked_text("tenant", tenant))
        self._tenant = () if tenant is None else (("sparseagg-tenant", tenant),)
        self._token: Callable[[], str] | None = token if callable(token) else None
        self._fixed = () if token is None or callable(token) else _bearer(token)

    def __call__(self) -> tuple[tuple[str, str], ...]:
        """Returns the metadata of a call that begins now. Raises what the caller's function raises."""
        return (*(self._fixed if self._token is None else _bearer(self._token())), *self._tenant)


def _bearer(token: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(token, str) or re.fullmatch("[ -~]*", token) is None:
        raise InvalidArgumentError("a token is a string of printable ASCII, without the end of a line; this one is not")
    return (("authorization", f"Bearer {token}"),)
