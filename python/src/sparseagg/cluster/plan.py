"""How a round is merged: the ranges of keys that are merged apart, and the result that is made of theirs."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Optional, TypeVar

import numpy as np

from sparseagg._internal.base import extension
from sparseagg._internal.base.foreign import Array, bits_from_float, float_from_bits
from sparseagg._internal.local.aggregate import aggregate
from sparseagg._internal.results.result import TensorResult
from sparseagg._internal.spec.options import DTYPES, key_bytes
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec

_SEARCHES = 8  # of each key, at a nanosecond, where a sort takes 30
_LEAST_BYTES = 1 << 20  # of a range, unless the caller wants smaller ones: below, a range costs more than it saves

KeyRange = tuple[int, Optional[int]]  # begin, and end without end; None: behind the last key
Count = Callable[[int, Optional[tuple[int, list[int]]]], Array]  # as count_keys of bits and within

S = TypeVar("S")
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a round is merged: in how many ranges of keys, and where."""

    ranges: int | None  # of each tensor, whatever its size; None: as many as the next two ask for
    reducers: int
    range_bytes: int  # the most bytes of submissions that a range should have
    threads: int
    device: str | None = None  # of the engine; None: as ``sparseagg.aggregate`` chooses
    certificate_key: pathlib.Path | None = None  # file of the key that signs certificates; None: there is none
    # bytes that the submissions of a range may take, with their sums. Beyond, they are folded before others are read.
    # None: no limit.
    memory_limit: int | None = None
    servers: tuple[int, ...] = ()  # indices of the cluster's servers that have the round

    def number_of_ranges(self, num_bytes: int, most_bytes: int | None = None) -> int:
        """Returns how many ranges a tensor has whose submissions take so many bytes, of ``most_bytes`` at most if it is
        given.
        """
        largest = self.range_bytes if most_bytes is None else max(1, min(self.range_bytes, most_bytes))
        if self.ranges is not None:
            return self.ranges
        return max(1, -(-num_bytes // largest), min(self.reducers, num_bytes // _LEAST_BYTES))


def ranges_of_counts(
    count: Count, num_rows: int, most: int, number_for: Callable[[int], int]
) -> tuple[list[KeyRange], bool]:
    """Returns ranges of all keys, ``most`` of them, as ``cuts_of_counts``, and whether servers may send them in any
    order.

    Buckets have no more than a sixteenth of a range, but for single keys: the fullest are counted in parts.
    ``number_for``: how many ranges so many keys have.
    """
    if most == 1:
        return [(0, None)], True
    bits = max(0, (num_rows - 1 if num_rows else (1 << 64) - 1).bit_length() - min(17, (64 * most).bit_length()))
    counts = count(bits, None)
    begins = np.arange(len(counts), dtype=np.uint64) << np.uint64(bits)
    share = counts.sum() // (16 * most)
    found = []
    while bits > 0 and len(full := np.flatnonzero(counts > share)) > 0:
        full = full[np.argsort(counts[full])[-4096:]]
        found.append((np.delete(begins, full), np.delete(counts, full)))
        split = min(bits, 17 - (len(full) - 1).bit_length())
        counts = count(bits - split, (bits, (begins[full] >> np.uint64(bits)).tolist()))
        bits -= split
        begins = np.add.outer(begins[full], np.arange(1 << split, dtype=np.uint64) << np.uint64(bits)).reshape(-1)
    begins, counts = (np.concatenate(parts) for parts in zip(*found, (begins, counts)))
    order = np.argsort(begins)
    begins, counts = begins[order], counts[order]
    ranges = cuts_of_counts(begins, counts, number_for(int(counts.sum())))
    return ranges, not is_crowded(begins, counts, ranges, extension.load().coarse_bits(num_rows))


def cuts_of_counts(begins: Array, counts: Array, num_ranges: int) -> list[KeyRange]:
    """Returns up to ``num_ranges`` ranges of all keys, in order, of whole buckets, the fullest as small as can be.

    A bucket with more than its share has a range of its own, such as a single key: its rows are merged in one place.
    """
    before = np.append(0, np.cumsum(counts, dtype=np.float64))
    firsts: list[int] = []
    for most in before[-1] / num_ranges * (1 + np.arange(65) / 64):  # two shares are enough
        firsts = [0]
        while len(firsts) <= num_ranges and firsts[-1] < len(counts):
            last = firsts[-1]
            firsts.append(max(last + 1, int(np.searchsorted(before, before[last] + most, "right")) - 1))
        if firsts[-1] >= len(counts):
            break
    return _ranges({int(begins[first]) for first in firsts[1:-1]})


def is_crowded(begins: Array, counts: Array, ranges: Sequence[KeyRange], bits: int) -> bool:
    """Returns whether servers should sort large updates for the export of these ranges.

    They keep them in buckets of ``bits`` bits in no order within, and search the buckets that a range cuts. That takes
    less than a sort, unless keys crowd in buckets that many ranges cut.
    """
    whole = np.uint64((1 << bits) - 1)
    before = np.append(np.uint64(0), np.cumsum(counts))
    cuts = np.array([begin for begin, _ in ranges], np.uint64)
    firsts = before[np.searchsorted(begins, cuts & ~whole)]
    ends = before[np.append(np.searchsorted(begins, (cuts[1:] - np.uint64(1)) | whole, "right"), len(counts))]
    return bool((ends - firsts).sum() > _SEARCHES * before[-1])


def cuts_of_rows(num_rows: int, num_ranges: int) -> list[KeyRange]:
    """Returns up to ``num_ranges`` ranges of equally many keys below ``num_rows``."""
    return _ranges({num_rows * part // num_ranges for part in range(1, num_ranges)})


def _ranges(cuts: set[int]) -> list[KeyRange]:
    begins = [0, *sorted(cuts - {0})]
    return list(zip(begins, [*begins[1:], None]))


def on_all(servers: Sequence[S], call: Callable[[S], T]) -> list[T]:
    """Calls the rounds or clients of all servers at once; returns the answers, or raises the error of the first one."""
    with concurrent.futures.ThreadPoolExecutor(max(1, len(servers))) as pool:
        futures = [pool.submit(call, server) for server in servers]
    return [future.result() for future in futures]


COLUMNS = ("keys", "values", "counts", "weights", "moments")  # of a TensorResult, in order of its rows


def join_ranges(spec: RoundSpec, tensor: TensorSpec, parts: Sequence[TensorResult]) -> tuple[TensorResult, int]:
    """Returns the result of a tensor of those of its ranges, which are sparse and in order of keys, and how many rows
    ``result_top_k`` and ``result_min_norm`` have removed.
    """
    whole = concatenated(spec, tensor, parts)
    if is_cut(spec, tensor):
        kept = cut_rows(spec, tensor, whole)
        return kept, len(whole) - len(kept)
    return (dense(whole) if is_dense(spec, tensor, whole.dtype, len(whole)) else whole), 0


def concatenated(spec: RoundSpec, tensor: TensorSpec, parts: Sequence[TensorResult]) -> TensorResult:
    """Returns one sparse result of those of some ranges, which are in order of keys."""
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in COLUMNS
        if getattr(parts[0], name) is not None
    }
    return dataclasses.replace(parts[0], fill=spec.aggregation_of(tensor).fill, shape=tensor.shape, **columns)


def rows_between(whole: TensorResult, keys: KeyRange) -> TensorResult:
    """Returns the rows of a sparse result with keys of a range."""
    first = int(np.searchsorted(whole.keys, np.array(keys[0], np.uint64)))
    last = len(whole) if keys[1] is None else int(np.searchsorted(whole.keys, np.array(keys[1], np.uint64)))
    return _picked(whole, slice(first, last))


def _picked(whole: TensorResult, rows: Any) -> TensorResult:
    columns = {name: getattr(whole, name) for name in COLUMNS}
    picked: dict[str, Any] = {name: None if each is None else each[rows] for name, each in columns.items()}
    return dataclasses.replace(whole, **picked)


def is_cut(spec: RoundSpec, tensor: TensorSpec) -> bool:
    """Returns whether ``result_top_k`` or ``result_min_norm`` removes rows of a tensor's result."""
    how = spec.aggregation_of(tensor)
    return bool(how.result_top_k or how.result_min_norm)


def cut_rows(spec: RoundSpec, tensor: TensorSpec, whole: TensorResult) -> TensorResult:
    """Returns the rows that the cut leaves, by the engine: one update, whose sum is itself, and its cut."""
    how = spec.aggregation_of(tensor)
    cut: dict[str, Any] = {"result_top_k": how.result_top_k, "result_min_norm": how.result_min_norm}
    if "float" in whole.dtype:
        cut["on_nonfinite"] = "propagate"
    alone = TensorSpec(
        whole.name, whole.dtype, num_rows=whole.num_rows, row_width=whole.row_width, op="sum",
        **{name: value for name, value in cut.items() if value},
    )  # fmt: skip
    kept = aggregate([{whole.name: (whole.keys, whole.values)}], RoundSpec([alone]))[whole.name].keys
    return _picked(whole, np.searchsorted(whole.keys, kept))


def is_dense(spec: RoundSpec, tensor: TensorSpec, dtype: str, num_rows: int) -> bool:
    """Returns whether a result of so many rows of a dtype is dense: ``IsDenseResult`` of the engine."""
    how = spec.aggregation_of(tensor)
    if how.result_layout != "auto":
        return how.result_layout == "dense"
    if tensor.num_rows == 0:
        return False
    row_bytes = 4 if how.op == "union" else DTYPES[dtype] * tensor.row_width
    if num_rows * (key_bytes(tensor.num_rows) + row_bytes) >= tensor.num_rows * row_bytes:
        return True
    return how.dense_threshold is not None and num_rows / tensor.num_rows >= how.dense_threshold


def dense(whole: TensorResult, keys: KeyRange = (0, None)) -> TensorResult:
    """Returns the dense result of a range of keys, where ``whole`` has the rows with a submission."""
    begin, end = min(keys[0], whole.num_rows), whole.num_rows if keys[1] is None else min(keys[1], whole.num_rows)
    is_all = (begin, end) == (0, whole.num_rows)

    def spread(column: Array | None, fill: Any) -> Array | None:
        if column is None:
            return None
        rows = np.full((end - begin, *column.shape[1:]), fill, column.dtype)
        rows[whole.keys - whole.keys.dtype.type(begin)] = column
        return rows

    fill: Any = whole.fill
    all_keys: Any = None  # which the result makes at their first use
    if not is_all:
        all_keys = np.arange(begin, end, dtype=whole.keys.dtype)
    if whole.dtype == "bfloat16":
        fill = float_from_bits(bits_from_float(np.array([fill])))[0]
    return dataclasses.replace(
        whole,
        layout="dense",
        keys=all_keys,
        values=spread(whole.values, fill),
        counts=spread(whole.counts, 0),
        weights=spread(whole.weights, 0.0),
        moments=spread(whole.moments, 0.0),
    )
