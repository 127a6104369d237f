"""What arguments of any call have to be, and how errors show those that are not."""

from __future__ import annotations

from typing import Any

from sparseagg.errors import InvalidArgument

__all__ = ["checked_text", "shown"]

_MOST_SHOWN = 200


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


def shown(value: Any) -> str:
    """Returns ``repr(value)``, or its beginning where it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python prints no integers of thousands of digits
        return f"{type(value).__name__} with more digits than Python prints"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
