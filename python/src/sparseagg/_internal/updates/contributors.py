"""Updates as callers give them: client ids, weights, and collections of updates."""

from __future__ import annotations

import contextlib
import numbers
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, SupportsIndex, Union

from sparseagg._internal.base import bfloat16
from sparseagg._internal.base.arguments import checked_text, is_number, shown
from sparseagg._internal.base.float_environment import default_float_environment
from sparseagg._internal.updates.arrays import to_numpy
from sparseagg.errors import InvalidArgumentError, OutOfRangeError, ResourceExhaustedError, error_of

__all__ = [
    "ClientId",
    "checked_client_id",
    "checked_updates",
    "checked_weight",
    "named_updates",
    "naming_client",
    "split_weight",
]


ClientId = Union[str, SupportsIndex]  # an integer, also NumPy's, stands for its decimal text


def checked_client_id(client_id: Any) -> str:
    """Returns a client's id: a string, or the decimal text of an integer. The round checks its length.

    Raises:
        InvalidArgumentError: ``client_id`` is neither a string nor an integer.
    """
    if not isinstance(client_id, str):
        if not (is_number(client_id) and isinstance(client_id, numbers.Integral)):
            raise InvalidArgumentError(f"a client id must be a string or an integer, got {shown(client_id)}")
        try:
            client_id = str(int(client_id))
        except ValueError:  # Python prints no integers of thousands of digits
            raise InvalidArgumentError(f"a client id must be at most 256 bytes long, got {shown(client_id)}") from None
    return checked_text("a client id", client_id)


def checked_weight(weight: Any) -> float | None:
    """Returns a weight as a float; ``InvalidArgumentError`` if it is no number. The round checks its value."""
    if weight is None:
        return None
    number = weight
    if _is_scalar_array(weight):
        number = to_numpy(weight)
        if number.dtype.kind in "iuf" or bfloat16.is_bfloat16(number.dtype):
            number = float(number)
    if not is_number(number):
        raise InvalidArgumentError(f"a weight must be a number, got {shown(weight)}")
    if type(number) is float:
        return number
    try:
        with default_float_environment():  # a longdouble is rounded
            return float(number)
    except OverflowError:
        raise InvalidArgumentError(f"a weight must be a number that float64 can hold, got {shown(weight)}") from None


def checked_updates(updates: Any) -> Any:
    """Returns ``updates``; ``InvalidArgumentError`` if they are neither a mapping nor an iterable."""
    if hasattr(updates, "__aiter__"):
        raise InvalidArgumentError(
            "updates is no asynchronous iterator; [update async for update in updates] is a list"
        )
    if isinstance(updates, (str, bytes)) or not isinstance(updates, Iterable):
        raise InvalidArgumentError(
            f"updates must be a mapping from client ids to updates, or an iterable of updates, got {shown(updates)}"
        )
    return updates


def split_weight(update: Any) -> tuple[Any, Any]:
    """Returns an update and its weight from a pair (update, weight); a weight of None for an update alone.

    A tuple of two may also be (keys, rows). The types of its parts decide.
    """
    if not isinstance(update, tuple) or len(update) != 2:
        return update, None
    first, second = update
    # A mapping or a pair (keys, rows) cannot be keys, so the second part is a weight.
    if isinstance(second, numbers.Real) or isinstance(first, Mapping) or _is_pair_of_arrays(first):
        return update
    # An array without axes is a weight, unless the first part is one key: then it may be the key's row.
    if _is_scalar_array(second) and not _has_one_entry(first):
        return update
    return update, None


def _is_scalar_array(thing: Any) -> bool:
    """Returns whether this is an array or tensor without axes. Numbers of NumPy are not: they are numbers."""
    if isinstance(thing, numbers.Real):
        return False
    try:
        return len(thing.shape) == 0
    except Exception:  # any kind of error that the thing's library raises
        return False


def _is_pair_of_arrays(thing: Any) -> bool:
    """Returns whether this is a pair (keys, rows), and not a tuple of two keys."""
    return isinstance(thing, tuple) and len(thing) == 2 and not is_number(thing[0])


def _has_one_entry(keys: Any) -> bool:
    if isinstance(keys, list):
        return len(keys) == 1
    return bool(getattr(keys, "shape", None) == (1,))


def named_updates(updates: Any) -> Iterator[tuple[str, Any]]:
    """Yields pairs (client id, update or (update, weight)) in the order of ``updates``.

    Raises:
        InvalidArgumentError: a key of a mapping is no client id.
    """
    if isinstance(updates, Mapping):
        return ((checked_client_id(client_id), update) for client_id, update in updates.items())
    return ((f"{position:020}", update) for position, update in enumerate(updates))


@contextlib.contextmanager
def naming_client(client_id: Any) -> Iterator[None]:
    """Names the client in the refusal of an update, in the engine's form, unless the text begins with a client."""
    try:
        yield
    except (InvalidArgumentError, OutOfRangeError, ResourceExhaustedError) as error:
        if str(error).startswith("client "):
            raise
        raise error_of(error.code, f"client {client_id!r}: {error}") from error
