"""One range of keys of one tensor: read from all servers, in order of client ids, and merged in this process."""

from __future__ import annotations

import bisect
import concurrent.futures
import dataclasses
import datetime
import time
from collections.abc import Iterator, Sequence
from typing import Any

from sparseagg import errors
from sparseagg._internal.base.extension import release_memory
from sparseagg._internal.client.blocking_client import Client, Round
from sparseagg._internal.client.result_reader import ExportedPage, joined_parts
from sparseagg._internal.local.aggregator import Aggregator
from sparseagg._internal.results.result import TensorResult
from sparseagg._internal.spec.options import ORDER_OPS
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg._internal.wire.message import num_submissions
from sparseagg.cluster.plan import KeyRange, on_all
from sparseagg.cluster.published import Part, RangeStore

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
        except errors.AbortedError:  # somebody has had the submissions sorted between two pages, which happens once
            return _reduce_submissions(task, rounds)
    except errors.OutOfRangeError as error:
        raise errors.RoundFailedError(f"{task.round_name} failed: {error.code.name}: {error}", "failed") from None
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
    except errors.FailedPreconditionError as error:
        raise errors.RoundFailedError(f"{task.round_name} failed: {error.code.name}: {error}", "failed") from None


def _check_number(task: RangeTask, server: int, found: int) -> None:
    if found != (expected := task.num_submissions[server]):
        raise errors.InternalError(
            f"server {server} exported {found} submissions of {task.round_name}, which has {expected}"
        )


def check_homes(round_name: str, rounds: Sequence[Round]) -> None:
    """Raises ``FailedPreconditionError`` for a client with submissions on two servers."""
    homes: dict[str, int] = {}
    for server, part in enumerate(on_all(rounds, Round.submissions)):
        for each in part:
            if (first := homes.setdefault(each.client_id, server)) != server:
                raise errors.FailedPreconditionError(
                    f"client {each.client_id!r} has submissions to {round_name} on servers {first} and {server}: "
                    "clients submit to their home server alone"
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
    how = task.keys, min(page_bytes, _PAGE_BYTES), task.any_order
    servers = [ServerPages(opened, tensor.name, *how) for opened in rounds]
    merged = Aggregator(task.spec, threads=task.threads, memory_limit=limit, device=task.device)
    try:
        for pages in batches(servers):
            merged._add_pages(pages, task.only, is_weighted)
            del pages
    except errors.AlreadyExistsError:
        check_homes(task.round_name, rounds)
        raise
    for server, pages_of_one in enumerate(servers):
        _check_number(task, server, pages_of_one.count)
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


class ServerPages:
    """Reads one tensor's submissions of one server in a range of keys; ``count`` of them have been taken."""

    def __init__(self, opened: Round, tensor: str, keys: KeyRange, page_bytes: int, any_order: bool = False) -> None:
        self._opened, self._tensor = opened, tensor
        self._how: dict[str, Any] = {"keys": keys, "max_bytes": page_bytes, "any_order": any_order}
        self._next: concurrent.futures.Future[ExportedPage] | None = None
        self._pages: list[ExportedPage] = []  # of whole submissions, in ascending order
        self._last: list[ExportedPage] = []  # the parts of the submission of which more may come
        self.end: str | None = ""  # its id; None: all has come
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
        first, end = 0, len(page.ids)
        if self._last and end > 0 and page.ids[0] == self.end:
            self._last.append(page.part(0, 1))
            first = 1
        if self._last and (first < end or not page.next_page_token):
            self._pages.append(joined_parts(self._last))
            self._last = []
        if page.next_page_token and first < end:
            end -= 1
            self._last = [page.part(end, end + 1)]
        if first < end:
            self._pages.append(page.part(first, end))
        self.end = None
        if page.next_page_token:
            self.end = self._last[0].ids[0] if self._last else ""
            self.start(pool, page.next_page_token)

    def take(self, end: str | None) -> list[ExportedPage]:
        """Returns the submissions whose ids are below ``end``; None: all."""
        taken = []
        while self._pages and (end is None or self._pages[0].ids[0] < end):
            page = self._pages.pop(0)
            size = len(page.ids) if end is None else bisect.bisect_left(page.ids, end)
            taken.append(page.part(0, size))
            self.count += size
            if size < len(page.ids):
                self._pages.insert(0, page.part(size, len(page.ids)))
        return taken


def batches(servers: Sequence[ServerPages]) -> Iterator[list[ExportedPage]]:
    """Yields pages of whole submissions. The client ids of a batch are above those of the batches before.

    The next page of each server is on its way meanwhile.
    """
    with concurrent.futures.ThreadPoolExecutor(len(servers)) as pool:
        for server in servers:
            server.start(pool)
        while True:
            for server in servers:
                server.fill(pool)
            # Ids below all of these have come completely.
            ends = [server.end for server in servers if server.end is not None]
            end = min(ends) if ends else None
            if batch := [page for server in servers for page in server.take(end)]:
                yield batch
            elif end is None:
                return
            del batch
            for server in servers:
                if server.end == end:
                    server.wants_more = True
