"""Deadlines and pauses: how long calls may take, and what errors say when the time is over.

A deadline is a time on ``time.monotonic``'s clock; None is no limit.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from typing import Any

import grpc

from sparseagg._internal.base.arguments import checked_seconds
from sparseagg._internal.client.retry import RetryPolicy
from sparseagg.errors import DeadlineExceededError, UnavailableError

__all__ = [
    "call_seconds",
    "checked_deadline",
    "earliest",
    "is_own_deadline",
    "named_if_late",
    "no_answer",
    "pause_after",
    "poll_pause",
    "poll_seconds",
    "raise_if_late",
    "seconds_to",
]

# How long one WaitRound asks the server to wait; the server may wait less.
_LONG_POLL_S = 30.0

# The least pause between long polls that the server answers at once, whatever the retry policy is.
_LEAST_PAUSE_S = 0.01

# The texts of gRPC's DEADLINE_EXCEEDED when the client's own timeout is over.
_OWN_DEADLINE = ("Deadline Exceeded", "Deadline exceeded", "")

# How long after its deadline a patient call still waits for an answer that may be on its way.
_GRACE_S = 5.0


def checked_deadline(timeout: Any) -> float | None:
    """Returns the deadline of a timeout that begins now; ``InvalidArgumentError`` if ``timeout`` is none."""
    length = checked_seconds("timeout", timeout)
    return None if length is None else time.monotonic() + length


def seconds_to(deadline: float | None) -> float:
    """Returns the seconds from now to the deadline, 0 if it has passed."""
    return math.inf if deadline is None else max(0.0, deadline - time.monotonic())


def earliest(*deadlines: float | None) -> float | None:
    """Returns the first of the deadlines; None if none of them is a limit."""
    return min((each for each in deadlines if each is not None), default=None)


def call_seconds(deadline: float | None, own: float | None = None, patient: bool = False) -> float | None:
    """Returns the timeout of one attempt at a call, None for no limit.

    Args:
        deadline: of the operation that the call is part of.
        own: deadline of the call itself, with all its attempts.
        patient: whether to wait beyond ``deadline`` for an answer that may be on its way.
    """
    # The grace is added to the deadline, so that consecutive calls share it.
    until = earliest(own, deadline + _GRACE_S if patient and deadline is not None else deadline)
    return None if until is None else seconds_to(until)


def pause_after(wait: float | None, deadline: float | None, patient: bool = False) -> tuple[float, bool]:
    """Returns how long to pause after a failed attempt, and whether another attempt follows.

    No attempt follows that would begin at the deadline: its error would hide the reason of the failed one.

    Args:
        wait: the wait before the next attempt; None: the failure is final.
        deadline: of all attempts.
        patient: whether an attempt may begin at the deadline nevertheless; see ``call_seconds``.
    """
    if wait is None:
        return 0.0, False
    left = seconds_to(deadline)
    return min(wait, left), wait < left or (patient and left > 0)


def poll_seconds(deadline: float | None) -> float:
    """Returns how long the next long poll asks the server to wait."""
    return min(_LONG_POLL_S, seconds_to(deadline))


def poll_pause(policy: RetryPolicy, seconds: float, begun: float) -> float:
    """Returns how long to pause after a long poll that the round's end did not answer.

    A server with a short --max-wait answers at once. Without a pause, the client would ask as fast as it answers.

    Args:
        policy: its first wait is the longest pause, or a hundredth of a second where that is longer.
        seconds: how long the poll asked the server to wait; the pause ends no later than this time.
        begun: when the poll was sent, on the monotonic clock.
    """
    pause = max(_LEAST_PAUSE_S, min(policy.initial, policy.maximum))
    return max(0.0, min(pause, begun + seconds - time.monotonic()))


@contextlib.contextmanager
def named_if_late(method: str, timeout: float | None) -> Iterator[None]:
    """Names the method in the ``DeadlineExceededError`` of a call whose own timeout, ``timeout`` seconds, is over.

    A DEADLINE_EXCEEDED with a text of the server's is about a limit of the server. That error passes unchanged.
    """
    try:
        yield
    except grpc.RpcError as error:
        if timeout is None or not is_own_deadline(error):
            raise
        error.__traceback__ = None  # as in wait_before_retry
        raise DeadlineExceededError(no_answer(method, timeout)) from None


def is_own_deadline(error: grpc.RpcError) -> bool:
    """Returns whether a call has failed since its own timeout is over, rather than by the word of a server."""
    return error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and (error.details() or "") in _OWN_DEADLINE


def no_answer(method: str, timeout: float) -> str:
    """Returns the text for a call that has had no answer within its time."""
    return f"{method} has had no answer within {round(timeout, 3):g} s"


@contextlib.contextmanager
def raise_if_late(deadline: float | None, what: str) -> Iterator[None]:
    """Turns the error of a call without an answer into a ``DeadlineExceededError`` if the deadline has passed.

    Args:
        deadline: of the operation.
        what: the beginning of the text: what has not happened in time.
    """
    try:
        yield
    except (DeadlineExceededError, UnavailableError) as error:
        if seconds_to(deadline) > 0:
            raise
        raise DeadlineExceededError(f"{what}: {error}") from error
