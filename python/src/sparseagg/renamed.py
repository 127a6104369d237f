"""Names that 0.1 had, each an error that tells the present one."""

from __future__ import annotations

import functools
from typing import Any, Callable, TypeVar

__all__ = ["SIZES", "renamed"]

_Class = TypeVar("_Class", bound=type)

SIZES = {"dimension": "num_rows", "width": "row_width"}


def renamed(names: dict[str, str]) -> Callable[[_Class], _Class]:
    """Returns a decorator of classes: former names of arguments and attributes raise an error that has the new name.

    Args:
        names: the present name by the former one.
    """

    def decorate(cls: _Class) -> _Class:
        create: Any = cls.__init__  # type: ignore[misc]  # of whatever signature
        find = getattr(cls, "__getattr__", None)

        @functools.wraps(create)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            for name in names.keys() & kwargs.keys():
                raise TypeError(_message(name, names))
            create(self, *args, **kwargs)

        def get(self: Any, name: str) -> Any:
            if name in names:
                raise AttributeError(_message(name, names))
            if find is None:
                raise AttributeError(f"{cls.__name__!r} object has no attribute {name!r}")
            return find(self, name)

        for method, replacement in (("__init__", init), ("__getattr__", get)):
            setattr(cls, method, replacement)
        return cls

    return decorate


def _message(name: str, names: dict[str, str]) -> str:
    return f"{name!r} is called {names[name]!r} now"
