"""What a round of the benchmark is made of: the updates of its clients, their sums, and the clock of its stages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

SEED = 20261127
Array = npt.NDArray[Any]
# Keys (None: all of a dense tensor) and sums.
Sums = tuple[Array | None, Array]
# Clients, tuples of each, rows of the tensor. A dense update has all rows.
CASES = {
    "10 clients": (10, 100_000, 10_000_000),
    "1000 clients": (1000, 10_000, 10_000_000),
    "100,000 clients": (100_000, 100, 10_000_000),
    "dense 1 GB": (2, 0, 250_000_000),
    "quick": (20, 1000, 100_000),
}


class Updates:
    """The updates of a case, in columns: client i has the tuples from ``offsets[i]`` to ``offsets[i + 1]``."""

    def __init__(self, case: str) -> None:
        self.num_clients, tuples, self.num_rows = CASES[case]
        self.is_dense = tuples == 0
        rng = np.random.default_rng(SEED)
        self.ids = [f"client-{number:06}" for number in range(self.num_clients)]
        if self.is_dense:
            self.arrays = [rng.standard_normal(self.num_rows, np.float32) for _ in self.ids]
            self.num_bytes = sum(array.nbytes for array in self.arrays)
            return
        self.offsets = np.arange(self.num_clients + 1) * tuples
        drawn = rng.zipf(1.3, (self.num_clients, tuples)) * np.int64(2_654_435_761)
        self.keys = np.sort(drawn % self.num_rows, axis=1).astype(np.uint32).reshape(-1)
        self.rows = rng.standard_normal(self.num_clients * tuples, np.float32)
        self.num_bytes = self.keys.nbytes + self.rows.nbytes

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yields client ids, each with an array or with keys and rows."""
        for number, client_id in enumerate(self.ids):
            if self.is_dense:
                yield client_id, self.arrays[number]
            else:
                part = slice(self.offsets[number], self.offsets[number + 1])
                yield client_id, (self.keys[part], self.rows[part])

    def expected(self) -> Sums:
        """The sums in float64, in the order of the clients, rounded once."""
        sums = np.zeros(self.num_rows)
        if self.is_dense:
            for array in self.arrays:
                sums += array
            return None, sums.astype(np.float32)
        for part in range(0, len(self.keys), 1 << 20):
            # In the order of the tuples, which is that of the clients.
            np.add.at(sums, self.keys[part : part + (1 << 20)], self.rows[part : part + (1 << 20)])
        keys = np.unique(self.keys)
        return keys, sums[keys].astype(np.float32)


class Stages:
    """The seconds of the stages of a round."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._begun = time.perf_counter()

    def end(self, name: str) -> None:
        """A stage has ended, and the next one begins."""
        now = time.perf_counter()
        self.seconds[name] = now - self._begun
        self._begun = now


def numpy_sums(updates: list[Any]) -> Sums:
    """What people write first: updates are sorted and reduced, or dense arrays added, in float32."""
    if isinstance(updates[0], tuple):
        keys = np.concatenate([update[0] for update in updates])
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        return keys[starts], np.add.reduceat(np.concatenate([update[1] for update in updates])[order], starts)
    values = updates[0].copy()
    for update in updates[1:]:
        values += update
    return None, values
