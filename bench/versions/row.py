"""One figure that a Python user waits for, measured in a process of its own with the package of its interpreter.

    row.py NAME [--server PATH]      prints {"value": X, "unit": U, …}

It runs with older versions of the package, too: what a version does not have is left out ({"absent": reason}). Every
result is held to sums taken here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import sparseagg as sa

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "service"))
from python_client import make_update
from server_process import Server

ROWS_DENSE = 60_000_000  # 240 MB of float32
SEED = 1
SMALL_TUPLES = 100
NUM_ROWS = 10_000_000


def median_of(repetitions: int, timed: Callable[[], float]) -> dict[str, Any]:
    """Seconds: the first, and the median of those after it."""
    first = timed()
    return {"value": statistics.median(timed() for _ in range(repetitions)), "unit": "s", "first": first}


def dense_spec() -> sa.RoundSpec:
    return sa.RoundSpec([sa.TensorSpec("t", "float32", num_rows=ROWS_DENSE, layout="dense")])


def sparse_spec() -> sa.RoundSpec:
    return sa.RoundSpec([sa.TensorSpec("t", "float32", num_rows=NUM_ROWS)])


def status_bytes(field: str) -> int:
    """A size in this process's status, such as VmHWM."""
    lines = pathlib.Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


class Rows:
    """The rows of the table, each a method that takes the address of a server."""

    def copy_240_mb(self, _: str) -> dict[str, Any]:
        source = np.random.default_rng(SEED).standard_normal(ROWS_DENSE, np.float32)
        target = np.zeros_like(source)

        def timed() -> float:
            begin = time.perf_counter()
            np.copyto(target, source)
            return time.perf_counter() - begin

        return median_of(9, timed)

    def read_dense_240_mb(self, address: str) -> dict[str, Any]:
        values = np.random.default_rng(SEED).standard_normal(ROWS_DENSE, np.float32)
        expected = values[:: ROWS_DENSE // 1000].copy()
        with sa.Client(address) as client:
            opened = client.create_round(dense_spec())
            opened.submit("a", {"t": values})
            del values
            opened.close()
            opened.wait()
            peaks = []

            def timed() -> float:
                pathlib.Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
                held = status_bytes("VmRSS")
                begin = time.perf_counter()
                found = opened.result()["t"].values
                seconds = time.perf_counter() - begin
                peaks.append(status_bytes("VmHWM") - held - found.nbytes)
                assert np.array_equal(found.reshape(-1)[:: ROWS_DENSE // 1000], expected)
                return seconds

            return {**median_of(3, timed), "peak_beyond_result": max(peaks)}

    def submit_dense_240_mb_in_memory(self, _: str) -> dict[str, Any]:
        return self.submit_dense_240_mb(":memory:")

    def submit_dense_240_mb(self, address: str) -> dict[str, Any]:
        values = np.random.default_rng(SEED).standard_normal(ROWS_DENSE, np.float32)
        with sa.Client(address) as client:

            def timed() -> float:
                opened = client.create_round(dense_spec())
                begin = time.perf_counter()
                opened.submit("a", {"t": values})
                seconds = time.perf_counter() - begin
                opened.delete()
                return seconds

            return median_of(5, timed)

    def _small(self, clients: int) -> Iterator[tuple[str, Any]]:
        rng = np.random.default_rng(SEED)
        for number in range(clients):
            keys = np.sort(rng.choice(NUM_ROWS, SMALL_TUPLES, replace=False).astype(np.uint32))
            yield f"client-{number:06}", (keys, rng.standard_normal(SMALL_TUPLES, np.float32))

    def _a_second(self, opened: Any, updates: list[tuple[str, Any]], seconds: float) -> dict[str, Any]:
        result = opened.finish()["t"]
        sums = np.zeros(NUM_ROWS)
        for _, (keys, values) in updates:
            sums[keys] += values
        touched = np.unique(np.concatenate([keys for _, (keys, _) in updates]))
        assert np.array_equal(result.keys, touched)
        assert result.values.tobytes() == sums[touched].astype(np.float32).tobytes()
        return {"value": len(updates) / seconds, "unit": "/s"}

    def submissions_one_by_one(self, address: str, clients: int = 4000) -> dict[str, Any]:
        updates = list(self._small(clients))
        with sa.Client(address) as client:
            opened = client.create_round(sparse_spec())
            begin = time.perf_counter()
            for client_id, update in updates:
                opened.submit(client_id, {"t": update})
            return self._a_second(opened, updates, time.perf_counter() - begin)

    def submissions_one_by_one_in_memory(self, _: str) -> dict[str, Any]:
        return self.submissions_one_by_one(":memory:", 20_000)

    def submissions_asyncio(self, address: str) -> dict[str, Any]:
        updates = list(self._small(4000))

        async def send(name: str) -> float:
            async with sa.aio.Client(address) as client:
                opened = await client.get_round(name)
                waiting = iter(updates)

                async def worker() -> None:
                    for client_id, update in waiting:
                        await opened.submit(client_id, {"t": update})

                begin = time.perf_counter()
                await asyncio.gather(*(worker() for _ in range(32)))
                return time.perf_counter() - begin

        with sa.Client(address) as client:
            opened = client.create_round(sparse_spec())
            return self._a_second(opened, updates, asyncio.run(send(opened.name)))

    def submissions_in_batches(self, address: str) -> dict[str, Any]:
        updates = list(self._small(50_000))
        with sa.Client(address) as client:
            opened = client.create_round(sparse_spec())
            if not hasattr(opened, "submit_batch"):
                return {"absent": "no batches"}
            ids = [client_id for client_id, _ in updates]
            keys = np.concatenate([update[0] for _, update in updates])
            values = np.concatenate([update[1] for _, update in updates])
            offsets = np.arange(len(ids) + 1) * SMALL_TUPLES
            begin = time.perf_counter()
            opened.submit_batch(ids, {"t": (offsets, keys, values)})
            return self._a_second(opened, updates, time.perf_counter() - begin)

    def submissions_in_batches_in_memory(self, _: str) -> dict[str, Any]:
        return self.submissions_in_batches(":memory:")

    def aggregate_20000_tensors(self, _: str) -> dict[str, Any]:
        names = [f"layer.{number}" for number in range(20_000)]
        rng = np.random.default_rng(SEED)
        spec = sa.RoundSpec([sa.TensorSpec(name, "float32", num_rows=1000) for name in names])
        updates = [
            {name: (np.arange(10, dtype=np.uint32), rng.standard_normal(10, np.float32)) for name in names}
            for _ in range(2)
        ]

        def timed() -> float:
            begin = time.perf_counter()
            found = sa.aggregate(updates, spec)
            seconds = time.perf_counter() - begin
            name = names[-1]
            expected = (updates[0][name][1].astype(float) + updates[1][name][1]).astype(np.float32)
            assert np.array_equal(found[name].values.reshape(-1), expected)
            return seconds

        return median_of(2, timed)

    def _aggregate(self, updates: list[Any]) -> dict[str, Any]:
        tuples = sum(len(update["t"][0]) for update in updates)
        sums = np.zeros(NUM_ROWS)
        for update in updates:
            sums[update["t"][0]] += update["t"][1]

        def timed() -> float:
            begin = time.perf_counter()
            found = sa.aggregate(updates, sparse_spec(), threads=1)["t"]
            seconds = time.perf_counter() - begin
            assert found.values.tobytes() == sums[found.keys].astype(np.float32).tobytes()
            return seconds

        found = median_of(5, timed)
        return {"value": tuples / found["value"] / 1e6, "unit": "M tuples/s", "first": tuples / found["first"] / 1e6}

    def aggregate_100_clients(self, _: str) -> dict[str, Any]:
        rng = np.random.default_rng(SEED)
        return self._aggregate([{"t": make_update(rng)} for _ in range(100)])

    def aggregate_10000_clients(self, _: str) -> dict[str, Any]:
        rng = np.random.default_rng(SEED)
        updates = []
        for _ in range(100):  # a large one is dealt out to a hundred clients
            keys, values = make_update(rng)
            updates += [{"t": (keys[part::100], values[part::100])} for part in range(100)]
        updates = [{"t": (np.ascontiguousarray(one["t"][0]), np.ascontiguousarray(one["t"][1]))} for one in updates]
        return self._aggregate(updates)


NAMES = [name for name in vars(Rows) if not name.startswith("_")]


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--server", type=pathlib.Path, required=True)
    options = parser.parse_args()
    flags = ("--memory-limit", "8GiB", "--max-bytes-per-submission", "0", "--max-tuples-per-submission", "0")
    with Server(options.server, *flags) as server:
        found = getattr(Rows(), options.name)(server.address)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
