"""How a round is merged: the ranges of keys that are merged apart; and calls of all servers at once."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Optional, TypeVar

import numpy as np

from sparseagg._internal.base.foreign import Array

_SEARCHES = 8  # of each key, at a nanosecond, where a sort takes 30
_LEAST_BYTES = 1 << 20  # of a range, unless the caller wants smaller ones: below, a range costs more than it saves

KeyRange = tuple[int, Optional[int]]  # begin, and end without end; None: behind the last key

S = TypeVar("S")
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a round is merged: in how many ranges of keys, and where.

    Attributes:
        certificate_key: file of the key that signs certificates; None: there is none.
        ranges: of each tensor, whatever its size; None: as many as the next two ask for.
        reducers: that work at once.
        range_bytes: the most bytes of submissions that a range should have.
        threads: of the engine, for each range.
        device: of the engine; None: as ``sparseagg.aggregate`` chooses.
        memory_limit: of each reducer, as of ``RangeTask``.
        servers: indices of the cluster's servers that have the round.
    """

    ranges: int | None
    reducers: int
    range_bytes: int
    threads: int
    device: str | None = None
    certificate_key: pathlib.Path | None = None
    memory_limit: int | None = None
    servers: tuple[int, ...] = ()

    def number_of_ranges(self, num_bytes: int, most_bytes: int | None = None) -> int:
        """Returns how many ranges a tensor has whose submissions take so many bytes.

        Args:
            num_bytes: of all submissions.
            most_bytes: that a range should have, where ``range_bytes`` is larger; None: ``range_bytes``.
        """
        largest = self.range_bytes if most_bytes is None else max(1, min(self.range_bytes, most_bytes))
        if self.ranges is not None:
            return self.ranges
        return max(1, -(-num_bytes // largest), min(self.reducers, num_bytes // _LEAST_BYTES))


def cuts_of_sample(sample: Array, num_ranges: int) -> list[KeyRange]:
    """Returns up to ``num_ranges`` ranges of all keys, in order, the fullest with as little of the sample as can be.

    A key with more than its share has a range of its own: the rows of one key are merged in one place.
    """
    keys, counts = np.unique(sample, return_counts=True)
    before = np.append(0, np.cumsum(counts))
    firsts: list[int] = []
    for most in len(sample) / num_ranges * (1 + np.arange(65) / 64):  # two shares are enough
        firsts = [0]
        while len(firsts) <= num_ranges and firsts[-1] < len(keys):
            last = firsts[-1]
            firsts.append(max(last + 1, int(np.searchsorted(before, before[last] + most, "right")) - 1))
        if firsts[-1] >= len(keys):
            break
    return _ranges({int(keys[first]) for first in firsts[1:-1]})


def is_crowded(sample: Array, ranges: Sequence[KeyRange], num_rows: int) -> bool:
    """Returns whether servers should sort large updates for the export of these ranges.

    They keep them in 1024 buckets of equally many keys (``CoarseBits`` of the engine) in no order within, and search
    the buckets that a range cuts. That takes less than a sort, unless keys crowd in buckets that many ranges cut.
    """
    width = 1 << max(0, (num_rows - 1 if num_rows else (1 << 64) - 1).bit_length() - 10)
    ordered = np.sort(sample)
    begins = np.array([begin for begin, _ in ranges], np.uint64)
    whole = np.uint64(width - 1)
    firsts = np.searchsorted(ordered, begins & ~whole)
    ends = np.append(np.searchsorted(ordered, (begins[1:] - np.uint64(1)) | whole, "right"), len(ordered))
    return bool((ends - firsts).sum() > _SEARCHES * len(ordered))


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


def seconds_left(deadline: float | None) -> float | None:
    """Returns the seconds from now to a deadline on ``time.monotonic``'s clock, at least 0; None without one."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())
