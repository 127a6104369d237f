"""What a whole round of the benchmark is made of: the updates of its clients, their sums, and what is measured of it.

A round is created, the updates of its clients are submitted one after another by this process, and the result is read
into arrays. What an update needs before it is sent (its random numbers) is not timed. The result of each round is held
to the sums in float64, in the order of the clients: bit for bit, where the contestant adds in that order.

The stages: "create", "submit" (the last update has been acknowledged), "merge" (the sums are there) and "read" (the
sums have been fetched, or with Flower the updates). CPU seconds are those of this process, which plays the clients, and
of the others that take part. The coordinator's peak memory is that of the process that has the result.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from contestants import SEPARATE, Contestant
from machine import cpu_seconds, reset_peak, resident_bytes

SEED = 20261127
Array = npt.NDArray[Any]
# Keys (None: all of a dense tensor) and sums.
Sums = tuple["Array | None", Array]
# Clients, tuples of each, rows of the tensor. A dense update has all rows. Keys are sorted, and some repeated; in no
# order they come once in an update, but for the case with repeats, where seven in a thousand come twice.
CASES = {
    "10 clients": (10, 100_000, 10_000_000),
    "1000 clients": (1000, 10_000, 10_000_000),
    "100,000 clients": (100_000, 100, 10_000_000),
    "dense 1 GB": (2, 0, 250_000_000),
    "no order": (64, 250_000, 1 << 24),
    "no order, repeats": (64, 250_000, 1 << 24),
    "no order, rows of 16": (64, 62_500, 1 << 24),
    "quick": (20, 1000, 100_000),
}


class Updates:
    """The updates of a case, in columns: client i has the tuples from ``offsets[i]`` to ``offsets[i + 1]``."""

    def __init__(self, case: str) -> None:
        self.num_clients, tuples, self.num_rows = CASES[case]
        self.is_dense = tuples == 0
        self.row_width = 16 if case.endswith("rows of 16") else 1
        rng = np.random.default_rng(SEED)
        self.ids = [f"client-{number:06}" for number in range(self.num_clients)]
        if self.is_dense:
            self.arrays = [rng.standard_normal(self.num_rows, np.float32) for _ in self.ids]
            self.num_bytes = sum(array.nbytes for array in self.arrays)
            return
        self.offsets = np.arange(self.num_clients + 1) * tuples
        if case.startswith("no order"):
            drawn = np.stack([rng.choice(self.num_rows, tuples, replace=False) for _ in self.ids])
            if case.endswith("repeats"):
                repeats = tuples * 7 // 1000
                drawn[:, :repeats] = drawn[:, -repeats:]
        else:
            drawn = np.sort(rng.zipf(1.3, (self.num_clients, tuples)) * np.int64(2_654_435_761) % self.num_rows, axis=1)
        self.keys = drawn.astype(np.uint32).reshape(-1)
        self.rows = rng.standard_normal(self.num_clients * tuples * self.row_width, np.float32)
        if self.row_width > 1:
            self.rows = self.rows.reshape(-1, self.row_width)
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
        if self.is_dense:
            sums = np.zeros(self.num_rows)
            for array in self.arrays:
                sums += array
            return None, sums.astype(np.float32)
        keys, places = np.unique(self.keys, return_inverse=True)
        sums = np.zeros((len(keys), *self.rows.shape[1:]))
        np.add.at(sums, places, self.rows)  # in the order of the tuples, which is that of the clients
        return keys, sums.astype(np.float32)


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


class Peer(Protocol):
    """What runs rounds: ``server_pids`` are its other processes, and ``coordinator_pid`` one that has the result."""

    is_exact: bool
    server_pids: list[int]

    def round(self, stages: Stages) -> Sums:
        """Runs a round of all updates, and ends each stage."""

    def close(self) -> None:
        """Ends its other processes."""


def contestant(name: str, updates: Updates, expected: Sums, peer: Peer) -> Contestant:
    """Returns a contestant that runs rounds, checks each of them, and measures its stages, CPU time and memory."""
    pids: list[int | str] = ["self", *peer.server_pids]
    coordinator = getattr(peer, "coordinator_pid", None)
    found = Contestant(name, "", 0, inputs=SEPARATE, check=lambda *_: None, close=peer.close)

    def run() -> None:
        # The highest size counts anew: checks take memory, too.
        reset_peak()
        held, used = resident_bytes("self", "VmRSS"), sum(cpu_seconds(pid) for pid in pids)
        stages = Stages()
        sums = peer.round(stages)
        cpu = sum(cpu_seconds(pid) for pid in pids) - used
        own = resident_bytes("self") - held if coordinator is None else resident_bytes(coordinator)
        total = sum(stages.seconds.values())
        others = sum(resident_bytes(pid) for pid in peer.server_pids if pid != coordinator)
        peaks = {"coordinator_peak_bytes": own, "server_peak_bytes": others}
        found.measured = {"seconds": total, **stages.seconds, "total": total, "cpu": cpu, **peaks}
        check(sums, expected, peer.is_exact)

    found.run = run
    return found


def check(found: Sums, expected: Sums, is_exact: bool) -> None:
    """Raises ``ValueError`` unless the result is right."""
    keys, values = found
    if (keys is None) != (expected[0] is None) or (keys is not None and not np.array_equal(keys, expected[0])):
        raise ValueError("other keys than expected")
    if is_exact and values.tobytes() != expected[1].tobytes():
        raise ValueError("other bits than expected")
    if not np.allclose(values, expected[1], rtol=1e-3, atol=1e-2):
        raise ValueError("other sums than expected")


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
