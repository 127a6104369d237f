"""A round over several servers."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import math
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, SupportsFloat, TypeVar

import numpy as np

from sparseagg._internal.base.arguments import Timeout, checked_seconds, shown
from sparseagg._internal.base.types import Update
from sparseagg._internal.certificates.statement import time_now
from sparseagg._internal.client.blocking_client import Client
from sparseagg._internal.client.blocking_round import Round
from sparseagg._internal.client.requests import checked_keys
from sparseagg._internal.local.aggregate import aggregate
from sparseagg._internal.results.certificates import Certificate, SubmissionReceipt
from sparseagg._internal.results.info import RoundInfo, Submission
from sparseagg._internal.results.result import Result, TensorResult
from sparseagg._internal.spec.cluster_spec import ClusterSpec, HomeServer, home_of
from sparseagg._internal.spec.options import DTYPES
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg._internal.updates.contributors import ClientId, checked_client_id
from sparseagg.cluster.certificate import RoundCertificate, certify
from sparseagg.cluster.executor import Executor
from sparseagg.cluster.join import concatenated, dense, is_cut, is_dense, join_ranges, rows_between
from sparseagg.cluster.plan import KeyRange, cuts_of_rows, cuts_of_sample
from sparseagg.cluster.published import Part, PartStore, read_list, read_part, remove_all, write_list
from sparseagg.cluster.reduce import RangeTask, merges_on_arrival, range_spec, two_homes
from sparseagg.cluster.round_info import cluster_info
from sparseagg.cluster.tables import dataset_of, write_parts
from sparseagg.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    RoundFailedError,
    UnimplementedError,
)

__all__ = ["ClusterRound", "cluster_spec", "server_spec"]

T = TypeVar("T")

_SAMPLE = 100_000  # keys of all tensors and servers: ranges are then balanced to about one in a hundred
_FIRST_PAUSE_S, _MOST_PAUSE_S = 0.05, 2.0  # between looks for a result
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
        device: of the engine; None: as ``sparseagg.aggregate`` chooses.
        memory_limit: of each reducer, as of ``RangeTask``.
    """

    ranges: int | None
    reducers: int
    range_bytes: int
    threads: int
    device: str | None = None
    certificate_key: pathlib.Path | None = None
    memory_limit: int | None = None


