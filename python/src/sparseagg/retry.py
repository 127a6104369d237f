"""When to try again, and how long to wait before."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

import grpc

from sparseagg.errors import SparseaggError, error_of

__all__ = ["RetryPolicy", "error_from_call"]


@dataclasses.dataclass(frozen=True)
class RetryPolicy:
    """Exponential backoff with jitter, for calls that answer UNAVAILABLE. All calls are safe to repeat.

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

    def waits(self) -> Iterator[float]:
        """Yields the wait before each retry, ``attempts`` − 1 of them."""
        bound = self.initial
        for _ in range(self.attempts - 1):
            # At least half of it, so that a restarting server is never asked in a burst.
            yield bound * random.uniform(0.5, 1.0)  # allow(randomness): clients must not wait in step
            bound = min(self.maximum, bound * self.multiplier)


def error_from_call(error: grpc.RpcError) -> SparseaggError:
    """Returns the typed error of a failed call."""
    return error_of(error.code(), error.details() or "")
