"""One range of keys of one tensor: read from all servers, in order of client ids, and merged in this process."""

from __future__ import annotations

import bisect
import concurrent.futures
import dataclasses
import datetime
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from sparseagg import errors
from sparseagg._internal.base.extension import release_memory
from sparseagg._internal.base.foreign import Array
from sparseagg._internal.client.blocking_client import Client, Round
from sparseagg._internal.client.result_reader import ExportedPage, joined_parts
from sparseagg._internal.local.aggregator import Aggregator
from sparseagg._internal.results.result import TensorResult
from sparseagg._internal.spec.options import ORDER_OPS
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg._internal.wire.columns import num_submissions
from sparseagg.cluster.exchange import export_page, export_partial, export_submissions
from sparseagg.cluster.plan import KeyRange, Plan, on_all
from sparseagg.cluster.published import Part, RangeStore

_PAGE_BYTES = 16 << 20  # of an export, where memory has no limit

_SUMS = ("sum", "mean", "coordinate_mean")

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class RangeTask:
    """What to merge. A pure function of sealed rounds: it may be run twice, anywhere, with the same result."""

    round_name: str  # "rounds/{id}", the same on all servers
    created: tuple[datetime.datetime | None, ...]  # when the round of each server was created
    spec: RoundSpec
    keys: KeyRange
    num_submissions: tuple[int, ...]
    plan: Plan  # which servers there are, and how they are merged
    only: frozenset[str] | None = None  # the clients that count; None: all
    store: RangeStore | None = None  # where the result goes; None: to the caller
    number: int = 0  # of the range among those of its tensor
    any_order: bool = False  # of the keys of a submission, so that servers sort nothing


class KnownRounds:
    """What ranges of a round have in common, asked for once: the servers' rounds, and their rosters. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, tuple[tuple[Any, ...], concurrent.futures.Future[list[Any]]]] = {}

    def get(self, what: str, key: tuple[Any, ...], ask: Callable[[], list[T]]) -> list[T]:
        """Returns what the latest ``ask`` with this key has returned; asks if that failed, or another key has come."""
        own: concurrent.futures.Future[list[T]] = concurrent.futures.Future()
        with self._lock:
            before, found = self._found.get(what, ((), own))
            if before != key or (found.done() and found.exception()):
                self._found[what] = key, (found := own)
        if found is own:
            try:
                own.set_result(ask())
            except BaseException as error:  # the threads that wait for it end with it
                own.set_exception(error)
        return found.result()


class Roster(NamedTuple):
    """Whose submissions a server's round has, in ascending order of client ids: an export has their places in it."""

    ids: list[str]
    weights: Array  # float64 of each
    counts: Array | None  # whether each counts; None: all do


def run_task(task: RangeTask, clients: Sequence[Client], known: KnownRounds) -> TensorResult | Part:
    """Returns the result of ``reduce_range``, or writes it to the task's store and returns where it is."""
    begun = time.monotonic()
    own = [clients[server] for server in task.plan.servers]
    key = task.round_name, task.created, task.plan.servers
    rounds = known.get("rounds", key, lambda: on_all(own, lambda client: client.get_round(task.round_name)))
    result = reduce_range(task, rounds, known)
    if task.store is None:
        return result
    part = task.store.write(result, task.keys, task.number, rounds)
    return dataclasses.replace(part, seconds=time.monotonic() - begun)


def reduce_range(task: RangeTask, rounds: Sequence[Round], known: KnownRounds) -> TensorResult:
    """Returns the merged rows of a range, in the sparse layout.

    Raises ``RoundFailedError`` if the merge failed, as that of one server would have; ``FailedPreconditionError`` if a
    client has submissions on two servers, or a round is not sealed any more; ``InternalError`` if a server has exported
    another number of submissions than its round has.
    """
    tensor = task.spec.tensors[0]
    try:
        if task.only is None and merges_on_arrival(task.spec, tensor):  # nobody can be taken out of a partial
            return _reduce_partials(task, rounds)
        try:
            return _reduce_submissions(task, rounds, known)
        except errors.AbortedError:  # somebody has had the submissions sorted between two pages, which happens once
            return _reduce_submissions(task, rounds, known)
    except errors.OutOfRangeError as error:
        raise errors.RoundFailedError(f"{task.round_name} failed: {error.code.name}: {error}", "failed") from None
    finally:
        if task.plan.memory_limit is not None:
            release_memory()  # which the engine keeps for its next merges


