"""Where ranges are merged: in actors of Ray, which ``pip install sparseagg[ray]`` brings."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from sparseagg._internal.client.blocking_client import Client
from sparseagg._internal.results.result import TensorResult
from sparseagg.cluster.reduce import RangeTask, reduce_range
from sparseagg.errors import UnimplementedError

__all__ = ["RayExecutor"]


class RayExecutor:
    """Merges ranges in a pool of actors, which stay warm between rounds.

    Ray restarts an actor that dies, and repeats its range: a range is a pure function of sealed rounds. Results come
    through Ray's object store.

    Args:
        clients: of each server; each actor gets copies, which connect by themselves.
        reducers: number of actors, each of one CPU. They are spread over the nodes, as far as there are some.

    Raises:
        UnimplementedError: Ray is not installed.
    """

    def __init__(self, clients: Sequence[Client], reducers: int) -> None:
        try:
            self._ray: Any = importlib.import_module("ray")
            pool: Any = importlib.import_module("ray.util")
        except ImportError as error:
            raise UnimplementedError(f'executor="ray" needs Ray: pip install "sparseagg[ray]" ({error})') from error
        self._owns_ray = not self._ray.is_initialized()
        if self._owns_ray:
            self._ray.init(include_dashboard=False, log_to_driver=False)
        options = {"num_cpus": 1, "max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": "SPREAD"}
        actor = self._ray.remote(**options)(_Reducer)
        self._actors = [actor.remote(list(clients)) for _ in range(reducers)]
        self._pool = pool.ActorPool(self._actors)

    def run(self, tasks: Sequence[RangeTask]) -> list[TensorResult]:
        """Merges ranges; returns the results in their order, or raises the error of the first one that failed."""
        found: list[TensorResult | Exception] = list(
            self._pool.map(lambda actor, task: actor.reduce.remote(task), tasks)
        )
        for each in found:
            if isinstance(each, Exception):
                raise each
        return [each for each in found if isinstance(each, TensorResult)]

    def close(self) -> None:
        """Ends the actors, and Ray if this executor has started it."""
        for actor in self._actors:
            self._ray.kill(actor)
        if self._owns_ray:
            self._ray.shutdown()


class _Reducer:
    """An actor that merges ranges, one at a time, with connections of its own."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self._clients = clients

    def reduce(self, task: RangeTask) -> TensorResult | Exception:
        """Returns the result or the error of a range: Ray would wrap an error that is raised."""
        try:
            return reduce_range(task, [client.get_round(task.round_name) for client in self._clients])
        except Exception as error:  # which is the caller's
            return error