def server_spec(spec: RoundSpec, homes: Sequence[HomeServer] = (), index: int = 0) -> RoundSpec:
    """Returns the spec of a server's round: it does not close itself, and knows all servers.

    Args:
        spec: of the cluster's round.
        homes: the servers; none: of a spec that is checked alone.
        index: which of them the server is.

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
    cluster = ClusterSpec(tuple(homes), index) if homes else None
    return dataclasses.replace(spec, stay_open=True, cluster=cluster)


def cluster_spec(spec: RoundSpec) -> RoundSpec:
    """Returns the spec whose ``server_spec`` this is."""
    return dataclasses.replace(spec, stay_open=False, cluster=None)


class ClusterRound:
    """A round on all servers of a cluster, from the methods of ``Cluster``. Thread-safe.

    Life cycle: ``submit`` for each client; ``close``, then ``result`` any number of times; ``delete``. ``close`` leaves
    the result on the servers, ``finish`` returns it without that. The submissions stay on their servers until
    ``delete``, which the end of a ``with`` statement calls.

    Attributes:
        name: "rounds/{id}", on every server.
        spec: what to compute.
        times: seconds of the steps of the latest ``close`` or ``finish``: "seal", "plan", "reduce", and "join" or
            "publish".
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

    @property
    def handle(self) -> str:
        """What a client needs to submit: the addresses of all servers and the round's name, for ``open_round``."""
        cluster = self._rounds[0].spec.cluster
        homes = [each.address for each in cluster.servers] if cluster else [each.address for each in self._clients]
        return f"sparseagg://{','.join(homes)}/{self.name}"

    @property
    def info(self) -> RoundInfo:
        """The round as the servers described it last, with the sums of their submissions."""
        return self._info([opened.info for opened in self._rounds], None)

    def refresh(self) -> RoundInfo:
        """Asks all servers for the round. Its state is "done" when the result is on the servers."""
        infos = self._on_all(Round.refresh)
        return self._info(infos, read_list(self._id, self._clients[0]))

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

    def submit_batch(self, client_ids: Sequence[ClientId], updates: Any, weights: Any = None, **options: Any) -> Any:
        """Sends the updates of many clients to their home servers, as ``Round.submit_batch``."""
        return self._rounds[0].submit_batch(client_ids, updates, weights, **options)

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

    def inspect(self, tensors: Sequence[str] | None = None) -> Any:
        """Raises ``UnimplementedError``: inner products need the submissions of all servers in one place."""
        raise UnimplementedError(
            "a cluster's round has no inner products of submissions: use one server for such rules"
        )

    def close(self, timeout: Timeout = None, *, only: Iterable[ClientId] | None = None) -> RoundInfo:
        """Seals the round, merges it by ranges of keys, and leaves each range on a server.

        No process holds more than the ranges that it merges, unless ``result_top_k`` or ``result_min_norm`` cut the
        result. The result stays for ``result_ttl``, also over a restart of servers with a data directory. Safe to
        repeat, by other processes too (``Cluster.resume``); a result that is there stays.

        Args:
            timeout: without effect: Ray repeats what fails.
            only: the clients whose submissions count; None: all.

        Raises: as ``finish``.
        """
        found = read_list(self._id, self._clients[0])
        if found is not None:
            return self._info(self._on_all(Round.refresh), found)
        counted = _checked_only(only)
        infos, parts = self._merged(counted, PartStore(self._id, len(self._clients), self.spec.result_ttl))
        begun = time.monotonic()
        listed: list[Part] = []
        cut: dict[str, int] = {}
        for index, tensor in enumerate(self.spec.tensors):
            own = parts[tensor.name]
            rows = [each for each in own if isinstance(each, TensorResult)]
            listed += self._published(index, tensor, rows, cut) if rows else [e for e in own if isinstance(e, Part)]
        is_empty = sum(info.num_submissions for info in infos) == 0 or counted == frozenset()
        about = {
            "cut": cut,
            "is_empty": is_empty,
            "times": self.times,
            "num_counted": None if counted is None else len(counted),
            "close_time": time_now(),
        }
        # On all servers, for readers who know one of them; the first server's, which counts for coordinators, is last.
        for client in reversed(self._clients):
            write_list(self._id, listed, about, client, self.spec.result_ttl)
        self.times["publish"] = time.monotonic() - begun
        return self._info(infos, read_list(self._id, self._clients[0]))

    def wait(self, timeout: Timeout = None) -> RoundInfo:
        """Waits until the result is on the servers, as ``close`` leaves it.

        Raises:
            TimeoutError: (``DeadlineExceededError``) it is not there after ``timeout``.
        """
        self._list(timeout)
        return self.refresh()

    def result(
        self,
        tensors: Sequence[str] | None = None,
        *,
        keys: tuple[int, int | None] | None = None,
        timeout: Timeout = None,
    ) -> Result:
        """Waits until the round is closed by somebody, and reads its result from the servers, or a part of it.

        Args:
            tensors: names of one tensor or more; None for all.
            keys: range of keys (begin, end) without end; an end of None is behind the last key. Only the servers that
                have a part of the range are asked.
            timeout: of waiting, in seconds or as a timedelta; None for no limit.

        Raises:
            InvalidArgumentError: ``keys`` is no range, or ``tensors`` names an unknown tensor.
            NotFoundError: a server has lost its part, or the result_ttl is over.
            TimeoutError: (``DeadlineExceededError``) the round is not closed after ``timeout``.
        """
        chosen = [self.spec.tensor(name) for name in tensors] if tensors is not None else list(self.spec.tensors)
        wanted = checked_keys(keys)
        listed = self._list(timeout)
        infos = self._on_all(Round.refresh)
        if listed[1]["is_empty"]:
            found = dict(self._of_nothing().items())
            return Result({each.name: found[each.name] for each in chosen}, self._info(infos, listed))
        read = {each.name: self._read(each, listed[0], wanted) for each in chosen}
        return Result(read, self._info(infos, listed))

    def ranges(self, tensor: str | None = None, timeout: Timeout = None) -> Iterator[TensorResult]:
        """Yields the rows of a tensor's result, range by range in order of keys, in the sparse layout.

        Keys without a submission are in no range, also where the result's layout is dense. Holds one range at a time.

        Args:
            tensor: its name; None: the only one.
            timeout: as of ``result``.
        """
        for part in self._parts(tensor, timeout)[1]:
            yield read_part(part, self.spec.tensor(part.tensor), self._clients)

    def save(
        self, folder: str | os.PathLike[str], tensor: str | None = None, *, kind: str = "npz", timeout: Timeout = None
    ) -> list[pathlib.Path]:
        """Writes a tensor's result to files, one for each range, in order of keys: part-00000.npz, ….

        Columns: keys, and those of values, counts, weights and moments that the result has. Holds as many ranges at a
        time as there are servers.

        Args:
            folder: made where it is missing. Files of these names are replaced.
            tensor: its name; None: the only one.
            kind: "npz", or "parquet", which needs PyArrow.
            timeout: as of ``result``.

        Raises:
            UnimplementedError: "parquet" without PyArrow.
        """
        if kind not in ("npz", "parquet"):
            raise InvalidArgumentError(f'kind must be "npz" or "parquet", got {shown(kind)}')
        found, parts = self._parts(tensor, timeout)
        return write_parts(folder, kind, found, parts, self._clients)

    def dataset(self, tensor: str | None = None, timeout: Timeout = None) -> Any:
        """Returns a tensor's result as a Ray Dataset, a block for each range. Tasks of Ray read it from the servers.

        Raises:
            UnimplementedError: Ray or PyArrow is not installed: ``pip install "ray[data]"``.
        """
        found, parts = self._parts(tensor, timeout)
        return dataset_of(found, parts, self._clients)

    def _parts(self, tensor: str | None, timeout: Timeout) -> tuple[TensorSpec, list[Part]]:
        if tensor is None and len(self.spec.tensors) > 1:
            raise InvalidArgumentError(f"the round has {len(self.spec.tensors)} tensors: name one")
        found = self.spec.tensors[0] if tensor is None else self.spec.tensor(tensor)
        return found, [part for part in self._list(timeout)[0] if part.tensor == found.name]

    def finish(self, timeout: Timeout = None, *, only: Iterable[ClientId] | None = None) -> Result:
        """Seals the round, merges its submissions by ranges of keys, and returns the result.

        The result has the bits of one server with all submissions. It is held in the memory of this process, and
        nowhere else. The round stays sealed: another call, of another process too (``Cluster.resume``), gives the same
        result.

        Args:
            timeout: without effect: Ray repeats what fails.
            only: the clients whose submissions count; None: all.

        Raises:
            RoundFailedError: there are fewer than ``min_submissions`` or more than ``max_submissions``, or the merge
                failed, as on one server.
            RoundClosedError: a server's round is closed.
            FailedPreconditionError: a client has submissions on two servers; or one of ``only`` has none.
            NotFoundError, UnavailableError: a server has lost the round, or cannot be reached. Nothing is merged then.
        """
        counted = _checked_only(only)
        infos, parts = self._merged(counted, None)
        if not parts:
            empty = dict(self._of_nothing().items())
            return Result(empty, self._info(infos, None, empty, {}))
        begun = time.monotonic()
        tensors: dict[str, TensorResult] = {}
        cut: dict[str, int] = {}
        for tensor in self.spec.tensors:
            own = [each for each in parts[tensor.name] if isinstance(each, TensorResult)]
            tensors[tensor.name], cut[tensor.name] = join_ranges(self.spec, tensor, own)
        self.times["join"] = time.monotonic() - begun
        info = self._info(infos, None, tensors, cut)
        if counted is not None:
            return Result(tensors, dataclasses.replace(info, num_submissions=len(counted)))
        result = Result(tensors, info)
        if self.spec.certificate and self._plan.certificate_key is not None:
            self._certificate = certify(
                self.name, self.spec, result, self._rounds, self._on_all, self._plan.certificate_key
            )
        return result

    def certificate(self) -> Certificate:
        """Returns the certificate of the round, signed with the cluster's ``certificate_key``.

        It states what one server with all submissions would, if that has the same key; other are only times, "engine",
        and "homes", which names the rounds on the servers, so that their promises are accepted. ``finish`` makes it.
        After ``close``, by any process, the first call makes it: it reads the whole result from the servers.

        Raises:
            FailedPreconditionError: the round is not closed, some clients alone count (``only``), its spec asks for no
                certificate, or the cluster has no ``certificate_key``.
            NotFoundError: the result is not there any more.
        """
        key = self._plan.certificate_key
        if self._certificate is None and self.spec.certificate and key is not None:
            found = read_list(self._id, self._clients[0])
            if found is not None and found[1]["num_counted"] is None:
                closed = found[1].get("close_time")  # None: an earlier version has closed the round
                self._certificate = certify(
                    self.name, self.spec, self.result(), self._rounds, self._on_all, key, closed
                )
        if self._certificate is None:
            raise FailedPreconditionError(
                f"{self.name} has no certificate: finish() or close() makes it, if all clients count, the spec asks "
                "for one, and the cluster has a certificate_key"
            )
        return self._certificate.certificate

    def receipt(self, client_id: ClientId) -> SubmissionReceipt:
        """Returns the receipt of a client's submission, as ``Round.receipt``.

        It has its proof after ``finish``, or after ``close`` and ``certificate``, of this object.
        """
        receipt = self._rounds[self._home_of(client_id)].receipt(client_id)
        return receipt if self._certificate is None else self._certificate.complete(receipt)

    def cancel(self, reason: str = "") -> None:
        """Ends the round on all servers without a result, and discards its submissions."""
        self._on_all(lambda opened: opened.cancel(reason))

    def delete(self) -> None:
        """Removes the round and its result from all servers that have them."""

        def remove(opened: Round) -> None:
            with contextlib.suppress(NotFoundError):  # removed before, or lost by a server that keeps nothing
                opened.delete()

        self._on_all(remove)
        remove_all(self._id, self._clients)

    @property
    def _id(self) -> str:
        return self.name.removeprefix("rounds/")

    def _merged(
        self, only: frozenset[str] | None, store: PartStore | None
    ) -> tuple[list[RoundInfo], dict[str, list[TensorResult | Part]]]:
        """Seals and merges; returns the servers' rounds, and the ranges of each tensor, of none if there is nothing."""
        begun = time.monotonic()
        infos = self._on_all(Round.seal)
        total = sum(info.num_submissions for info in infos)
        if only is not None:
            there = {each.client_id for each in self.submissions()}
            missing = sorted(only - there)
            if missing:
                raise FailedPreconditionError(f"{self.name} has no submission of client {missing[0]!r}")
            total = len(only)
        self._check_number(total)
        sealed = time.monotonic()
        self.times = {"seal": sealed - begun, "plan": 0.0, "reduce": 0.0}
        if total == 0:
            self._of_nothing()
            return infos, {} if store is None else {tensor.name: [] for tensor in self.spec.tensors}
        if only is None and all(merges_on_arrival(self.spec, tensor) for tensor in self.spec.tensors):
            self._check_homes()  # partials do not tell whose submissions they have
        counts = tuple(info.num_submissions for info in infos)
        plans = {tensor.name: self._ranges(tensor, infos, only) for tensor in self.spec.tensors}
        planned = time.monotonic()
        tasks = []
        for index, tensor in enumerate(self.spec.tensors):
            # Which rows are cut is known when all ranges are there: such a result is written afterwards.
            is_written = store is not None and not is_cut(self.spec, tensor)
            tasks += [
                RangeTask(
                    self.name,
                    range_spec(self.spec, tensor),
                    keys,
                    counts,
                    self._plan.threads,
                    only,
                    self._plan.device,
                    store.of(index, keys, number) if is_written and store is not None else None,
                    self._plan.memory_limit,
                )
                for number, keys in enumerate(plans[tensor.name])
            ]
        done = iter(self._executor.run(tasks))
        parts = {tensor.name: [next(done) for _ in plans[tensor.name]] for tensor in self.spec.tensors}
        self.times.update(plan=planned - sealed, reduce=time.monotonic() - planned)
        return infos, parts

    def _of_nothing(self) -> Result:
        """Returns the result of a round without submissions, or raises ``RoundFailedError``."""
        alone = dataclasses.replace(self.spec, result_ttl=None)
        try:
            return aggregate({}, alone)
        except FailedPreconditionError as error:
            raise RoundFailedError(f"{self.name} failed: {error.code.name}: {error}", "failed") from None

    def _published(
        self, index: int, tensor: TensorSpec, rows: Sequence[TensorResult], cut: dict[str, int]
    ) -> list[Part]:
        """Writes a result that is cut, by as many ranges as it was merged in."""
        whole, cut[tensor.name] = join_ranges(self.spec, tensor, rows)
        store = PartStore(self._id, len(self._clients), self.spec.result_ttl)
        written = []
        for number, keys in enumerate(cuts_of_sample(np.asarray(whole.keys), len(rows))):
            own = store.of(index, keys, number)
            written.append(own.write(rows_between(whole, keys), self._clients))
        return written

    def _list(self, timeout: Timeout) -> tuple[list[Part], dict[str, Any]]:
        """Returns the list of the result's ranges, as soon as it is there."""
        seconds = checked_seconds("timeout", timeout)
        until = math.inf if seconds is None else time.monotonic() + seconds
        pause = _FIRST_PAUSE_S
        while (found := read_list(self._id, self._clients[0])) is None:
            if time.monotonic() + pause > until:
                raise DeadlineExceededError(f"{self.name} is not closed after {seconds:g} s")
            self._rounds[0].refresh()  # NotFoundError: it has been deleted
            time.sleep(pause)
            pause = min(2 * pause, _MOST_PAUSE_S)
        return found

    def _read(self, tensor: TensorSpec, listed: Sequence[Part], keys: KeyRange) -> TensorResult:
        own = [part for part in listed if part.tensor == tensor.name]
        begin, end = keys
        met = [
            part for part in own if (end is None or part.begin < end) and (part.end is None or part.end > begin)
        ] or own[:1]
        with concurrent.futures.ThreadPoolExecutor(len(self._clients)) as pool:
            parts = list(pool.map(lambda part: read_part(part, tensor, self._clients, keys), met))
        whole = concatenated(self.spec, tensor, parts)
        cut = is_cut(self.spec, tensor)  # for sparse results alone
        if not cut and is_dense(self.spec, tensor, whole.dtype, sum(part.num_rows for part in own)):
            return dense(whole, keys)
        return whole

    def _info(
        self,
        infos: Sequence[RoundInfo],
        listed: tuple[list[Part], dict[str, Any]] | None,
        tensors: dict[str, TensorResult] | None = None,
        cut: dict[str, int] | None = None,
    ) -> RoundInfo:
        return cluster_info(self.spec, self.times, infos, listed, tensors, cut)

    def _home_of(self, client_id: ClientId) -> int:
        name = checked_client_id(client_id)
        if not name:
            raise InvalidArgumentError("the empty client id has no home server: give the client's name")
        return home_of(name, len(self._rounds))

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

    def _ranges(self, tensor: TensorSpec, infos: Sequence[RoundInfo], only: frozenset[str] | None) -> list[KeyRange]:
        """Returns the ranges of a tensor's keys, about equally large, from a sample of the keys that were submitted."""
        row_bytes = 8 + tensor.row_width * DTYPES[tensor.dtype]
        if tensor.layout == "dense":
            num_rows = tensor.num_rows * sum(info.num_submissions for info in infos)
            return cuts_of_rows(tensor.num_rows, self._number_of_ranges(num_rows * row_bytes))
        every = max(1, sum(info.num_tuples for info in infos) // _SAMPLE)
        # A sample of what is merged on arrival merges it, and then nobody can be left out.
        if self._plan.ranges == 1 or (only is not None and merges_on_arrival(self.spec, tensor)):
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


def _checked_only(only: Iterable[ClientId] | None) -> frozenset[str] | None:
    if only is None:
        return None
    if isinstance(only, (str, bytes)) or not isinstance(only, Iterable):
        raise InvalidArgumentError(f"only must be a list of client ids, or None for all clients, got {shown(only)}")
    counted = frozenset(checked_client_id(client_id) for client_id in only)
    if not counted:
        raise InvalidArgumentError("only has no client id; None is for all clients")
    return counted
