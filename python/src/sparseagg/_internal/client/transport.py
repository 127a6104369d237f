"""How a client waits: blocking, or in an event loop. Every operation is written once, as a coroutine over either."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import inspect
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, Union, overload

import grpc

from sparseagg.errors import CancelledError, FailedPreconditionError

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    P = ParamSpec("P")

T = TypeVar("T")
U = TypeVar("U")

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
        code = run(call.code())
        if self._status is None and code not in (grpc.StatusCode.OK, grpc.StatusCode.INTERNAL):
            trailing_metadata = run(call.trailing_metadata())
            self._status = (code, grpc.aio.Metadata(), trailing_metadata, run(call.details()))


def broke_while_sending(error: grpc.RpcError) -> bool:
    """Returns whether ``error`` is the INTERNAL that grpc.aio puts in the place of a call's true status."""
    # A blocking call has its true status. Where it could not read an answer, it would wait for this string for ever.
    if not isinstance(error, grpc.aio.AioRpcError) or error.code() is not grpc.StatusCode.INTERNAL:
        return False
    return "execute_batch" in (error.debug_error_string() or "")


def read_by(call: Any, message: T | None) -> T:
    """Returns a message of a call of grpc.aio, where None is one that could not be read: then it ends the call.

    Raises:
        grpc.aio.AioRpcError: that of a blocking call which could not read a message.
    """
    if message is not None:
        return message
    call.cancel()
    nothing = grpc.aio.Metadata()
    raise grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, nothing, nothing, "Exception deserializing response!")


def run(operation: Coroutine[Any, Any, T]) -> T:
    """Returns the result of a coroutine that blocks, over a ``BlockingTransport``, or has nothing to wait for."""
    try:
        operation.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("an operation that has nothing to wait for has suspended")


class BlockingTransport:
    """Waits by blocking the calling thread. Thread-safe: a transport of this kind has no state."""

    def open_channel(
        self, address: str, credentials: grpc.ChannelCredentials | None, options: list[tuple[str, Any]]
    ) -> Any:
        """Returns a gRPC channel; ``credentials`` of None make a plain one."""
        if credentials is None:
            return grpc.insecure_channel(address, options)
        return grpc.secure_channel(address, credentials, options)

    async def close_channel(self, channel: Any) -> None:
        """Closes a channel. Its calls under way end with CANCELLED."""
        channel.close()

    def check_thread(self) -> None:
        """Raises ``FailedPreconditionError`` if the caller may not use this transport; any thread may use this one."""

    async def answer(self, call: Any) -> Any:
        """Returns the answer of a call with one answer; ``call`` is what the method of the stub has returned."""
        return call

    async def read(self, call: Any, add: Callable[[Any], None]) -> None:
        """Passes every message of a call with a stream of answers to ``add``."""
        for message in call:
            add(message)

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        time.sleep(seconds)

    async def convert(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Returns what ``function`` returns, which may compute for long. An event loop goes on meanwhile."""
        return function(*arguments, **named)

    async def wait(self, future: concurrent.futures.Future[Any], seconds: float | None) -> None:
        """Waits until another thread has set the future, which runs, or for some seconds; None: without limit."""
        concurrent.futures.wait([future], seconds)

    async def alongside(self, work: Awaitable[T], beat: Callable[[], Coroutine[Any, Any, bool]], every: float) -> T:
        """Returns what ``work`` returns. Meanwhile awaits ``beat`` every so many seconds, until it returns False."""
        ended = threading.Event()

        def repeat() -> None:
            while not ended.wait(every) and run(beat()):
                pass

        thread = threading.Thread(target=repeat, daemon=True)
        thread.start()
        try:
            return await work
        finally:
            ended.set()
            thread.join()

    async def attempt(self, operation: Awaitable[T]) -> T:
        """Runs an operation that ends with ``errors.CancelledError`` if the client is closed meanwhile."""
        return await operation


class AsyncioTransport:
    """Waits in the event loop that uses it first. The methods are those of ``BlockingTransport``."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def open_channel(
        self, address: str, credentials: grpc.ChannelCredentials | None, options: list[tuple[str, Any]]
    ) -> Any:
        if credentials is None:
            return grpc.aio.insecure_channel(address, options)
        return grpc.aio.secure_channel(address, credentials, options)

    async def close_channel(self, channel: Any) -> None:
        await channel.close()

    def check_thread(self) -> None:
        """Raises ``FailedPreconditionError`` in any event loop but the first: channels of grpc.aio belong to one."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        if self._loop is not loop:
            raise FailedPreconditionError("this client is in use in another event loop; make one in each")

    async def answer(self, call: Any) -> Any:
        ended = EndedCall(call)
        try:
            return read_by(call, await call)
        except grpc.RpcError as error:
            raise await ended.error_instead_of(error) from None

    async def read(self, call: Any, add: Callable[[Any], None]) -> None:
        ended = EndedCall(call)
        try:
            async for message in call:
                add(read_by(call, message))
        except grpc.RpcError as error:
            raise await ended.error_instead_of(error) from None

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def convert(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Returns what ``function`` returns, from another thread."""

        def converted() -> T:
            try:
                return function(*arguments, **named)
            except StopIteration as error:  # of a caller's mapping; a future that is given one never ends
                raise RuntimeError("an update raised StopIteration") from error

        return await asyncio.to_thread(converted)

    async def wait(self, future: concurrent.futures.Future[Any], seconds: float | None) -> None:
        # No thread waits: those of the loop's executor are few, and another call may have to end the wait.
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.wrap_future(future), seconds)

    async def alongside(self, work: Awaitable[T], beat: Callable[[], Coroutine[Any, Any, bool]], every: float) -> T:
        async def repeat() -> None:
            await asyncio.sleep(every)
            while await beat():
                await asyncio.sleep(every)

        beating = asyncio.create_task(repeat())
        try:
            return await work
        finally:
            beating.cancel()

    async def attempt(self, operation: Awaitable[T]) -> T:
        """Runs an operation in a task of its own, to tell its cancellation from the caller's.

        Closing a channel cancels the channel's calls, which then raise CancelledError. A caller that saw this error
        would take itself for cancelled, and so would its task.
        """
        (answer,) = await asyncio.gather(operation, return_exceptions=True)
        if isinstance(answer, asyncio.CancelledError):
            raise CancelledError("the call was cancelled, since this client was closed")
        try:
            if isinstance(answer, BaseException):
                raise answer
            return answer
        finally:
            del answer  # a cycle of error and frame would keep the update until Python looks for cycles


