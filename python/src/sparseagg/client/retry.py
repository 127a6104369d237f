"""When to try again, and how long to wait before."""

from __future__ import annotations

import dataclasses
import random
import sys
from collections.abc import Iterator
from typing import Any

import grpc

from sparseagg.arguments import checked_integer, checked_number, shown
from sparseagg.errors import InvalidArgument, SparseaggError, error_of

__all__ = ["RetryPolicy", "checked_retry", "error_from_call", "wait_before_retry"]

_RETRIED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


@dataclasses.dataclass(frozen=True)
class RetryPolicy:
    """Exponential backoff with jitter, for calls that answer UNAVAILABLE or CANCELLED, or are to be repeated.

    An upload that the server has given up, since nothing of it came for upload_timeout, is begun anew.

    All calls are safe to repeat: what has arrived twice counts once, and a round that is gone at the second attempt to
    delete it was deleted by the first.

    Args:
        attempts: calls in all; 1 for no retries.
        initial: the first wait is up to this long, in seconds.
        multiplier: each following one up to this many times longer.
        maximum: no wait is longer, in seconds.
    """

    attempts: int = 8
    initial: float = 0.1
    multiplier: float = 2.0
    maximum: float = 5.0

    def __post_init__(self) -> None:
        # What is kept are Python's own numbers: clocks take no fractions, and numpy's do not pass for floats either.
        attempts = checked_integer("attempts is a number of calls from 1 on", self.attempts, 1, sys.maxsize)
        object.__setattr__(self, "attempts", attempts)
        for name in ("initial", "multiplier", "maximum"):
            number = checked_number(f"{name} is a number from 0 on", getattr(self, name))
            object.__setattr__(self, name, number)

    def waits(self) -> Iterator[float]:
        """Yields the wait before each retry, ``attempts`` − 1 of them."""
        bound = min(self.maximum, self.initial)
        for _ in range(self.attempts - 1):
            # At least half of it, so that a restarting server is never asked in a burst.
            yield bound * random.uniform(0.5, 1.0)  # allow(randomness): clients must not wait in step
            bound = min(self.maximum, bound * self.multiplier)


def checked_retry(retry: Any) -> RetryPolicy | None:
    """Returns ``retry``; ``InvalidArgument`` if it is neither a policy nor None."""
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise InvalidArgument(f"retry is a RetryPolicy, or None for the default, not {shown(retry)}")
    return retry


def wait_before_retry(error: grpc.RpcError, waits: Iterator[float]) -> float | None:
    """Returns how long to wait before a failed call is tried again.

    None: it is not. A connection that breaks is UNAVAILABLE, or what ``_broke_while_sending`` finds. A server that
    stops may cancel what is under way; this client does so by disconnecting alone, which ``Channels`` tells apart. A
    server whose memory for messages under way is taken for the moment answers RESOURCE_EXHAUSTED and says when to come
    back; without that, what is exhausted stays so. One that has given up a stream of which nothing came, since this
    machine slept or its network stalled, answers DEADLINE_EXCEEDED and names the limit, upload_timeout.

    The error loses its traceback. That holds frames, of which one may hold the error; then the update, or the part of a
    result, and whatever the callers' frames have, would stay until Python looks for cycles.

    Args:
        error: of the call.
        waits: of the policy; the next one is taken.
    """
    error.__traceback__ = None
    asked = 0.0
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        delays = [value for key, value in error.trailing_metadata() or () if key == "grpc-retry-pushback-ms"]
        if not delays or not delays[0].isdigit():
            return None
        asked = int(delays[0]) / 1e3
    elif error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        if "upload_timeout" not in (error.details() or ""):  # the caller's own
            return None
    elif error.code() not in _RETRIED and not _broke_while_sending(error):
        return None
    wait = next(waits, None)
    return None if wait is None else max(wait, asked)


def _broke_while_sending(error: grpc.RpcError) -> bool:
    """Whether the call ended, by a break or by an answer, while grpc.aio was handing it another message.

    That race hides the call's true status behind an INTERNAL of the client's own (grpc#36066). Asked again, the server
    gives the answer, if it had one.
    """
    if error.code() is not grpc.StatusCode.INTERNAL:
        return False
    debug = getattr(error, "debug_error_string", str)()
    return "execute_batch" in (debug or "")


def error_from_call(error: grpc.RpcError, is_late: bool = False) -> SparseaggError:
    """Returns the typed error of a failed call; ``is_late``: it would be tried again, but its time has run out."""
    return error_of(grpc.StatusCode.DEADLINE_EXCEEDED if is_late else error.code(), error.details() or "")
