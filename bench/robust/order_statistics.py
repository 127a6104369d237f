"""Rates of order statistics beside coordinate_mean, and beside NumPy on dense data. One thread; interleaved; best of N.

    python bench/robust/order_statistics.py [--repetitions 7]

Prints a line for each case and op: million values a second, and the ratio to coordinate_mean of the same case. Every
dense answer is compared with NumPy's before it is timed.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import sparseagg as sa

SEED = 39
# Name, clients, expected contributors of a key, keys, values of a row.
CASES = [
    ("8 a key, of 8", 8, 8, 1_000_000, 1),
    ("8 a key, of 64", 64, 8, 1_000_000, 1),
    ("64 a key, of 64", 64, 64, 150_000, 1),
    ("64 a key, of 256", 256, 64, 150_000, 1),
    ("8 a key, of 16, rows of 64", 16, 8, 20_000, 64),
    ("64 a key, of 64, rows of 16", 64, 64, 10_000, 16),
]
OPS = {
    "coordinate_mean": {"op": "coordinate_mean"},
    "median": {"op": "median"},
    "trimmed_mean": {"op": "trimmed_mean", "trim_fraction": 0.125},
    "quantile": {"op": "quantile", "quantile": 0.9},
    "trimmed_mean by weight": {"op": "trimmed_mean", "trim_fraction": 0.125, "weighting": "by_weight"},
    "median by weight": {"op": "median", "weighting": "by_weight"},
}


def updates_of(clients: int, contributors: int, num_keys: int, width: int) -> list[dict]:
    rng = np.random.default_rng(SEED)
    updates = []
    for _ in range(clients):
        chosen = rng.random(num_keys) < contributors / clients
        keys = np.flatnonzero(chosen).astype(np.uint32)
        updates.append({"v": (keys, rng.standard_normal((len(keys), width), np.float32))})
    return updates


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def best_of(calls: dict[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    """The least time of each call; all are called in turn, so that a slow moment of the machine meets all."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repetitions):
        for name, call in calls.items():
            best[name] = min(best[name], seconds(call))
    return best


def numpy_trimmed(stacked: np.ndarray, trim: int) -> np.ndarray:
    return np.sort(stacked, axis=0)[trim : len(stacked) - trim].mean(axis=0)


def report(title: str, num_values: int, best: dict[str, float], base: str) -> None:
    for name, taken in best.items():
        rate = num_values / taken / 1e6
        print(f"{title:28} {name:24} {rate:8.1f} M values/s   {best[base] / taken:5.2f} of {base}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=7)
    repetitions = parser.parse_args().repetitions
    for clients, num_keys in ((8, 1_000_000), (64, 150_000)):
        stacked = np.random.default_rng(SEED).standard_normal((clients, num_keys), np.float32)
        trim = clients // 8
        dense = [{"v": part} for part in stacked]

        def merged(dense=dense, num_keys=num_keys, **options) -> np.ndarray:
            spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=num_keys, layout="dense")], **options)
            return sa.aggregate(dense, spec, threads=1)["v"].values

        np.testing.assert_array_equal(merged(op="median"), np.median(stacked, axis=0))
        trimmed = merged(op="trimmed_mean", trim_count=trim)
        np.testing.assert_allclose(trimmed, numpy_trimmed(stacked, trim), rtol=1e-4, atol=1e-5)
        calls = {
            "numpy median": lambda stacked=stacked: np.median(stacked, axis=0),
            "median": lambda merged=merged: merged(op="median"),
            "numpy sort, mean": lambda stacked=stacked, trim=trim: numpy_trimmed(stacked, trim),
            "trimmed_mean": lambda merged=merged, trim=trim: merged(op="trimmed_mean", trim_count=trim),
        }
        best = best_of(calls, min(3, repetitions))
        report(f"dense, {clients} clients", stacked.size, best, "numpy median")
    for title, clients, contributors, num_keys, width in CASES:
        updates = updates_of(clients, contributors, num_keys, width)
        num_values = sum(len(update["v"][0]) for update in updates) * width
        calls = {}
        for name, options in OPS.items():
            spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=num_keys, row_width=width)], **options)
            weighed = [(u, 1.0 + i % 3 if "weight" in name else 1.0) for i, u in enumerate(updates)]
            calls[name] = lambda weighed=weighed, spec=spec: sa.aggregate(weighed, spec, threads=1)
        report(title, num_values, best_of(calls, repetitions), "coordinate_mean")


if __name__ == "__main__":
    main()
