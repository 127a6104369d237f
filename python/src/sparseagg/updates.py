"""Updates as callers give them: ids of clients, weights, and collections of updates."""

from __future__ import annotations

import contextlib
import numbers
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sparseagg import bfloat16
from sparseagg.arguments import checked_text, is_number, shown
from sparseagg.arrays import to_numpy
from sparseagg.errors import InvalidArgument

__all__ = [
    "checked_client_id",
    "checked_updates",
    "checked_weight",
    "named_updates",
    "naming_client",
    "split_weight",
]


def checked_client_id(client_id: Any) -> str:
    """Returns a client's id, which is a string; whether its length will do is for the round to say."""
    return checked_text("a client id", client_id)


def checked_weight(weight: Any) -> float | None:
    """Returns a weight as a float; whether its value makes sense is for the spec to say."""
    if weight is None:
        return None
    number = weight
    if _is_scalar_array(weight):
        number = to_numpy(weight)
        if number.dtype.kind in "iuf" or bfloat16.is_bfloat16(number.dtype):
            number = float(number)
    if not is_number(number):
        raise InvalidArgument(f"a weight is a number, not {shown(weight)}")
    try:
        return float(number)
    except OverflowError:
        raise InvalidArgument(f"a weight is a number that float64 can hold, not {shown(weight)}") from None


def checked_updates(updates: Any) -> Any:
    """Returns ``updates``; ``InvalidArgument`` if they cannot be gone through."""
    if hasattr(updates, "__aiter__"):
        raise InvalidArgument("updates is no asynchronous iterator; [update async for update in updates] is a list")
    if isinstance(updates, (str, bytes)) or not isinstance(updates, Iterable):
        raise InvalidArgument(
            f"updates is a mapping from client ids to updates, or an iterable of updates, not {shown(updates)}"
        )
    return updates


def split_weight(update: Any) -> tuple[Any, Any]:
    """Returns an update and its weight, from that pair or from an update alone, whose weight is None."""
    if not isinstance(update, tuple) or len(update) != 2:
        return update, None
    first, second = update
    # A mapping, or a pair (keys, rows), cannot be keys itself: what comes with it is meant as a weight.
    if isinstance(second, numbers.Real) or isinstance(first, Mapping) or _is_pair_of_arrays(first):
        return update
    # An array without axes may be the row of one key.
    if _is_scalar_array(second) and not _has_one_entry(first):
        return update
    return update, None


def _is_scalar_array(thing: Any) -> bool:
    """Whether this is an array or tensor without axes; numbers of numpy, which are numbers, are not meant."""
    if isinstance(thing, numbers.Real):
        return False
    try:
        return len(thing.shape) == 0
    except Exception:  # of whatever kind its library has
        return False


def _is_pair_of_arrays(thing: Any) -> bool:
    """Whether this is (keys, rows), and not a tuple of two keys."""
    return isinstance(thing, tuple) and len(thing) == 2 and not is_number(thing[0])


def _has_one_entry(keys: Any) -> bool:
    if isinstance(keys, list):
        return len(keys) == 1
    return bool(getattr(keys, "shape", None) == (1,))


def named_updates(updates: Any) -> Iterable[tuple[Any, Any]]:
    """Returns pairs of a client's id and its update, which may come with a weight, in the order of ``updates``."""
    if isinstance(updates, Mapping):
        return updates.items()
    return ((f"{position:020}", update) for position, update in enumerate(updates))


@contextlib.contextmanager
def naming_client(client_id: Any) -> Iterator[None]:
    """Puts the client's id before what is wrong with its update, as the engine does."""
    try:
        yield
    except InvalidArgument as error:
        raise InvalidArgument(f"client {client_id!r}: {error}") from error
