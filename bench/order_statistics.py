"""Rates of order statistics beside coordinate_mean, and beside other libraries on dense data. One thread.

    python bench/order_statistics.py [--repetitions 7] [--out FILE.json]

Contestants take turns, and the best of N counts. Prints a line for each case and op: million values a second, and the
ratio to another line of the case. On dense data, each contestant gets one array per client, and its answer is compared
with NumPy's before it is timed. Flower (the functions that its strategies call) and ByzFL are there if the interpreter
has them. acfa-flower is not: PyPI has only its Python part, and its median is another function, as its own page says.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json_lines
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


def flower_trimmed(parts: list[np.ndarray], trim: int) -> np.ndarray:
    """What FedTrimmedAvg.aggregate_train does with a layer."""
    from flwr.serverapp.strategy.fedtrimmedavg import trim_mean

    return trim_mean(np.stack(parts), trim / len(parts))


def byzfl_median(parts: list[np.ndarray]) -> np.ndarray:
    import byzfl

    return byzfl.Median()(parts)


def byzfl_trimmed(parts: list[np.ndarray], trim: int) -> np.ndarray:
    import byzfl

    return byzfl.TrMean(trim)(parts)


def byzfl_of_tensors(rule: Callable[[list], object], parts: list[np.ndarray]) -> np.ndarray:
    """The same of torch's tensors, which share the arrays' memory."""
    import torch

    return rule([torch.from_numpy(part) for part in parts]).numpy()


def ours(parts: list[np.ndarray], **options: object) -> np.ndarray:
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=len(parts[0]), layout="dense")], **options)
    return sa.aggregate([{"v": part} for part in parts], spec, threads=1)["v"].values


# Of each op: ours first, then the others. FedMedian.aggregate_train does what is called "NumPy" here.
DENSE: dict[str, dict[str, Callable[[list[np.ndarray], int], np.ndarray]]] = {
    "median": {
        "sparseagg": lambda parts, trim: ours(parts, op="median"),
        "NumPy": lambda parts, trim: np.median(np.stack(parts), axis=0),
        "ByzFL": lambda parts, trim: byzfl_median(parts),
        "ByzFL, torch": lambda parts, trim: byzfl_of_tensors(byzfl_median, parts),
    },
    "trimmed_mean": {
        "sparseagg": lambda parts, trim: ours(parts, op="trimmed_mean", trim_fraction=(trim + 0.5) / len(parts)),
        "NumPy, sorted": lambda parts, trim: numpy_trimmed(np.stack(parts), trim),
        "Flower": flower_trimmed,
        "ByzFL": byzfl_trimmed,
        "ByzFL, torch": lambda parts, trim: byzfl_of_tensors(lambda p: byzfl_trimmed(p, trim), parts),
    },
}


def measure_dense(clients: int, num_keys: int, repetitions: int) -> list[dict]:
    parts = list(np.random.default_rng(SEED).standard_normal((clients, num_keys), np.float32))
    trim = clients // 8
    lines = []
    for op, contestants in DENSE.items():
        expected = np.median(np.stack(parts), axis=0) if op == "median" else numpy_trimmed(np.stack(parts), trim)
        calls = {}
        for name, call in contestants.items():
            try:
                found = call(parts, trim)
            except ImportError as error:
                print(f"{name} is left out: {error}")
                continue
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
            calls[name] = lambda call=call: call(parts, trim)
        best = best_of(calls, min(5, repetitions))
        lines += report(f"dense {op}, {clients} clients", clients * num_keys, best, "sparseagg")
    return lines


def report(title: str, num_values: int, best: dict[str, float], base: str) -> list[dict]:
    lines = []
    for name, taken in best.items():
        rate = num_values / taken / 1e6
        print(f"{title:30} {name:24} {rate:8.1f} M values/s   {best[base] / taken:5.2f} of {base}", flush=True)
        lines.append({"case": title, "name": name, "values_per_s": rate * 1e6})
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    lines = []
    for clients, num_keys in ((8, 1_000_000), (64, 150_000)):
        lines += measure_dense(clients, num_keys, options.repetitions)
    for title, clients, contributors, num_keys, width in CASES:
        updates = updates_of(clients, contributors, num_keys, width)
        num_values = sum(len(update["v"][0]) for update in updates) * width
        calls = {}
        for name, op in OPS.items():
            spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=num_keys, row_width=width)], **op)
            weighed = [(u, 1.0 + i % 3 if "weight" in name else 1.0) for i, u in enumerate(updates)]
            calls[name] = lambda weighed=weighed, spec=spec: sa.aggregate(weighed, spec, threads=1)
        lines += report(title, num_values, best_of(calls, options.repetitions), "coordinate_mean")
    if options.out is not None:
        head = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "numpy": np.__version__, "seed": SEED}
        json_lines.write(options.out, {**head, "rates": lines})


if __name__ == "__main__":
    main()
