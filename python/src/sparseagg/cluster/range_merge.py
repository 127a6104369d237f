"""The merge of a cluster's round: ranges of keys, merged in threads or in actors of Ray."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import importlib
import itertools
import threading
import time
from collections.abc import Sequence
from typing import Any, Union

import numpy as np

from sparseagg._internal.base.foreign import Array
from sparseagg._internal.client.blocking_client import Client, Round
from sparseagg._internal.client.retry import call_seconds
from sparseagg._internal.local.aggregate import aggregate
from sparseagg._internal.results.info import RoundInfo
from sparseagg._internal.results.result import Result, TensorResult
from sparseagg._internal.spec.options import DTYPES, ORDER_OPS
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg.cluster.exchange import count_keys
from sparseagg.cluster.plan import KeyRange, Plan, cuts_of_rows, is_cut, on_all, ranges_of_counts
from sparseagg.cluster.published import Part, RangeStore, name_of_clients
from sparseagg.cluster.reduce import KnownRounds, RangeTask, check_homes, merges_on_arrival, range_spec, run_task
from sparseagg.errors import DeadlineExceededError, FailedPreconditionError, RoundFailedError, UnavailableError


class RangeMerge:
    """Merges a round of all servers of a cluster, by ranges of keys. ``times``: seconds of the steps of the latest
    ``run``: "seal", "plan" and "reduce".
    """

    def __init__(self, name: str, spec: RoundSpec, rounds: Sequence[Round], plan: Plan, executor: Executor) -> None:
        self._name, self._spec, self._rounds, self._plan, self._executor = name, spec, rounds, plan, executor
        self.times: dict[str, float] = {}

    def run(
        self, only: frozenset[str] | None, message_bytes: Sequence[int] | None, deadline: float | None
    ) -> tuple[list[RoundInfo], dict[str, list[TensorResult | Part]], RangeStore | None]:
        """Seals and merges; raises as ``ClusterRound.finish``.

        ``message_bytes``: the largest messages of the servers, where ranges of results that are not cut go; None: all
        ranges come to the caller. Returns the servers' rounds; the results of each tensor's ranges, in order of keys:
        of none if there is nothing; and where they went.
        """
        begun = time.monotonic()
        infos = on_all(self._rounds, lambda opened: opened.seal(call_seconds(deadline)))
        if only is None:
            infos = self._withdraw_surplus(infos)
        total = sum(info.num_submissions for info in infos)
        if only is not None:
            there = {each.client_id for part in on_all(self._rounds, Round.submissions) for each in part}
            missing = sorted(only - there)
            if missing:
                raise FailedPreconditionError(f"{self._name} has no submission of client {missing[0]!r}")
            total = len(only)
        self._check_number(total)
        sealed = time.monotonic()
        self.times = {"seal": sealed - begun, "plan": 0.0, "reduce": 0.0}
        if total == 0:
            result_of_nothing(self._name, self._spec)
        else:
            self._check_weights(only)
        if only is None and all(merges_on_arrival(self._spec, tensor) for tensor in self._spec.tensors):
            listed = on_all(self._rounds, lambda opened: [each.client_id for each in opened.submissions()])
            check_homes(self._name, listed)  # partials do not tell whose submissions they have
        counts, created = zip(*((info.num_submissions, info.create_time) for info in infos))
        planned_ranges = {
            tensor.name: self._ranges(tensor, infos, only, deadline) if total else ([], True)
            for tensor in self._spec.tensors
        }
        plans = {name: ranges for name, (ranges, _) in planned_ranges.items()}
        store = None if message_bytes is None else RangeStore.of(name_of_clients(only), plans, message_bytes)
        planned = time.monotonic()
        tasks = []
        for tensor in self._spec.tensors:
            # Which rows are cut is known when all ranges are there: such a result is written afterwards.
            own = None if is_cut(self._spec, tensor) else store
            of_one, (ranges, any_order) = range_spec(self._spec, tensor), planned_ranges[tensor.name]
            tasks += [
                RangeTask(self._name, created, of_one, keys, counts, self._plan, only, own, number, any_order)
                for number, keys in enumerate(ranges)
            ]
        done = iter(self._executor.run(tasks, deadline))
        parts = {tensor.name: [next(done) for _ in plans[tensor.name]] for tensor in self._spec.tensors}
        self.times.update(plan=planned - sealed, reduce=time.monotonic() - planned)
        return infos, parts if total or store else {}, store

    def _withdraw_surplus(self, infos: list[RoundInfo]) -> list[RoundInfo]:
        """Withdraws what is beyond ``max_submissions``, the same in each coordinator; returns the rounds of then."""
        most = self._spec.max_submissions

        def is_out(found: tuple[Round, str]) -> bool:
            opened, client_id = found
            try:
                opened.withdraw(client_id)
            except FailedPreconditionError:  # merged: it is within its server's share
                return False
            return True  # also if another coordinator was quicker

        while most and sum(info.num_submissions for info in infos) > most:
            listed = [(opened, each.client_id) for opened in self._rounds for each in opened.submissions()]
            listed.sort(key=lambda found: hashlib.sha256(f"{self._name}/{found[1]}".encode()).digest())
            infos = on_all(self._rounds, Round.refresh)  # after the list, so that two coordinators withdraw no more
            surplus = max(0, sum(info.num_submissions for info in infos) - most)
            if not list(itertools.islice(filter(is_out, listed), surplus)):
                break
            infos = on_all(self._rounds, Round.refresh)
        return infos

    def _check_weights(self, only: frozenset[str] | None) -> None:
        """Fails where nobody has a weight, so that a dense tensor would have no key left; as one server does."""
        for tensor in self._spec.tensors:
            how = self._spec.aggregation_of(tensor)
            divides = how.op == "coordinate_mean" or how.op in ORDER_OPS
            if tensor.layout != "dense" or how.weighting != "by_weight" or not divides:
                continue
            listed = [each for part in on_all(self._rounds, Round.submissions) for each in part]
            if not any(each.weight for each in listed if only is None or each.client_id in only):
                text = f"tensor {tensor.name!r}: the weights of all submissions add up to 0, so there is no {how.op}"
                raise RoundFailedError(f"{self._name} failed: FAILED_PRECONDITION: {text}", "failed")
            return

    def _check_number(self, total: int) -> None:
        least, most = self._spec.min_submissions, self._spec.max_submissions
        if total < least:
            reason = f"closed with {total} submissions, below min_submissions {least}"
            raise RoundFailedError(f"{self._name} failed: FAILED_PRECONDITION: {reason}", "failed")
        if most is not None and total > most:
            reason = f"the servers have {total} submissions, beyond max_submissions {most}"
            raise RoundFailedError(f"{self._name} failed: RESOURCE_EXHAUSTED: {reason}", "failed")

    def _ranges(
        self, tensor: TensorSpec, infos: Sequence[RoundInfo], only: frozenset[str] | None, deadline: float | None
    ) -> tuple[list[KeyRange], bool]:
        """Returns the ranges of a tensor's keys, about equally large, from counts of the keys that were submitted.

        And whether servers may send the keys of a submission in any order.
        """
        if tensor.layout == "dense":
            num_keys = tensor.num_rows * sum(info.num_submissions for info in infos)
            return cuts_of_rows(tensor.num_rows, self._number_of_ranges(tensor, num_keys)), True
        # A count of what is merged on arrival merges it, and then nobody can be left out.
        if self._plan.ranges == 1 or (only is not None and merges_on_arrival(self._spec, tensor)):
            return [(0, None)], True

        def counted(bits: int, within: tuple[int, list[int]] | None) -> Array:
            how: dict[str, Any] = {"bits": bits, "within": within, "timeout": call_seconds(deadline)}
            found: Array = np.sum(on_all(self._rounds, lambda opened: count_keys(opened, tensor.name, **how)), axis=0)
            return found

        most = self._number_of_ranges(tensor, sum(info.num_tuples for info in infos))
        return ranges_of_counts(counted, tensor.num_rows, most, lambda keys: self._number_of_ranges(tensor, keys))

    def _number_of_ranges(self, tensor: TensorSpec, num_keys: int) -> int:
        """Returns how many ranges a tensor has, whose submissions have so many keys."""
        limit, width, how = self._plan.memory_limit, tensor.row_width, self._spec.aggregation_of(tensor)
        if merges_on_arrival(self._spec, tensor):
            # A partial has sums of 8 or 16 bytes, counts and weights. It is held as it came, as rows, and combined.
            num_keys = min(num_keys, (tensor.num_rows or num_keys) * len(self._rounds))
            return self._plan.number_of_ranges(num_keys * (20 + 16 * width), None if limit is None else limit // 6)
        found = self._plan.number_of_ranges(num_keys * (8 + width * DTYPES[tensor.dtype]))
        if limit is None:
            return found
        # Half of the limit is for the result of a range and the largest submission. A reducer folds submissions before
        # it reads others, but for order statistics. Rows have a key, count and weight, sums and moments.
        held = num_keys if how.op in ORDER_OPS else min(num_keys, tensor.num_rows or num_keys)
        return max(found, self._plan.number_of_ranges(held * (24 + 16 * width), limit // 4))


def result_of_nothing(name: str, spec: RoundSpec) -> Result:
    """Returns the result of a round without submissions, or raises ``RoundFailedError``."""
    alone = dataclasses.replace(spec, result_ttl=None)
    try:
        return aggregate({}, alone)
    except FailedPreconditionError as error:
        raise RoundFailedError(f"{name} failed: {error.code.name}: {error}", "failed") from None


_RETRIES = 10  # of a range, when its actor has died: such a range may need more memory than a node has


class LocalExecutor:
    """Merges ranges in threads of this process, over borrowed clients of each server.

    ``run`` returns the results in the order of the tasks, or raises the error of the first one. At ``deadline`` it
    raises ``DeadlineExceededError``; ranges that are being merged then end by themselves.
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