def _reduce_partials(task: RangeTask, rounds: Sequence[Round]) -> TensorResult:
    tensor = task.spec.tensors[0]
    merged = Aggregator(task.spec, threads=task.plan.threads, device=task.plan.device)
    for server, opened in enumerate(rounds):
        partial = export_partial(opened, tensor.name, keys=task.keys)
        found = num_submissions(partial)
        _check_number(task, server, found)
        if found > 0:
            merged.add_partial(str(server), partial, keys=task.keys)
        del partial
    return _finished(task, merged)


def _finished(task: RangeTask, merged: Aggregator) -> TensorResult:
    try:
        return merged.finish()[task.spec.tensors[0].name]
    except errors.FailedPreconditionError as error:
        raise errors.RoundFailedError(f"{task.round_name} failed: {error.code.name}: {error}", "failed") from None


def _check_number(task: RangeTask, server: int, found: int) -> None:
    if found != (expected := task.num_submissions[server]):
        raise errors.InternalError(f"server {server} exported {found} of {expected} submissions of {task.round_name}")


def check_homes(round_name: str, listed: Sequence[Iterable[str]]) -> None:
    """Raises ``FailedPreconditionError`` for a client whose id two of the servers have listed."""
    homes: dict[str, int] = {}
    for server, part in enumerate(listed):
        for client_id in part:
            if (first := homes.setdefault(client_id, server)) != server:
                raise errors.FailedPreconditionError(
                    f"client {client_id!r} has submissions to {round_name} on servers {first} and {server}: "
                    "clients submit to their home server alone"
                )


def _rosters(task: RangeTask, rounds: Sequence[Round]) -> list[Roster]:
    name, only = task.spec.tensors[0].name, task.only
    listed = on_all(rounds, lambda opened: export_submissions(opened, name, keys=(0, 0)))
    for server, part in enumerate(listed):
        _check_number(task, server, len(part))
    check_homes(task.round_name, listed)
    return [
        Roster(
            list(part),
            np.array([each.weight for each in part.values()], np.float64),
            None if only is None else np.array([each in only for each in part], bool),
        )
        for part in listed
    ]


def merges_on_arrival(spec: RoundSpec, tensor: TensorSpec) -> bool:
    """Returns whether servers merge a tensor's submissions as they arrive, so that they export partials of it.

    Its result does not depend on the order of submissions.
    """
    how = spec.aggregation_of(tensor)
    if spec.keep_submissions or how.op in ORDER_OPS or how.return_moments:
        return False
    return how.numerics == "binned" or not (how.op in _SUMS and "float" in tensor.dtype)


