"""One range of keys of one tensor: read from all servers, in order of client ids, and merged in this process."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import datetime
import time
from collections.abc import Iterator, Sequence
from typing import Any

from sparseagg._internal.base.extension import release_memory
from sparseagg._internal.client.blocking_client import Client, Round
from sparseagg._internal.client.result_reader import ExportedPage, ExportedUpdate, joined
from sparseagg._internal.local.aggregator import Aggregator
from sparseagg._internal.results.result import TensorResult
from sparseagg._internal.spec.options import ORDER_OPS
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg._internal.wire.message import num_submissions
from sparseagg.cluster.plan import KeyRange, on_all
from sparseagg.cluster.published import Part, RangeStore
from sparseagg.errors import AbortedError, FailedPreconditionError, InternalError, OutOfRangeError, RoundFailedError

_PAGE_BYTES = 16 << 20  # of an export, where memory has no limit

_SUMS = ("sum", "mean", "coordinate_mean")


@dataclasses.dataclass(frozen=True)
class RangeTask:
    """What to merge. A pure function of sealed rounds: it may be run twice, anywhere, with the same result.

    Attributes:
        round_name: "rounds/{id}", the same on all servers.
        created: when the round of each server was created.
        spec: of the one tensor, from ``range_spec``.
        keys: the range.
        num_submissions: of each server's round.
        servers: their indices among those of the executor.
        threads: of the engine.
        only: the clients that count; None: all.
        device: of the engine, "cpu" or "cuda"; None: as ``sparseagg.aggregate`` chooses.
        store: where the result goes; None: to the caller.
        memory_limit: bytes that the submissions of the range may take, with their sums. Beyond, they are folded before
            others are read. None: no limit.
        number: of the range among those of its tensor.
        any_order: of the keys of a submission, so that servers sort nothing.
    """

    round_name: str
    created: tuple[datetime.datetime | None, ...]
    spec: RoundSpec
    keys: KeyRange
    num_submissions: tuple[int, ...]
    servers: tuple[int, ...]
    threads: int
    only: frozenset[str] | None = None
    device: str | None = None
    store: RangeStore | None = None
    memory_limit: int | None = None
    number: int = 0
    any_order: bool = False


KnownRounds = dict[tuple[Any, ...], list[Round]]


def run_task(task: RangeTask, clients: Sequence[Client], known: KnownRounds) -> TensorResult | Part:
    """Returns the result of ``reduce_range``, or writes it to the task's store and returns where it is.

    ``known``: the servers' rounds, which are asked for once, not for each range.
    """
    begun = time.monotonic()
    key = task.round_name, task.created, task.servers
    rounds = known.get(key)
    if rounds is None:
        rounds = on_all([clients[server] for server in task.servers], lambda client: client.get_round(task.round_name))
        known.clear()
        known[key] = rounds
    result = reduce_range(task, rounds)
    if task.store is None:
        return result
    part = task.store.write(result, task.keys, task.number, rounds)
    return dataclasses.replace(part, seconds=time.monotonic() - begun)


def reduce_range(task: RangeTask, rounds: Sequence[Round]) -> TensorResult:
    """Returns the merged rows of a range, in the sparse layout.

    Raises:
        RoundFailedError: the merge failed, as that of one server would have.
        FailedPreconditionError: a client has submissions on two servers; or a round is not sealed any more; or its
            submissions cannot be exported.
        InternalError: a server has exported another number of submissions than its round has.
    """
    tensor = task.spec.tensors[0]
    try:
        if task.only is None and merges_on_arrival(task.spec, tensor):  # nobody can be taken out of a partial
            return _reduce_partials(task, rounds)
        try:
            return _reduce_submissions(task, rounds)
        except AbortedError:  # somebody has had the submissions sorted between two pages, which happens once
            return _reduce_submissions(task, rounds)
    except OutOfRangeError as error:
        raise RoundFailedError(f"{task.round_name} failed: {error.code.name}: {error}", "failed") from None
    finally:
        if task.memory_limit is not None:
            release_memory()  # which the engine keeps for its next merges


def _reduce_partials(task: RangeTask, rounds: Sequence[Round]) -> TensorResult:
    tensor = task.spec.tensors[0]
    merged = Aggregator(task.spec, threads=task.threads, device=task.device)
    for server, opened in enumerate(rounds):
        partial = opened.export_partial(tensor.name, keys=task.keys)
        found = num_submissions(partial)
        _check_number(task, server, found)
        if found > 0:
            merged.add_partial(str(server), partial, keys=task.keys)
        del partial
    return _finished(task, merged)


def _finished(task: RangeTask, merged: Aggregator) -> TensorResult:
    try:
        return merged.finish()[task.spec.tensors[0].name]
    except FailedPreconditionError as error:
        raise RoundFailedError(f"{task.round_name} failed: {error.code.name}: {error}", "failed") from None


def _check_number(task: RangeTask, server: int, found: int) -> None:
    if found != (expected := task.num_submissions[server]):
        raise InternalError(f"server {server} exported {found} submissions of {task.round_name}, which has {expected}")


def two_homes(round_name: str, client_id: str, first: int, second: int) -> FailedPreconditionError:
    """Returns the error for a client with submissions on two servers."""
    return FailedPreconditionError(
        f"client {client_id!r} has submissions to {round_name} on servers {first} and {second}: clients submit to "
        "their home server alone"
    )


def merges_on_arrival(spec: RoundSpec, tensor: TensorSpec) -> bool:
    """Returns whether servers merge a tensor's submissions as they arrive, so that they export partials of it.

    Its result does not depend on the order of submissions.
    """
    how = spec.aggregation_of(tensor)
    if spec.keep_submissions or how.op in ORDER_OPS or how.return_moments:
        return False
    if how.numerics == "fixed_point":
        return True
    sums_weights = how.weighting == "by_weight" and (how.op == "coordinate_mean" or how.return_weights)
    return not sums_weights and not (how.op in _SUMS and "float" in tensor.dtype)


def _reduce_submissions(task: RangeTask, rounds: Sequence[Round]) -> TensorResult:
    tensor = task.spec.tensors[0]
    is_weighted = task.spec.aggregation_of(tensor).weighting == "by_weight"
    # Half of the memory is for sums and folded rows; of each server there are up to three pages.
    page_bytes = _PAGE_BYTES if task.memory_limit is None else max(1, task.memory_limit // (6 * len(rounds)))
    limit = None if task.memory_limit is None else max(1, task.memory_limit // 2)
    exported = OrderedSubmissions(rounds, tensor.name, task.keys, min(page_bytes, _PAGE_BYTES), task.any_order)
    merged = Aggregator(task.spec, threads=task.threads, memory_limit=limit, device=task.device)
    try:
        for batch in exported.batches():
            updates: dict[str, Any] = {}
            while batch:
                client_id = next(iter(batch))
                update = batch.pop(client_id)
                if task.only is not None and client_id not in task.only:
                    continue
                named = {tensor.name: (update.keys, update.values)}
                updates[client_id] = (named, update.weight) if is_weighted else named
            merged.add_all(updates)
    except DuplicateClient as error:
        raise two_homes(task.round_name, *error.args) from None
    for server, found in enumerate(exported.counts):
        _check_number(task, server, found)
    return _finished(task, merged)


def range_spec(spec: RoundSpec, tensor: TensorSpec) -> RoundSpec:
    """Returns the spec by which the ranges of a tensor are merged: all that concerns single keys.

    Dense updates and results are sparse ones with all keys. Bounds on submissions are not applied again; the layout of
    the result, and cuts of it, are decided when all ranges are there.
    """
    how = spec.aggregation_of(tensor)
    is_sum, is_fixed = how.op in _SUMS, how.numerics == "fixed_point"
    has_weighting = is_sum or how.op in ORDER_OPS or how.return_weights
    names = ["op", "numerics", "on_nonfinite", "return_counts", "return_weights", "min_contributors"]
    names += ["weighting"] if has_weighting else []
    names += ["prune_zeros", "result_dtype"] if how.op != "union" else []
    names += ["absent"] if how.op in ORDER_OPS else []
    of_op = {"mean": ["mean_divisor"], "trimmed_mean": ["trim_fraction"], "quantile": ["quantile"]}
    names += of_op.get(how.op, [])
    names += ["fixed_divisor"] if how.op == "mean" and how.mean_divisor == "fixed" else []
    names += ["weight_bound"] if is_fixed and has_weighting and how.weighting == "by_weight" else []
    names += ["value_bound", "on_bound"] if is_fixed and is_sum and "float" in tensor.dtype else []
    options = {name: getattr(how, name) for name in names}
    options["return_moments"] = how.return_moments or None
    merged = TensorSpec(
        tensor.name,
        tensor.dtype,
        num_rows=tensor.num_rows,
        row_width=tensor.row_width,
        modular=tensor.modular,
        result_layout="sparse",
        **{name: value for name, value in options.items() if value is not None},
    )
    return RoundSpec([merged], max_submissions=spec.max_submissions, keep_submissions=spec.keep_submissions)


class DuplicateClient(Exception):
    """A client has submissions on two servers: the id, and the two."""


class OrderedSubmissions:
    """Reads one tensor's submissions in a range of keys. The next page of each server is on its way meanwhile.

    Args:
        rounds: sealed, of each server.
        tensor: name of the tensor.
        keys: the range.
        page_bytes: of each page.
        any_order: of the keys of a submission.

    Attributes:
        counts: submissions of each server that were read.
    """

    def __init__(
        self, rounds: Sequence[Round], tensor: str, keys: KeyRange, page_bytes: int, any_order: bool = False
    ) -> None:
        self._cursors = [_Cursor(opened, tensor, keys, page_bytes, any_order) for opened in rounds]

    @property
    def counts(self) -> list[int]:
        return [cursor.count for cursor in self._cursors]

    def batches(self) -> Iterator[dict[str, ExportedUpdate]]:
        """Yields the submissions, whose order over all batches is that of client ids.

        Raises:
            DuplicateClient: two servers have submissions of one client.
            SparseAggError: of the servers.
        """
        with concurrent.futures.ThreadPoolExecutor(len(self._cursors)) as pool:
            for cursor in self._cursors:
                cursor.start(pool)
            while True:
                for cursor in self._cursors:
                    cursor.fill(pool)
                # Ids below all of these have come completely.
                ends = [cursor.end for cursor in self._cursors if cursor.end is not None]
                end = min(ends) if ends else None
                ready: dict[bytes, int] = {}
                for index, cursor in enumerate(self._cursors):
                    for name in cursor.below(end):
                        if name in ready:
                            raise DuplicateClient(name.decode(), ready[name], index)
                        ready[name] = index
                batch = {name.decode(): self._cursors[ready[name]].take(name) for name in sorted(ready)}
                ready.clear()
                if batch:
                    yield batch
                elif end is None:
                    return
                del batch
                for cursor in self._cursors:
                    if cursor.end == end:
                        cursor.wants_more = True


class _Cursor:
    """The pages of one server."""

    def __init__(self, opened: Round, tensor: str, keys: KeyRange, page_bytes: int, any_order: bool) -> None:
        self._opened, self._tensor = opened, tensor
        self._how: dict[str, Any] = {"keys": keys, "max_bytes": page_bytes, "any_order": any_order}
        self._next: concurrent.futures.Future[ExportedPage] | None = None
        self._parts: dict[bytes, list[ExportedUpdate]] = {}  # in ascending order
        self.end: bytes | None = b""  # the last id, of which more may come; None: all has come
        self.wants_more = True
        self.count = 0

    def start(self, pool: concurrent.futures.Executor, page_token: str = "") -> None:
        """Asks for a page."""
        self._next = pool.submit(self._opened.export_page, self._tensor, page_token=page_token, **self._how)

    def fill(self, pool: concurrent.futures.Executor) -> None:
        """Takes the page that has been asked for, if one is wanted, and asks for the next one."""
        if self._next is None or not self.wants_more:
            return
        page = self._next.result()
        self._next = None
        self.wants_more = False
        for client_id, update in page.updates.items():
            self._parts.setdefault(client_id.encode(), []).append(update)
        self.end = next(reversed(self._parts), b"") if page.next_page_token else None
        if page.next_page_token:
            self.start(pool, page.next_page_token)

    def below(self, end: bytes | None) -> list[bytes]:
        """Returns the ids that have come and are below ``end``; None: all."""
        return [name for name in self._parts if end is None or name < end]

    def take(self, name: bytes) -> ExportedUpdate:
        self.count += 1
        return joined(self._parts.pop(name))
