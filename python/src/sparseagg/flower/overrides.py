"""Which strategies can be combined with sparse updates: those that do not need the clients' single replies.

Replies are merged as they arrive, and their arrays are gone when the strategy aggregates. A strategy that takes a step
from the aggregate, as FedAdam, calls ``super().aggregate_train(…)`` for it. One that does not, as Bulyan,
computes from the single replies: given the merged model in their place, it would be the plain mean without a word.
"""

from __future__ import annotations

import inspect
import types
from typing import Any

import sparseagg as sa
from sparseagg._internal.base.arguments import shown

__all__ = ["check_goes_on"]

# Of Flower's strategies that have a counterpart.
_HINTS = {
    "FedMedian": "; sparseagg.flower.SparseFedMedian merges so itself",
    "FedTrimmedAvg": "; sparseagg.flower.SparseFedTrimmedAvg merges so itself",
    "MultiKrum": "; sparseagg.flower.SparseKrum and SparseMultiKrum choose so themselves",
}


def check_goes_on(strategy: type, method: str, ours: tuple[type, ...], base: type) -> None:
    """Refuses a strategy of which a class overrides a method without calling the next class's.

    Args:
        strategy: its class.
        method: such as "aggregate_train".
        ours: classes whose method is the merge.
        base: the class whose method the merge stands for; classes behind it do not matter.

    Raises:
        InvalidArgumentError: there is such a class; the message names it.
    """
    for cls in strategy.__mro__:
        if cls is base:
            return
        if cls not in ours and method in vars(cls) and method not in _names_used(cls, vars(cls)[method]):
            raise sa.InvalidArgumentError(
                f"{cls.__name__}.{method} needs the single updates of the clients, for it does not call "
                f"super().{method}(...), and sparse updates are merged as they arrive: {shown(strategy.__name__)} "
                f"cannot combine the two{_HINTS.get(cls.__name__, '')}"
            )


def _names_used(cls: type, function: Any) -> set[str]:
    """Returns the names that a method of a class uses, itself or in functions in it, around it, or beside it."""
    names: set[str] = set()
    waiting, seen = [function], set()
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        code = thing
        if not isinstance(thing, types.CodeType):
            thing = inspect.unwrap(getattr(thing, "__func__", thing))  # of a static or class method
            code = getattr(thing, "__code__", None)
            cells = [cell.cell_contents for cell in getattr(thing, "__closure__", None) or ()]
            waiting += [each for each in cells if isinstance(each, types.FunctionType)]
        if isinstance(code, types.CodeType):
            names.update(code.co_names)
            waiting += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
            waiting += [vars(cls)[name] for name in code.co_names if name in vars(cls)]
    return names
