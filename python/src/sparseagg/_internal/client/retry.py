"""Retries: which failed calls are repeated, and how long to wait before."""

from __future__ import annotations

import dataclasses
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from sparseagg._internal.base.arguments import checked_integer, checked_number, shown
from sparseagg._internal.base.credentials import TOKEN_VARIABLE
from sparseagg._internal.client.ended_call import broke_while_sending
from sparseagg._internal.client.obstacles import Obstacle
from sparseagg.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    SparseaggError,
    UnavailableError,
    error_of,
)

__all__ = ["Retries", "RetryPolicy", "checked_retry", "error_from_call", "wait_before_retry"]

_RETRIED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


@dataclasses.dataclass(frozen=True)
class RetryPolicy:
    """Exponential backoff with jitter, for calls that fail with UNAVAILABLE or CANCELLED, or that the server delays.

    An upload that the server has discarded, because no chunk came for upload_timeout, begins again. No retry begins
    after the time of the call: see ``Client``'s ``timeout``.

    All calls are safe to repeat: a submission counts once however often it arrives, and a round that a second attempt
    to delete does not find was deleted by the first attempt.

    Args:
        attempts: number of calls in all; 1 for no retries.
        initial: longest first wait, in seconds.
        multiplier: factor between the longest wait of one retry and that of the next.
        maximum: longest wait of any retry, in seconds.
    """

    attempts: int = 8
    initial: float = 0.1
    multiplier: float = 2.0
    maximum: float = 5.0

    def __post_init__(self) -> None:
        # Kept as Python's own numbers: clocks take no fractions, and not every number of NumPy is a float.
        attempts = checked_integer("attempts must be a number of calls from 1 on", self.attempts, 1, sys.maxsize)
        object.__setattr__(self, "attempts", attempts)
        for name in ("initial", "multiplier", "maximum"):
            number = checked_number(f"{name} must be a number from 0 on", getattr(self, name))
            object.__setattr__(self, name, number)

    def waits(self) -> Iterator[float]:
        """Yields the wait before each retry, in seconds: ``attempts`` − 1 waits."""
        bound = min(self.maximum, self.initial)
        for _ in range(self.attempts - 1):
            # At least half of the bound, so that many clients do not ask a restarting server in a burst.
            yield bound * random.uniform(0.5, 1.0)  # allow(randomness): clients must not wait in step
            bound = min(self.maximum, bound * self.multiplier)


class Retries:
    """The waits between the attempts of one operation. An operation that makes progress starts with all of them again.

    Args:
        policy: the policy.
        progress: returns a number that grows when an attempt has made progress.
    """

    def __init__(self, policy: RetryPolicy, progress: Callable[[], int] = lambda: 0) -> None:
        self._policy = policy
        self._progress = progress
        self._before = progress()
        self._waits = policy.waits()

    def wait_after(self, error: grpc.RpcError) -> float | None:
        """Returns the wait before the next attempt, in seconds; None: ``error`` is final."""
        if self._progress() > self._before:
            self._waits, self._before = self._policy.waits(), self._progress()
        return wait_before_retry(error, self._waits)


def checked_retry(retry: Any) -> RetryPolicy | None:
    """Returns ``retry``; ``InvalidArgumentError`` if it is neither a policy nor None."""
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise InvalidArgumentError(f"retry must be a RetryPolicy, or None for the default, got {shown(retry)}")
    return retry


def wait_before_retry(error: grpc.RpcError, waits: Iterator[float]) -> float | None:
    """Returns the wait before a failed call is repeated, in seconds; None: the call is not repeated.

    These errors are temporary:

    - UNAVAILABLE: the connection broke, or there is no server.
    - CANCELLED: a server that stops has cancelled the call. (``ChannelPool`` handles the calls that this client
      cancels by disconnecting.)
    - INTERNAL, if ``broke_while_sending``.
    - RESOURCE_EXHAUSTED with a suggested retry delay: the server's in-flight memory is full at the moment. Without the
      delay, a limit is exceeded, and will be again.
    - DEADLINE_EXCEEDED that names upload_timeout: the server has discarded a stream on which no chunk came for so long,
      because this machine slept or the network stalled.

    Args:
        error: of the call. It loses its traceback: the traceback's frames hold the update, or a part of the result, and
            may hold the error, so that all these would live until Python's search for cycles.
        waits: of the policy; the next wait is taken.
    """
    error.__traceback__ = None
    asked = 0.0
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        delays = [value for key, value in error.trailing_metadata() or () if key == "grpc-retry-pushback-ms"]
        if not delays or not delays[0].isdigit():
            return None
        asked = int(delays[0]) / 1e3
    elif error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        if "upload_timeout" not in (error.details() or ""):  # the timeout is the caller's own
            return None
    elif error.code() not in _RETRIED and not broke_while_sending(error):
        return None
    wait = next(waits, None)
    return None if wait is None else max(wait, asked)


def home_of_answer(error: grpc.RpcError) -> str | None:
    """Returns the address of the server that takes the call instead (ClusterSpec of the API); None: there is none."""
    return next((value for key, value in error.trailing_metadata() or () if key == "sparseagg-home"), None)


def error_from_call(error: grpc.RpcError, text: str, obstacle: Obstacle | None = None) -> SparseaggError:
    """Returns the typed error of a failed call, with this text; ``obstacle`` has kept the call from its server."""
    if error.code() is grpc.StatusCode.UNAUTHENTICATED and "0 headers 'authorization'" in text:
        text += f"; token=…, or {TOKEN_VARIABLE} in the environment, sends it (--token-file FILE for commands)"
    found = error_of(error.code(), text)
    if isinstance(found, UnavailableError):
        found.cannot_pass = obstacle is not None and not obstacle.is_absence
    if isinstance(found, FailedPreconditionError):
        found.home = home_of_answer(error)
    return found
