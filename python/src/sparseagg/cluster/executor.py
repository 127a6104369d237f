"""Where ranges are merged: in threads of this process."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Sequence
from typing import Protocol

from sparseagg._internal.client.blocking_client import Client
from sparseagg._internal.results.result import TensorResult
from sparseagg.cluster.on_all import seconds_left
from sparseagg.cluster.published import Part
from sparseagg.cluster.reduce import RangeTask, run_task
from sparseagg.errors import DeadlineExceededError

__all__ = ["Executor", "LocalExecutor"]


class Executor(Protocol):
    """Merges ranges. ``run`` returns the results in the order of the tasks, or raises the error of the first one.

    At ``deadline`` it raises ``DeadlineExceededError``; ranges that are being merged then end by themselves.
    """

    def run(self, tasks: Sequence[RangeTask], deadline: float | None = None) -> list[TensorResult | Part]: ...

    def close(self) -> None: ...


class LocalExecutor:
    """Merges ranges in threads of this process.

    Args:
        clients: of each server; borrowed.
        reducers: number of threads.
    """

    def __init__(self, clients: Sequence[Client], reducers: int) -> None:
        self._clients = clients
        self._pool = concurrent.futures.ThreadPoolExecutor(reducers, thread_name_prefix="sparseagg-reducer")

    def run(self, tasks: Sequence[RangeTask], deadline: float | None = None) -> list[TensorResult | Part]:
        futures = [self._pool.submit(run_task, task, self._clients) for task in tasks]
        late = concurrent.futures.wait(futures, seconds_left(deadline)).not_done
        for future in late:
            future.cancel()
        if late:
            raise DeadlineExceededError(f"{len(late)} of {len(tasks)} ranges are not merged")
        return [future.result() for future in futures]

    def close(self) -> None:
        self._pool.shutdown()
