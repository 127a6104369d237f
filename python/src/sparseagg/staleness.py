"""Tables of staleness weights, for ``Client.create_stream``.

A commit of staleness τ counts with its weight times the table's entry τ. The entries are computed here, once, and sent
to the server as numbers: the powers of two C libraries differ, and the same commits must always give the same bits.

    stream = client.create_stream(spec, buffer=32, staleness=sa.staleness.polynomial(0.5), max_staleness=20)

================  =====================================================
``constant``      1
``polynomial``    (1 + τ)^−a
``hinge``         1 up to τ = b, and then 1 / (a·(τ − b) + 1)
================  =====================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import SupportsFloat, Union

from sparseagg._internal.base.arguments import checked_integer, checked_number
from sparseagg.errors import InvalidArgumentError

__all__ = ["Staleness", "constant", "hinge", "polynomial", "table"]

Staleness = Union[Callable[[int], float], Sequence[float]]
"""A function of the staleness, or the table itself."""


def constant() -> Callable[[int], float]:
    """Returns the weight 1 for every staleness: a late update counts as any other."""
    return lambda staleness: 1.0


def polynomial(a: SupportsFloat = 0.5) -> Callable[[int], float]:
    """Returns (1 + τ)^−a as a function of the staleness τ; ``a`` is 0 or more."""
    exponent = checked_number("a must be 0 or more", a)
    return lambda staleness: float((1.0 + staleness) ** -exponent)


def hinge(a: SupportsFloat = 10.0, b: SupportsFloat = 4.0) -> Callable[[int], float]:
    """Returns 1 for τ ≤ b, and 1 / (a·(τ − b) + 1) for a larger τ; both numbers are 0 or more."""
    slope, knee = checked_number("a must be 0 or more", a), checked_number("b must be 0 or more", b)
    return lambda staleness: 1.0 if staleness <= knee else 1.0 / (slope * (staleness - knee) + 1.0)


def table(staleness: Staleness | None, max_staleness: int | None) -> list[float]:
    """Returns the weights of staleness 0 to ``max_staleness``.

    Args:
        staleness: a function of the staleness, or the weights; None: 1 for each.
        max_staleness: the largest one that is taken. None: 20, or the end of a given table.

    Raises:
        InvalidArgumentError: a weight is not within 0 and 1, or ``max_staleness`` is not that of the table.
    """
    if max_staleness is not None:
        max_staleness = checked_integer("max_staleness must be from 0 to 65535", max_staleness, 0, 65535)
    if staleness is None:
        staleness = constant()
    if callable(staleness):
        weights = [staleness(each) for each in range((20 if max_staleness is None else max_staleness) + 1)]
    else:
        weights = list(staleness)
        if max_staleness is not None and max_staleness != len(weights) - 1:
            raise InvalidArgumentError(
                f"staleness has {len(weights)} weights, which is not max_staleness {max_staleness} and one"
            )
    numbers = [
        checked_number(f"the weight of staleness {i} must be from 0 to 1", weight, most=1.0)
        for i, weight in enumerate(weights)
    ]
    if not numbers:
        raise InvalidArgumentError("staleness has no weights; a table has one for staleness 0 at least")
    return numbers
