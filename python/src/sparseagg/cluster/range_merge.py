"""The merge of a cluster's round: its ranges of keys planned, merged by an executor, and collected."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparseagg._internal.base.foreign import Array
from sparseagg._internal.client.blocking_client import Round
from sparseagg._internal.client.retry import call_seconds
from sparseagg._internal.local.aggregate import aggregate
from sparseagg._internal.results.info import RoundInfo
from sparseagg._internal.results.result import Result, TensorResult
from sparseagg._internal.spec.options import DTYPES, ORDER_OPS
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg.cluster.exchange import count_keys
from sparseagg.cluster.executor import Executor
from sparseagg.cluster.join import is_cut
from sparseagg.cluster.plan import KeyRange, Plan, cuts_of_rows, on_all, ranges_of_counts
from sparseagg.cluster.published import Part, RangeStore, name_of_clients
from sparseagg.cluster.reduce import RangeTask, check_homes, merges_on_arrival, range_spec
from sparseagg.errors import FailedPreconditionError, RoundFailedError


class RangeMerge:
    """Merges a round of all servers of a cluster, by ranges of keys.

    Attributes:
        times: seconds of the steps of the latest ``run``: "seal", "plan" and "reduce".
    """

    def __init__(self, name: str, spec: RoundSpec, rounds: Sequence[Round], plan: Plan, executor: Executor) -> None:
        self._name, self._spec, self._rounds, self._plan, self._executor = name, spec, rounds, plan, executor
        self.times: dict[str, float] = {}

    def run(
        self, only: frozenset[str] | None, message_bytes: Sequence[int] | None, deadline: float | None
    ) -> tuple[list[RoundInfo], dict[str, list[TensorResult | Part]], RangeStore | None]:
        """Seals and merges.

        Args:
            only: the clients whose submissions count; None: all.
            message_bytes: the largest messages of the servers, where ranges of results that are not cut go; None: all
                ranges come to the caller.
            deadline: on ``time.monotonic``'s clock; None: that of the clients' calls.

        Returns:
            The servers' rounds; the results of each tensor's ranges, in order of keys: of none if there is nothing; and
            where they went.

        Raises: as ``ClusterRound.finish``.
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
