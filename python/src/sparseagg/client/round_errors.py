"""Errors about the state of a round, which name the round."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sparseagg.errors import FailedPrecondition, RoundFailed
from sparseagg.info import RoundInfo

__all__ = ["naming_round", "raise_if_failed", "raise_if_not_ended"]


def raise_if_failed(info: RoundInfo, cause: Exception | None = None) -> None:
    """Raises ``RoundFailed`` if the round has ended without a result."""
    if info.state in ("failed", "cancelled"):
        reason = f": {info.state_reason}" if info.state_reason else ""
        raise RoundFailed(f"{info.name} {info.state}{reason}", info.state) from cause


def raise_if_not_ended(info: RoundInfo, cause: Exception) -> None:
    """Raises ``FailedPrecondition`` if the round has no result yet."""
    if not info.ended:
        raise FailedPrecondition(f"{info.name} is {info.state}, and has a result only when it has ended") from cause


@contextlib.contextmanager
def naming_round(name: str) -> Iterator[None]:
    """Names the round in the server's ``FailedPrecondition`` "the round is STATE…", with ``RoundInfo``'s state name."""
    try:
        yield
    except FailedPrecondition as error:
        before, begin, rest = str(error).partition("the round is ")
        if before or not begin:
            raise
        state, colon, reason = rest.partition(":")
        raise FailedPrecondition(f"{name} is {state.lower()}{colon}{reason}") from error
