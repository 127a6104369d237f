"""The gRPC channels of one client."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from sparseagg._internal.wire.bulk_stub import make_bulk_stub
from sparseagg.errors import CancelledError, FailedPreconditionError, SparseaggError

__all__ = ["ChannelPool"]

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
        """Lends the stub of the first channel, for calls with short messages.

        Raises:
            FailedPreconditionError: the pool is closed, or was closed before the last use of the stub.
            CancelledError: the pool was closed during a call.
        """
        self._begin_anew_in_child()
        with self._lock:
            self._have_one()
        with self._open():
            yield self._stubs[0]

    @contextlib.contextmanager
    def least_busy(self) -> Iterator[Any]:
        """Lends the stub of the channel with the fewest loans; of a new channel if all have loans and there is room.

        Raises:
            FailedPreconditionError, CancelledError: as ``first``.
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
