"""The connections of one client."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from sparseagg.errors import Cancelled, FailedPrecondition, SparseaggError
from sparseagg.v1 import aggregation_pb2_grpc as pb_grpc
from sparseagg.wire.message import send_chunk_messages

__all__ = ["Channels"]

_DISCONNECTED = "this client is disconnected"


class Channels:
    """Channels to one server, with a TCP connection each. Thread-safe.

    gRPC carries all calls of a channel over one connection, whose bytes are moved by one thread at a time, and whose
    pace on a long way is one window a round trip. So bulk that is sent or read at the same time goes over several.

    Args:
        open_channel: opens a channel; those with the same options must not share a connection.
        most: of them, at least one.
    """

    def __init__(self, open_channel: Callable[[], Any], most: int) -> None:
        self._open_channel = open_channel
        self._most = most
        self._lock = threading.Lock()
        self._closed = False
        # Guarded by _lock. None before the first loan: those of asyncio are of the event loop that they are opened in.
        self._channels: list[Any] = []
        self._stubs: list[Any] = []
        self._busy: list[int] = []

    @contextlib.contextmanager
    def first(self) -> Iterator[Any]:
        """Lends the stub of the first channel, for calls that carry little.

        Raises:
            FailedPrecondition: the channels are closed, or were while the stub was on loan, and it was used after that.
            Cancelled: they were closed during a call.
        """
        with self._lock:
            self._have_one()
        with self._open():
            yield self._stubs[0]

    @contextlib.contextmanager
    def least_busy(self) -> Iterator[Any]:
        """Lends the stub of the channel with the fewest loans; of a new one if all have some and there may be more.

        Raises:
            FailedPrecondition: as ``first`` does.
        """
        with self._lock:
            self._have_one()
            at = self._busy.index(min(self._busy))
            if self._busy[at] > 0 and len(self._busy) < self._most and not self._closed:
                at = self._add()
            self._busy[at] += 1
        try:
            with self._open():
                yield self._stubs[at]
        finally:
            with self._lock:
                self._busy[at] -= 1

    def close(self) -> list[Any]:
        """Returns all channels, for the caller to close: there will be no others."""
        with self._lock:
            self._closed = True
            return self._channels

    @contextlib.contextmanager
    def _open(self) -> Iterator[None]:
        """Refuses what is done with channels that are closed, and tells calls that closing them has ended."""
        if self._closed:
            raise FailedPrecondition(_DISCONNECTED)
        try:
            yield
        except grpc.RpcError as error:
            if not self._closed or error.code() is not grpc.StatusCode.CANCELLED:
                raise
            raise Cancelled(_DISCONNECTED) from error
        except (ValueError, grpc.aio.UsageError) as error:
            # What gRPC raises when a channel that is closed is told to call, which another thread may have done.
            if isinstance(error, SparseaggError) or not self._closed:
                raise
            raise FailedPrecondition(_DISCONNECTED) from error

    def _have_one(self) -> None:
        """Opens the first channel, unless there are to be none. Requires _lock."""
        if self._closed and not self._channels:
            raise FailedPrecondition(_DISCONNECTED)
        if not self._channels:
            self._add()

    def _add(self) -> int:
        channel = self._open_channel()
        stub = pb_grpc.AggregationStub(channel)  # type: ignore[no-untyped-call]
        send_chunk_messages(stub, channel)
        self._channels.append(channel)
        self._stubs.append(stub)
        self._busy.append(0)
        return len(self._busy) - 1