Transport = Union[BlockingTransport, AsyncioTransport]


@overload
def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]: ...


@overload
def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], into: Callable[[T], U]
) -> Callable[Concatenate[Any, P], U]: ...


def blocking(method: Callable[..., Coroutine[Any, Any, Any]], into: Callable[[Any], Any] | None = None) -> Any:
    """Returns a method that runs ``method`` of the object's ``_inner``, and passes what it returns through ``into``."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            answer = run(method(self._inner, *args, **kwargs))
        except KeyboardInterrupt:
            what = f"{type(self).__name__}.{method.__name__}"
            interrupt = KeyboardInterrupt(f"{what} was interrupted; what it asked of the server may go on")
            # What IPython shows in the place of its own, and gRPC's, frames.
            vars(interrupt)["_render_traceback_"] = lambda: [f"KeyboardInterrupt: {interrupt}"]
            raise interrupt from None
        return answer if into is None else into(answer)

    return call


@overload
def blocking_iterator(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Any, P], Iterator[T]]: ...


@overload
def blocking_iterator(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]], into: Callable[[T], U]
) -> Callable[Concatenate[Any, P], Iterator[U]]: ...


def blocking_iterator(method: Callable[..., AsyncIterator[Any]], into: Callable[[Any], Any] | None = None) -> Any:
    """The same for a method that yields."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        items: Any = method(self._inner, *args, **kwargs)
        while True:
            try:
                item = run(items.__anext__())
            except StopAsyncIteration:
                return
            yield item if into is None else into(item)

    signature = inspect.signature(method)
    returns = signature.return_annotation.replace("AsyncIterator", "Iterator")
    vars(call)["__signature__"] = signature.replace(return_annotation=returns)  # for help()
    return call


def with_arguments_of(
    method: Callable[Concatenate[Any, P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Decorates a method that hands all its arguments on to another one, whose signature it has."""

    def decorate(own: Callable[..., None]) -> Any:
        signature: Any = inspect.signature(method)
        vars(own)["__signature__"] = signature
        return own

    return decorate
