"""The syntax of ids: the server's checks, with the server's texts.

proto/sparseagg/v1/aggregation.proto has the rules, and host/spec/ids.h the server's side.
"""

from __future__ import annotations

import re

from sparseagg.errors import InvalidArgumentError

__all__ = ["NAME", "check_name", "quoted_id"]

NAME = "[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"  # of a round, task, owner, tenant or credential
_NAME = re.compile(NAME)
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_MOST_ID_BYTES = 256


def check_name(field: str, text: str) -> None:
    """Checks an id that is part of URLs, headers and file names: of a round, task, owner, tenant or credential.

    Raises:
        InvalidArgumentError: it does not match ``NAME``; the message names ``field``.
    """
    if not _NAME.fullmatch(text):
        raise InvalidArgumentError(
            f"{field} {quoted_id(text)} is not 1 to 128 of A-Z a-z 0-9 . _ - that begin with a letter, a digit or _"
        )


def quoted_id(text: str) -> str:
    """Returns the text in quotes, for an error; "of N bytes" for a long one, and one with control characters."""
    num_bytes = len(text.encode())
    return f"of {num_bytes} bytes" if num_bytes > _MOST_ID_BYTES or _CONTROL.search(text) else f"'{text}'"
