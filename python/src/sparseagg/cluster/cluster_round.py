"""A round over several servers."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, SupportsFloat, TypeVar

import numpy as np

from sparseagg._internal.base.types import Update
from sparseagg._internal.client.blocking_client import Client
from sparseagg._internal.client.blocking_round import Round
from sparseagg._internal.local.engine import aggregate
from sparseagg._internal.results.certificates import Certificate, SubmissionReceipt
from sparseagg._internal.results.info import ClipSummary, RoundInfo, StageTime, Submission, TensorSummary, Timeline
from sparseagg._internal.results.result import Result, TensorResult
from sparseagg._internal.spec.options import DTYPES
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg._internal.updates.contributors import ClientId, checked_client_id
from sparseagg.cluster.certificate import RoundCertificate, certify
from sparseagg.cluster.executor import Executor
from sparseagg.cluster.join import join_ranges
from sparseagg.cluster.plan import KeyRange, cuts_of_rows, cuts_of_sample, home_of
from sparseagg.cluster.reduce import RangeTask, merges_on_arrival, range_spec, two_homes
from sparseagg.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, RoundFailedError

__all__ = ["ClusterRound", "cluster_spec", "server_spec"]

T = TypeVar("T")

_SAMPLE = 100_000  # keys of all tensors and servers: ranges are then balanced to about one in a hundred
_LEAST_BYTES = 1 << 20  # of a range, unless the caller wants smaller ones: below, a range costs more than it saves


@dataclasses.dataclass(frozen=True)
class Plan:
    """How many ranges of keys there are.

    Attributes:
        certificate_key: file of the key that signs certificates; None: there is none.
        ranges: of each tensor, whatever its size; None: as many as the next two ask for.
        reducers: that work at once.
        range_bytes: the most bytes of submissions that a range should have.
        threads: of the engine, for each range.
        memory_limit: of each reducer, as of ``RangeTask``.
    """

    ranges: int | None
    reducers: int
    range_bytes: int
    threads: int
    certificate_key: pathlib.Path | None = None
    memory_limit: int | None = None


def server_spec(spec: RoundSpec) -> RoundSpec:
    """Returns the spec of the servers' rounds, which do not close themselves.

    Raises:
        InvalidArgumentError: a field of the spec is not for clusters; the message says which one, and why.
    """
    if spec.deadline is not None:
        raise InvalidArgumentError(
            f"deadline {spec.deadline}: a cluster's round is ended by finish(), not by a deadline"
        )
    if spec.allow_export:
        raise InvalidArgumentError("allow_export: a cluster writes no bundles of its rounds; use one server")
    if spec.privacy is not None:
        raise InvalidArgumentError("privacy: servers export no submissions of such rounds; use one server")
    for tensor in spec.tensors:
        clip = spec.clip if tensor.clip is None or tensor.clip.l2 is None else tensor.clip
        if merges_on_arrival(spec, tensor):
            continue
        if spec.clips(tensor) and clip is not None and clip.l2 not in (None, np.inf) and clip.on_clip != "reject":
            raise InvalidArgumentError(
                f"tensor {tensor.name!r}: clip.l2 {clip.l2} scales updates to values that no server exports; "
                'on_clip="reject" refuses them instead'
            )
    return dataclasses.replace(spec, stay_open=True)


def cluster_spec(spec: RoundSpec) -> RoundSpec:
    """Returns the spec whose ``server_spec`` this is."""
    return dataclasses.replace(spec, stay_open=False)


class ClusterRound:
    """A round on all servers of a cluster, from the methods of ``Cluster``. Thread-safe.

    Life cycle: ``submit`` for each client; ``finish`` any number of times; ``delete``. The submissions stay on their
    servers until ``delete``, which the end of a ``with`` statement calls.

    Attributes:
        name: "rounds/{id}", on every server.
        spec: what to compute.
        times: seconds of the steps of the latest ``finish``: "seal", "plan", "reduce" and "join".
    """

    def __init__(self, clients: Sequence[Client], executor: Executor, plan: Plan, rounds: Sequence[Round]) -> None:
        self._clients = clients
        self._executor = executor
        self._plan = plan
        self._rounds = rounds
        self.name = rounds[0].name
        self.spec = cluster_spec(rounds[0].spec)
        self.times: dict[str, float] = {}
        self._certificate: RoundCertificate | None = None

    def __enter__(self) -> ClusterRound:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.delete()

    def home(self, client_id: ClientId) -> str:
        """Returns the address of the server that has the client's submission."""
        return self._clients[self._home_of(client_id)].address

    def submit(
        self, client_id: ClientId, update: Update, weight: SupportsFloat | None = None, **options: Any
    ) -> Submission:
        """Sends one client's update to the client's home server. Arguments and errors are those of ``Round.submit``.

        Raises:
            InvalidArgumentError: also for the empty id, which has no home.
        """
        return self._rounds[self._home_of(client_id)].submit(client_id, update, weight, **options)

    def withdraw(self, client_id: ClientId) -> bool:
        """Takes a client's submission out, as ``Round.withdraw``."""
        return self._rounds[self._home_of(client_id)].withdraw(client_id)

    def submissions(self) -> list[Submission]:
        """Returns the submissions on all servers, in ascending order of client ids."""
        listed = [each for part in self._on_all(Round.submissions) for each in part]
        return sorted(listed, key=lambda each: each.client_id.encode())

    def seal(self) -> None:
        """Freezes the round on all servers: no submission is added or withdrawn any more. Safe to repeat.

        Raises:
            RoundClosedError: a server's round is closed.
        """
        self._on_all(Round.seal)

    def finish(self) -> Result:
        """Seals the round, merges its submissions by ranges of keys, and returns the result.

        The result has the bits of one server with all submissions. It is held in the memory of this process. The round
        stays sealed: another call, of another process too (``Cluster.resume``), gives the same result.

        Raises:
            RoundFailedError: there are fewer than ``min_submissions`` or more than ``max_submissions``, or the merge
                failed, as on one server.
            RoundClosedError: a server's round is closed.
            FailedPreconditionError: a client has submissions on two servers.
            NotFoundError, UnavailableError: a server has lost the round, or cannot be reached. Nothing is merged then.
        """
        begun = time.monotonic()
        infos = self._on_all(Round.seal)
        total = sum(info.num_submissions for info in infos)
        self._check_number(total)
        sealed = time.monotonic()
        self.times = {"seal": sealed - begun, "plan": 0.0, "reduce": 0.0, "join": 0.0}
        if total == 0:
            alone = dataclasses.replace(self.spec, result_ttl=None)
            try:
                empty = aggregate({}, alone)
            except FailedPreconditionError as error:
                raise RoundFailedError(f"{self.name} failed: {error.code.name}: {error}", "failed") from None
            return Result(dict(empty.items()), self._info(infos, dict(empty.items()), {}))
        if all(merges_on_arrival(self.spec, tensor) for tensor in self.spec.tensors):
            self._check_homes()  # partials do not tell whose submissions they have
        counts = tuple(info.num_submissions for info in infos)
        plans = {tensor.name: self._ranges(tensor, infos) for tensor in self.spec.tensors}
        planned = time.monotonic()
        tasks = [
            RangeTask(
                self.name,
                range_spec(self.spec, tensor),
                keys,
                counts,
                self._plan.threads,
                self._plan.memory_limit,
            )
            for tensor in self.spec.tensors
            for keys in plans[tensor.name]
        ]
        parts = iter(self._executor.run(tasks))
        reduced = time.monotonic()
        tensors: dict[str, TensorResult] = {}
        cut: dict[str, int] = {}
        for tensor in self.spec.tensors:
            own = [next(parts) for _ in plans[tensor.name]]
            tensors[tensor.name], cut[tensor.name] = join_ranges(self.spec, tensor, own)
        self.times.update(plan=planned - sealed, reduce=reduced - planned, join=time.monotonic() - reduced)
        result = Result(tensors, self._info(infos, tensors, cut))
        if self.spec.certificate and self._plan.certificate_key is not None:
            self._certificate = certify(
                self.name, self.spec, result, self._rounds, self._on_all, self._plan.certificate_key
            )
        return result

    def certificate(self) -> Certificate:
        """Returns the certificate of the latest ``finish``, signed with the cluster's ``certificate_key``.

        It states what one server with all submissions would, if that has the same key; other are only times, "engine",
        and "homes", which names the rounds on the servers, so that their promises are accepted.

        Raises:
            FailedPreconditionError: ``finish`` was not called, the round's spec asks for no certificate, or the cluster
                has no ``certificate_key``.
        """
        if self._certificate is None:
            raise FailedPreconditionError(
                f"{self.name} has no certificate: finish() makes it, if the spec asks for one and the cluster has a "
                "certificate_key"
            )
        return self._certificate.certificate

    def receipt(self, client_id: ClientId) -> SubmissionReceipt:
        """Returns the receipt of a client's submission, as ``Round.receipt``; after ``finish`` with its proof."""
        receipt = self._rounds[self._home_of(client_id)].receipt(client_id)
        return receipt if self._certificate is None else self._certificate.complete(receipt)

    def cancel(self, reason: str = "") -> None:
        """Ends the round on all servers without a result, and discards its submissions."""
        self._on_all(lambda opened: opened.cancel(reason))

    def delete(self) -> None:
        """Removes the round from all servers that have it."""

        def remove(opened: Round) -> None:
            with contextlib.suppress(NotFoundError):  # removed before, or lost by a server that keeps nothing
                opened.delete()

        self._on_all(remove)

    def _home_of(self, client_id: ClientId) -> int:
        return home_of(checked_client_id(client_id), len(self._rounds))

    def _on_all(self, call: Callable[[Round], T]) -> list[T]:
        """Calls all servers at once; returns the answers in their order, or raises the error of the first one."""
        with concurrent.futures.ThreadPoolExecutor(len(self._rounds)) as pool:
            futures = [pool.submit(call, opened) for opened in self._rounds]
        return [future.result() for future in futures]

    def _check_homes(self) -> None:
        homes: dict[str, int] = {}
        for server, part in enumerate(self._on_all(Round.submissions)):
            for each in part:
                if homes.setdefault(each.client_id, server) != server:
                    raise two_homes(self.name, each.client_id, homes[each.client_id], server)

    def _check_number(self, total: int) -> None:
        least, most = self.spec.min_submissions, self.spec.max_submissions
        if total < least:
            reason = f"closed with {total} submissions, below min_submissions {least}"
            raise RoundFailedError(f"{self.name} failed: FAILED_PRECONDITION: {reason}", "failed")
        if most is not None and total > most:
            reason = f"the servers have {total} submissions, beyond max_submissions {most}"
            raise RoundFailedError(f"{self.name} failed: RESOURCE_EXHAUSTED: {reason}", "failed")

    def _ranges(self, tensor: TensorSpec, infos: Sequence[RoundInfo]) -> list[KeyRange]:
        """Returns the ranges of a tensor's keys, about equally large, from a sample of the keys that were submitted."""
        row_bytes = 8 + tensor.row_width * DTYPES[tensor.dtype]
        if tensor.layout == "dense":
            num_rows = tensor.num_rows * sum(info.num_submissions for info in infos)
            return cuts_of_rows(tensor.num_rows, self._number_of_ranges(num_rows * row_bytes))
        every = max(1, sum(info.num_tuples for info in infos) // _SAMPLE)
        if self._plan.ranges == 1:
            return [(0, None)]
        sample = np.concatenate(self._on_all(lambda opened: opened.sample_keys(tensor.name, every=every)))
        num_keys = len(sample) * every
        if merges_on_arrival(self.spec, tensor):
            # A partial has sums of 8 or 16 bytes, counts and weights. It is held as it came, as rows, and combined.
            num_bytes, limit = num_keys * (20 + 16 * tensor.row_width), self._plan.memory_limit
            return cuts_of_sample(sample, self._number_of_ranges(num_bytes, None if limit is None else limit // 6))
        return cuts_of_sample(sample, self._number_of_ranges(num_keys * row_bytes))

    def _number_of_ranges(self, num_bytes: int, most_bytes: int | None = None) -> int:
        plan = self._plan
        largest = plan.range_bytes if most_bytes is None else max(1, min(plan.range_bytes, most_bytes))
        if plan.ranges is not None:
            return plan.ranges
        return max(1, -(-num_bytes // largest), min(plan.reducers, num_bytes // _LEAST_BYTES))

    def _info(self, infos: Sequence[RoundInfo], tensors: dict[str, TensorResult], cut: dict[str, int]) -> RoundInfo:
        clips = [info.clip for info in infos if info.clip is not None]
        steps = tuple(StageTime(step, seconds, 0.0, 0) for step, seconds in self.times.items())
        return dataclasses.replace(
            infos[0],
            spec=self.spec,
            state="done",
            state_reason="",
            num_submissions=sum(info.num_submissions for info in infos),
            num_tuples=sum(info.num_tuples for info in infos),
            num_bytes=sum(info.num_bytes for info in infos),
            num_refused=sum(info.num_refused for info in infos),
            num_uploads=0,
            timeline=Timeline(sum(self.times.values()), 0.0, steps, max(self.times, key=lambda step: self.times[step])),
            results=tuple(
                TensorSummary(r.name, len(r), r.layout, r.dtype, r.row_width, r.num_rows, "", cut.get(r.name, 0))
                for r in tensors.values()
            ),
            recent_refusals=(),
            clip=_total(clips) if clips else None,
        )


def _total(clips: Sequence[ClipSummary]) -> ClipSummary:
    return ClipSummary(
        num_clipped=sum(clip.num_clipped for clip in clips),
        num_l2=sum(clip.num_l2 for clip in clips),
        num_linf=sum(clip.num_linf for clip in clips),
        num_max_keys=sum(clip.num_max_keys for clip in clips),
        factors=tuple(sum(column) for column in zip(*(clip.factors for clip in clips))),
    )
