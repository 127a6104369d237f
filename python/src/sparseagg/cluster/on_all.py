"""Calls of all servers at once."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Sequence
from typing import TypeVar

from sparseagg._internal.client.blocking_round import Round

__all__ = ["on_all"]

T = TypeVar("T")


def on_all(rounds: Sequence[Round], call: Callable[[Round], T]) -> list[T]:
    """Calls the rounds of all servers at once; returns the answers in order, or raises the error of the first one."""
    with concurrent.futures.ThreadPoolExecutor(len(rounds)) as pool:
        futures = [pool.submit(call, opened) for opened in rounds]
    return [future.result() for future in futures]
