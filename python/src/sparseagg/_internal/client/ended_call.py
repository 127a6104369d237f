"""The true status of a call that ends while the client is sending. Remove when grpc#36066 is fixed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import grpc

__all__ = ["EndedCall", "broke_while_sending", "finished"]

T = TypeVar("T")

# For the server's status, which comes without any further message.
_LONGEST_WAIT_S = 0.1


class EndedCall:
    """A call of grpc.aio, and the status that the server has given it.

    When a server ends a call before it has read all messages, the next message cannot be sent any more. grpc.aio (up to
    1.85 at least) then reports an INTERNAL of the client's own, whether the server's status has arrived before (the
    INTERNAL replaces it) or arrives a moment later (it replaces the INTERNAL).
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self._status: tuple[Any, ...] | None = None
        call.add_done_callback(self._keep)

    async def error_instead_of(self, error: grpc.RpcError) -> grpc.RpcError:
        """Returns the error with the server's status, or ``error`` if that is the one, or if there is no other.

        A call that has no other status is repeated (see ``wait_before_retry``).
        """
        call, self._call = self._call, None
        if not broke_while_sending(error):
            return error
        until = time.monotonic() + _LONGEST_WAIT_S
        while self._status is None and time.monotonic() < until:
            await asyncio.sleep(0.001)
            self._keep(call)
        return error if self._status is None else grpc.aio.AioRpcError(*self._status)

    def _keep(self, call: Any) -> None:
        code = finished(call.code())
        if self._status is None and code not in (grpc.StatusCode.OK, grpc.StatusCode.INTERNAL):
            trailing_metadata = finished(call.trailing_metadata())
            self._status = (code, grpc.aio.Metadata(), trailing_metadata, finished(call.details()))


def broke_while_sending(error: grpc.RpcError) -> bool:
    """Returns whether ``error`` is the INTERNAL that grpc.aio puts in the place of a call's true status."""
    if error.code() is not grpc.StatusCode.INTERNAL:
        return False
    debug = getattr(error, "debug_error_string", str)()
    return "execute_batch" in (debug or "")


def finished(operation: Coroutine[Any, Any, T]) -> T:
    """Returns the result of a coroutine that has nothing to wait for. Raises what the coroutine raises."""
    try:
        operation.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("an operation that has nothing to wait for has suspended")
