"""Calls of all servers at once, and how long they may last."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

__all__ = ["on_all", "seconds_left"]

S = TypeVar("S")
T = TypeVar("T")


def on_all(servers: Sequence[S], call: Callable[[S], T]) -> list[T]:
    """Calls the rounds or clients of all servers at once; returns the answers, or raises the error of the first one."""
    with concurrent.futures.ThreadPoolExecutor(max(1, len(servers))) as pool:
        futures = [pool.submit(call, server) for server in servers]
    return [future.result() for future in futures]


def seconds_left(deadline: float | None) -> float | None:
    """Returns the seconds from now to a deadline on ``time.monotonic``'s clock, at least 0; None without one."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())
