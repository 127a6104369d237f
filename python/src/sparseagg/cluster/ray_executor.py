"""Where ranges are merged: in actors of Ray, which ``pip install "ray[data]"`` brings."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any

from sparseagg._internal.client.blocking_client import Client
from sparseagg._internal.results.result import TensorResult
from sparseagg.cluster.on_all import seconds_left
from sparseagg.cluster.published import Part
from sparseagg.cluster.reduce import RangeTask, run_task
from sparseagg.errors import DeadlineExceededError

__all__ = ["RayExecutor"]

_RETRIES = 10  # of a range, when its actor has died: such a range may need more memory than a node has


class RayExecutor:
    """Merges ranges in a pool of actors, which stay warm between rounds.

    Ray restarts an actor that dies, and repeats its range: a range is a pure function of sealed rounds. Results come
    through Ray's object store.

    Args:
        ray: the module, connected.
        clients: of each server; each actor gets copies, which connect by themselves.
        reducers: number of actors. They are spread over the nodes, as far as there are some.
        cpus: of each actor, as Ray counts them.
        gpus: of each actor, also a part of one.
    """

    def __init__(self, ray: Any, clients: Sequence[Client], reducers: int, cpus: float, gpus: float) -> None:
        self._ray = ray
        actor = ray.remote(
            num_cpus=cpus, num_gpus=gpus, max_restarts=-1, max_task_retries=_RETRIES, scheduling_strategy="SPREAD"
        )(_Reducer)
        self._actors = [actor.remote(list(clients)) for _ in range(reducers)]
        self._pool = ray.util.ActorPool(self._actors)
        self._lock = threading.Lock()  # a pool is for one thread at a time

    def run(self, tasks: Sequence[RangeTask], deadline: float | None = None) -> list[TensorResult | Part]:
        """Merges ranges; returns the results in their order, or raises the error of the first one that failed."""
        found: list[TensorResult | Part | Exception] = []
        with self._lock:
            while self._pool.has_next():  # of a run that was late
                with contextlib.suppress(Exception):
                    self._pool.get_next(timeout=0, ignore_if_timedout=True)
            for task in tasks:
                self._pool.submit(lambda actor, task: actor.reduce.remote(task), task)
            try:
                found += [self._pool.get_next(timeout=seconds_left(deadline)) for _ in tasks]
            except TimeoutError:
                raise DeadlineExceededError(f"not all of {len(tasks)} ranges are merged") from None
        for each in found:
            if isinstance(each, Exception):
                raise each
        return [each for each in found if not isinstance(each, Exception)]

    def close(self) -> None:
        """Ends the actors."""
        for actor in self._actors:
            with contextlib.suppress(Exception):  # whoever owns Ray has ended it
                self._ray.kill(actor)


class _Reducer:
    """An actor that merges ranges, one at a time, with connections of its own."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self._clients = clients

    def reduce(self, task: RangeTask) -> TensorResult | Part | Exception:
        """Returns the result or the error of a range: Ray would wrap an error that is raised."""
        try:
            return run_task(task, self._clients)
        except Exception as error:  # which is the caller's
            return error
