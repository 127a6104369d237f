"""Checks of arguments, and the form in which errors show them."""

from __future__ import annotations

import datetime
import difflib
import math
import numbers
import operator
import re
from collections.abc import Iterable
from typing import Any, SupportsFloat, Union

import numpy as np

from sparseagg.errors import InvalidArgumentError

END_OF_KEYS = 1 << 64  # where the range of all keys ends; 0 on the wire

_FOR_EVER_S = 1e9  # thirty years

_MOST_SHOWN = 200

Timeout = Union[SupportsFloat, datetime.timedelta, None]  # seconds, a number of any type; None: no limit


def checked_text(what: str, text: Any) -> str:
    """Returns ``text``; ``InvalidArgumentError``, which names ``what``, for no string that UTF-8 can encode."""
    if not isinstance(text, str):
        raise InvalidArgumentError(f"{what} must be a string, got {shown(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # lone surrogates, as in file names that are not UTF-8
        raise InvalidArgumentError(f"{what} must be a string that UTF-8 can encode, got {shown(text)}") from error
    return text


def checked_integer(what: str, value: Any, least: int, most: int) -> int:
    """Returns an integer of any type, also NumPy's; ``InvalidArgumentError`` if it is none within the bounds.

    ``what`` is what the value is, and its bounds, for the error.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        raise InvalidArgumentError(f"{what}, got {shown(value)}")
    return number


def is_number(value: Any) -> bool:
    """Returns whether this is a real number of Python or NumPy.

    Bools are not, nor NumPy's timedelta64, which is an integer in a unit of its own.
    """
    return isinstance(value, numbers.Real) and not isinstance(value, (bool, np.timedelta64))


def checked_number(what: str, value: Any, least: float = 0.0, most: float = math.inf) -> float:
    """Returns a number of any type within bounds, infinity for one beyond float64; ``InvalidArgumentError`` for others.

    ``what`` is what the value is, and its bounds, for the error.
    """
    try:
        number = float(value) if is_number(value) else math.nan
    except OverflowError:
        number = math.inf if value > 0 else -math.inf
    if not least <= number <= most:
        raise InvalidArgumentError(f"{what}, got {shown(value)}")
    return number


def checked_seconds(what: str, seconds: Any) -> float | None:
    """Returns a length of time in seconds; None for no limit: for None, infinity, and what gRPC's clock cannot reach.

    Raises ``InvalidArgumentError``, which names ``what``, for no number or timedelta of 0 or more.
    """
    if seconds is None:
        return None
    if isinstance(seconds, datetime.timedelta):
        seconds = seconds.total_seconds()
    number = checked_number(f"{what} must be a number of seconds, a timedelta, or None for ever", seconds)
    return number if number < _FOR_EVER_S else None


def shown(value: Any) -> str:
    """Returns ``repr(value)`` for an error, cut where it is long."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # Python prints no integers of thousands of digits
        return f"{type(value).__name__} with more digits than Python prints"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def checked_key_range(keys: Any) -> tuple[int, int]:
    """Returns begin and end of a range, 2^64 at most."""
    try:
        begin, end = keys
        if isinstance(begin, bool) or isinstance(end, bool):
            raise TypeError
        begin = operator.index(begin)
        end = END_OF_KEYS if end is None else operator.index(end)
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            f"keys must be a pair of integers (begin, end), end may be None, got {shown(keys)}"
        ) from None
    if not (0 <= begin <= END_OF_KEYS and 0 <= end <= END_OF_KEYS):
        raise InvalidArgumentError(f"keys must be a range within [0, 2^64), got {shown(keys)}")
    if end < begin:
        raise InvalidArgumentError(f"the key range ends at {end}, before it begins at {begin}")
    return begin, end


def did_you_mean(word: Any, known: Iterable[str]) -> str:
    """Returns the end of an error's text that names the nearest of the ``known`` words, or "" if none is near."""
    word = {"average": "mean", "avg": "mean"}.get(word, word) if isinstance(word, str) else ""
    nearest = difflib.get_close_matches(word, list(known), 1)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""


NAME = "[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"  # of a round, task, owner, tenant or credential
_NAME = re.compile(NAME)
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_MOST_ID_BYTES = 256


def check_name(field: str, text: str) -> None:
    """Raises ``InvalidArgumentError`` for an id that does not match ``NAME``: it is part of URLs, headers and file
    names.
    """
    if not _NAME.fullmatch(text):
        raise InvalidArgumentError(
            f"{field} {quoted_id(text)} is not 1 to 128 of A-Z a-z 0-9 . _ - that begin with a letter, a digit or _"
        )


def quoted_id(text: str) -> str:
    """Returns the text in quotes, for an error; "of N bytes" for a long one, and one with control characters."""
    num_bytes = len(text.encode())
    return f"of {num_bytes} bytes" if num_bytes > _MOST_ID_BYTES or _CONTROL.search(text) else f"'{text}'"
