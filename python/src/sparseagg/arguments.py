"""What arguments of any call have to be, and how errors show those that are not."""

from __future__ import annotations

import datetime
import math
import numbers
import operator
from typing import Any, SupportsFloat, Union

import numpy as np

from sparseagg.errors import InvalidArgument

__all__ = ["Timeout", "checked_integer", "checked_number", "checked_seconds", "checked_text", "is_number", "shown"]

_FOR_EVER_S = 1e9  # some thirty years

_MOST_SHOWN = 200

Timeout = Union[SupportsFloat, datetime.timedelta, None]  # seconds, of any type of number; None: for ever


def checked_text(what: str, text: Any) -> str:
    """Returns ``text``, which can be sent.

    Args:
        what: it is, with an article, for the error.
        text: any value.

    Raises:
        InvalidArgument: it is no string, or has no form in UTF-8.
    """
    if not isinstance(text, str):
        raise InvalidArgument(f"{what} is a string, not {shown(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # lone surrogates, as in names of files that are not in UTF-8
        raise InvalidArgument(f"{what} is a string that UTF-8 can encode, not {shown(text)}") from error
    return text


def checked_integer(what: str, value: Any, least: int, most: int) -> int:
    """Returns an integer of any type (numpy's, too) that is within these bounds.

    Args:
        what: it is, and within which bounds, for the error.
        value: any.
        least: that it may be.
        most: likewise.

    Raises:
        InvalidArgument: it is none.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        raise InvalidArgument(f"{what}, not {shown(value)}")
    return number


def is_number(value: Any) -> bool:
    """Whether this is a real number, of Python's or numpy's; bools are not meant, nor numpy's lengths of time.

    Those pass for integers, of a unit of their own.
    """
    return isinstance(value, numbers.Real) and not isinstance(value, (bool, np.timedelta64))


def checked_number(what: str, value: Any) -> float:
    """Returns a number of any type that is not negative; infinity for what is beyond float64.

    Raises:
        InvalidArgument: it is none.
    """
    try:
        number = float(value) if is_number(value) else math.nan
    except OverflowError:
        number = math.inf if value > 0 else -math.inf
    if math.isnan(number) or number < 0:
        raise InvalidArgument(f"{what}, not {shown(value)}")
    return number


def checked_seconds(what: str, seconds: Any) -> float | None:
    """Returns a time in seconds; None for ever, which infinity means, too, and what gRPC's clock does not reach.

    Raises:
        InvalidArgument: it is neither a number nor a timedelta, or negative.
    """
    if seconds is None:
        return None
    if isinstance(seconds, datetime.timedelta):
        seconds = seconds.total_seconds()
    number = checked_number(f"{what} is a number of seconds, a timedelta, or None for ever", seconds)
    return number if number < _FOR_EVER_S else None


def shown(value: Any) -> str:
    """Returns ``repr(value)``, or its beginning where it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python prints no integers of thousands of digits
        return f"{type(value).__name__} with more digits than Python prints"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
