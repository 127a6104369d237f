"""Where ranges are merged: in threads of this process, or in actors of Ray."""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib
import threading
from collections.abc import Sequence
from typing import Any, Union

from sparseagg._internal.client.blocking_client import Client
from sparseagg._internal.client.retry import call_seconds
from sparseagg._internal.results.result import TensorResult
from sparseagg.cluster.published import Part
from sparseagg.cluster.reduce import KnownRounds, RangeTask, run_task
from sparseagg.errors import DeadlineExceededError, UnavailableError

_RETRIES = 10  # of a range, when its actor has died: such a range may need more memory than a node has


class LocalExecutor:
    """Merges ranges in threads of this process.

    ``run`` returns the results in the order of the tasks, or raises the error of the first one. At ``deadline`` it
    raises ``DeadlineExceededError``; ranges that are being merged then end by themselves.

    Args:
        clients: of each server; borrowed.
    """

    def __init__(self, clients: Sequence[Client], reducers: int) -> None:
        self._clients = clients
        self._known = KnownRounds()
        self._pool = concurrent.futures.ThreadPoolExecutor(reducers, thread_name_prefix="sparseagg-reducer")

    def run(self, tasks: Sequence[RangeTask], deadline: float | None = None) -> list[TensorResult | Part]:
        futures = [self._pool.submit(run_task, task, self._clients, self._known) for task in tasks]
        late = concurrent.futures.wait(futures, call_seconds(deadline)).not_done
        for future in late:
            future.cancel()
        if late:
            raise DeadlineExceededError(f"{len(late)} of {len(tasks)} ranges are not merged")
        return [future.result() for future in futures]

    def close(self) -> None:
        self._pool.shutdown()


class RayExecutor:
    """Merges ranges in a pool of actors, which stay warm between rounds.

    Ray restarts an actor that dies, and repeats its range: a range is a pure function of sealed rounds. Results come
    through Ray's object store, and so do the clients of the actors: arguments of an actor, with a token in them, would
    stay in Ray's GCS and its database.

    Args:
        clients: of each server; each actor gets copies, which connect by themselves.
        reducers: number of actors. They are spread over the nodes, as far as there are some.
        cpus, gpus: of each actor, as Ray counts them, also a part of one.
    """

    def __init__(self, ray: Any, clients: Sequence[Client], reducers: int, cpus: float, gpus: float) -> None:
        self._ray = ray
        actor = ray.remote(
            num_cpus=cpus, num_gpus=gpus, max_restarts=-1, max_task_retries=_RETRIES, scheduling_strategy="SPREAD"
        )(_Reducer)
        self._lent = ray.put(list(clients))  # kept, since an actor that starts again reads it
        self._actors = [actor.remote([self._lent]) for _ in range(reducers)]
        self._pool = ray.util.ActorPool(self._actors)
        self._lock = threading.Lock()  # a pool is for one thread at a time

    def run(self, tasks: Sequence[RangeTask], deadline: float | None = None) -> list[TensorResult | Part]:
        found: list[TensorResult | Part | Exception] = []
        with self._lock:
            while self._pool.has_next():  # of a run that was late
                with contextlib.suppress(Exception):
                    self._pool.get_next(timeout=0, ignore_if_timedout=True)
            for task in tasks:
                self._pool.submit(lambda actor, task: actor.reduce.remote(task), task)
            try:
                found += [self._pool.get_next(timeout=call_seconds(deadline)) for _ in tasks]
            except TimeoutError:
                raise DeadlineExceededError(f"not all of {len(tasks)} ranges are merged") from None
            except self._ray.exceptions.RayActorError as error:
                text = f"a reducer has died {1 + _RETRIES} times over a range: does its node have memory for one?"
                raise UnavailableError(text) from error
        for each in found:
            if isinstance(each, Exception):
                raise each
        return [each for each in found if not isinstance(each, Exception)]

    def close(self) -> None:
        for actor in self._actors:
            with contextlib.suppress(Exception):  # whoever owns Ray has ended it
                self._ray.kill(actor)


Executor = Union[LocalExecutor, RayExecutor]


class _Reducer:
    """An actor that merges ranges, one at a time, with connections of its own."""

    def __init__(self, lent: Sequence[Any]) -> None:
        self._lent = lent
        self._clients: Sequence[Client] = ()
        self._known = KnownRounds()

    def reduce(self, task: RangeTask) -> TensorResult | Part | Exception:
        """Returns the result or the error of a range: Ray would wrap an error that is raised."""
        try:
            self._clients = self._clients or importlib.import_module("ray").get(self._lent[0])
            return run_task(task, self._clients, self._known)
        except Exception as error:  # which is the caller's
            return error
