"""Methods of the blocking classes, made of those of their asyncio twins: each has the twin's signature and text."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Callable, TypeVar, overload

from sparseagg._internal.client.transport import run

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    P = ParamSpec("P")

__all__ = ["blocking", "blocking_iterator"]

T = TypeVar("T")
U = TypeVar("U")


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
        answer = run(method(self._inner, *args, **kwargs))
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
