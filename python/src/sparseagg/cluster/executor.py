"""Where ranges are merged: in threads of this process."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Sequence
from typing import Protocol

from sparseagg._internal.client.blocking_client import Client
from sparseagg._internal.results.result import TensorResult
from sparseagg.cluster.published import Part
from sparseagg.cluster.reduce import RangeTask, run_task

__all__ = ["Executor", "LocalExecutor"]


class Executor(Protocol):
    """Merges ranges. ``run`` returns the results in the order of the tasks, or raises the error of the first one."""

    def run(self, tasks: Sequence[RangeTask]) -> list[TensorResult | Part]: ...

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

    def run(self, tasks: Sequence[RangeTask]) -> list[TensorResult | Part]:
        futures = [self._pool.submit(run_task, task, self._clients) for task in tasks]
        concurrent.futures.wait(futures)
        return [future.result() for future in futures]

    def close(self) -> None:
        self._pool.shutdown()
