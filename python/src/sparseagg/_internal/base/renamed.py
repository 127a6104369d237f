"""Names that 0.1 had, each an error that tells the present one."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, TypeVar

__all__ = ["ENCODINGS", "ROUND", "SIZES", "refuse_module_name", "renamed"]

_Class = TypeVar("_Class", bound=type)

SIZES = {"dimension": "num_rows", "width": "row_width"}
ENCODINGS = {"encoding": "key_encoding", "values": "value_encoding"}
ROUND = {"round": "in_round"}


def renamed(names: dict[str, str]) -> Callable[[_Class], _Class]:
    """Returns a decorator of classes: former names of arguments and attributes raise an error that has the new name.

    Arguments are those of the constructor, and of methods that have an argument of the present name.

    Args:
        names: the present name by the former one.
    """

    def decorate(cls: _Class) -> _Class:
        for name, method in list(vars(cls).items()):
            if inspect.isfunction(method):
                parameters = inspect.signature(method).parameters
                old = {former for former, new in names.items() if name == "__init__" or new in parameters}
                if old.difference(parameters):
                    setattr(cls, name, _refusing(method, {each: names[each] for each in old.difference(parameters)}))
        find = getattr(cls, "__getattr__", None)

        def get(self: Any, name: str) -> Any:
            """Raises ``AttributeError``; for a former name, with the present one."""
            if name in names:
                raise AttributeError(_message(name, names))
            if find is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return find(self, name)

        get.__name__ = "__getattr__"  # for help()
        setattr(cls, "__getattr__", get)  # noqa: B010  # the type checker must not see it: it would allow any name
        return cls

    return decorate


def _refusing(function: Callable[..., Any], names: dict[str, str]) -> Callable[..., Any]:
    """Returns the function, with an error for former names of its arguments."""

    def check(given: dict[str, Any]) -> None:
        for name in names:
            if name in given:
                raise TypeError(_message(name, names))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        check(kwargs)
        return function(*args, **kwargs)

    @functools.wraps(function)
    async def wait(*args: Any, **kwargs: Any) -> Any:
        check(kwargs)
        return await function(*args, **kwargs)

    return wait if inspect.iscoroutinefunction(function) else call


def refuse_module_name(module: str, name: str, names: dict[str, str]) -> Any:
    """For a module's ``__getattr__``.

    Raises:
        ImportError: the name is a former one. ``from module import name`` would hide the text of an AttributeError.
        AttributeError: the module never had the name.
    """
    if name in names:
        raise ImportError(_message(name, names), name=module)
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


def _message(name: str, names: dict[str, str]) -> str:
    return f"{name!r} is called {names[name]!r} now"