def _reduce_submissions(task: RangeTask, rounds: Sequence[Round], known: KnownRounds) -> TensorResult:
    tensor = task.spec.tensors[0]
    is_weighted = task.spec.aggregation_of(tensor).weighting == "by_weight"
    # Half of the memory is for sums and folded rows; of each server there are up to three pages.
    key = task.round_name, task.created, task.plan.servers, task.num_submissions, task.only
    limit, rosters = task.plan.memory_limit, known.get("rosters", key, lambda: _rosters(task, rounds))
    page_bytes = _PAGE_BYTES if limit is None else max(1, min(_PAGE_BYTES, limit // (6 * len(rounds))))
    half = None if limit is None else max(1, limit // 2)
    how = task.keys, page_bytes, task.any_order
    servers = [ServerPages(each, tensor.name, roster, *how) for each, roster in zip(rounds, rosters)]
    merged = Aggregator(task.spec, threads=task.plan.threads, memory_limit=half, device=task.plan.device)
    for pages in batches(servers):
        merged._add_pages(pages, is_weighted)
        del pages
    return _finished(task, merged)


def range_spec(spec: RoundSpec, tensor: TensorSpec) -> RoundSpec:
    """Returns the spec by which the ranges of a tensor are merged: all that concerns single keys.

    Dense updates and results are sparse ones with all keys. Bounds on submissions are not applied again; the layout of
    the result, and cuts of it, are decided when all ranges are there.
    """
    how = spec.aggregation_of(tensor)
    is_sum = how.op in _SUMS
    has_weighting = is_sum or how.op in ORDER_OPS or how.return_weights
    names = ["op", "numerics", "on_nonfinite", "return_counts", "return_weights", "min_contributors"]
    names += ["weighting"] if has_weighting else []
    names += ["prune_zeros", "result_dtype"] if how.op != "union" else []
    names += ["absent"] if how.op in ORDER_OPS else []
    of_op = {"mean": ["mean_divisor"], "trimmed_mean": ["trim_fraction"], "quantile": ["quantile"]}
    names += of_op.get(how.op, [])
    names += ["fixed_divisor"] if how.op == "mean" and how.mean_divisor == "fixed" else []
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


class ServerPages:
    """Reads one tensor's submissions of one server in a range of keys. ``roster``: of the server."""

    def __init__(
        self, opened: Round, tensor: str, roster: Roster, keys: KeyRange, page_bytes: int, any_order: bool = False
    ) -> None:
        self._opened, self._tensor, self._roster = opened, tensor, roster
        self._how: dict[str, Any] = {"keys": keys, "max_bytes": page_bytes, "any_order": any_order}
        self._next: concurrent.futures.Future[ExportedPage] | None = None
        self._pages: list[ExportedPage] = []  # of whole submissions, in ascending order
        self._last: list[ExportedPage] = []  # the parts of the submission of which more comes
        self._place = 0  # of the first submission that has not come whole
        self.end: str | None = ""  # its id; None: all have come

    def start(self, pool: concurrent.futures.Executor, page_token: str = "") -> None:
        """Asks for a page."""
        self._next = pool.submit(export_page, self._opened, self._tensor, page_token=page_token, **self._how)

    def fill(self, pool: concurrent.futures.Executor) -> None:
        """Takes the page that has been asked for, and asks for the next one."""
        assert self._next is not None
        page, self._next = self._next.result(), None
        size, first, end = len(self._roster.ids), page.first, page.end - page.is_continued
        if page.num_submissions != size or first != self._place or (not page.next_page_token and end != size):
            wrong = f"submissions {first} to {end} of {page.num_submissions} came, after {self._place} of {size}"
            raise errors.InternalError(f"{self._opened.name}: {wrong}")
        if self._last and first < end:
            self._pages.append(joined_parts([*self._last, page.part(first, first + 1)]))
            self._last = []
            first += 1
        if first < end:
            self._pages.append(page.part(first, end))
        if page.is_continued:
            self._last.append(page.part(end, page.end))
        self._place, self.end = end, self._roster.ids[end] if end < size else None
        if page.next_page_token:
            self.start(pool, page.next_page_token)

    def take(self, before: str | None) -> list[tuple[Roster, ExportedPage]]:
        """Returns the submissions whose ids are below one; None: all."""
        end = len(self._roster.ids) if before is None else bisect.bisect_left(self._roster.ids, before)
        taken = []
        while self._pages and self._pages[0].first < end:
            page = self._pages.pop(0)
            if page.end > end:
                self._pages.insert(0, page.part(end, page.end))
                page = page.part(page.first, end)
            taken.append((self._roster, page))
        return taken


def batches(servers: Sequence[ServerPages]) -> Iterator[list[tuple[Roster, ExportedPage]]]:
    """Yields pages of whole submissions. The client ids of a batch are above those of the batches before.

    The next page of each server is on its way meanwhile.
    """
    with concurrent.futures.ThreadPoolExecutor(len(servers)) as pool:
        for server in servers:
            server.start(pool)
        end: str | None = ""
        while end is not None:
            for server in servers:
                if server.end == end:
                    server.fill(pool)
            # Ids below all of these have come completely.
            end = min((server.end for server in servers if server.end is not None), default=None)
            if batch := [page for server in servers for page in server.take(end)]:
                yield batch
            del batch
