"""Errors about the state of a round, which name the round."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from sparseagg._internal.base.plain_text import plain
from sparseagg._internal.results.info import RoundInfo
from sparseagg.errors import FailedPreconditionError, RoundClosedError, RoundFailedError

__all__ = ["naming_round", "raise_if_failed"]

_NOT_OPEN = re.compile(r"the round is (?P<state>[A-Z]+)(?P<reason>(: .*)?)", re.DOTALL)


def raise_if_failed(info: RoundInfo, cause: Exception | None = None) -> None:
    """Raises ``RoundFailedError`` if the round has ended without a result."""
    if info.state in ("failed", "cancelled"):
        reason = f": {info.state_reason}" if info.state_reason else ""
        raise RoundFailedError(plain(f"{info.name} {info.state}{reason}"), info.state) from cause


@contextlib.contextmanager
def naming_round(name: str) -> Iterator[None]:
    """Turns the error for a call that came after the close into a ``RoundClosedError`` that names the round.

    The proto promises the form of that error's message.
    """
    try:
        yield
    except FailedPreconditionError as error:
        match = _NOT_OPEN.fullmatch(str(error))
        if match is None:
            raise
        state = match["state"].lower()
        raise RoundClosedError(f"{name} is {state}{match['reason']}", state) from error
