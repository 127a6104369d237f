"""Measures how fast one Python process sends updates with the sparseagg client, and prints a JSON object.

The updates are those of workload A: 100 clients with 100 000 of 10 million keys each, Zipf 1.1, float32, keys plain.
The first round's result is held to the same sums taken here, bit for bit. Wants the package `sparseagg` and a server.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import statistics
import sys
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import sparseagg as sa

Update = tuple[npt.NDArray[np.uint32], npt.NDArray[np.float32]]

SEED = 1
TUPLES = 100_000
NUM_ROWS = 10_000_000
EXPONENT = 1.1


def make_update(rng: np.random.Generator) -> Update:
    """Returns ascending keys without repetitions, drawn as a power law, and values."""
    keys = np.empty(0, np.uint32)
    while len(keys) < TUPLES:
        uniform = rng.random(2 * TUPLES)
        ranks = (1 - uniform * (1 - NUM_ROWS ** (1 - EXPONENT))) ** (1 / (1 - EXPONENT))
        keys = np.union1d(keys, np.minimum(ranks, NUM_ROWS).astype(np.uint32) - 1)
    keys = np.sort(rng.choice(keys, TUPLES, replace=False)).astype(np.uint32)
    return keys, rng.random(TUPLES, np.float32) - np.float32(0.5)


def check(result: Any, updates: list[Update]) -> None:
    """Ends the program unless the result has the bits of float64 sums in the order of the clients."""
    sums = np.zeros(NUM_ROWS)
    for keys, values in updates:
        sums[keys] += values
    expected = np.unique(np.concatenate([keys for keys, _ in updates]))
    if not np.array_equal(result.keys, expected):
        raise SystemExit("python_client.py: other keys than expected")
    if result.values.tobytes() != sums[expected].astype(np.float32).tobytes():
        raise SystemExit("python_client.py: other values than expected")


def send(client: sa.Client, updates: list[Update], threads: int) -> tuple[float, Any]:
    """Submits all updates to a new round; returns the seconds that took, and the round's result."""
    spec = sa.RoundSpec(tensors=[sa.TensorSpec("tensor", dtype="float32", num_rows=NUM_ROWS)], op="sum")
    current = client.create_round(spec)
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        begin = time.perf_counter()
        submissions = [
            pool.submit(current.submit, f"c{k:08}", {"tensor": update}, key_encoding="plain")
            for k, update in enumerate(updates)
        ]
        for submission in submissions:
            submission.result()
        seconds = time.perf_counter() - begin
    result = current.finish()["tensor"]
    current.delete()
    return seconds, result


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True, help="HOST:PORT of the server")
    parser.add_argument("--clients", type=int, default=100, help="updates of a round")
    parser.add_argument("--threads", type=int, default=1, help="that submit at the same time")
    parser.add_argument("--repetitions", type=int, default=7, help="timed rounds")
    options = parser.parse_args()
    rng = np.random.default_rng(SEED)
    updates = [make_update(rng) for _ in range(options.clients)]
    num_bytes = sum(keys.nbytes + values.nbytes for keys, values in updates)
    with sa.Client(options.target) as client:
        _, result = send(client, updates, options.threads)  # warm
        check(result, updates)
        seconds = [send(client, updates, options.threads)[0] for _ in range(options.repetitions)]
    found = {
        "clients": options.clients,
        "tuples": options.clients * TUPLES,
        "bytes": num_bytes,
        "threads": options.threads,
        "seconds": [round(value, 6) for value in seconds],
        "bytes_per_s": round(num_bytes / statistics.median(seconds)),
        "slowest_bytes_per_s": round(num_bytes / max(seconds)),
        "fastest_bytes_per_s": round(num_bytes / min(seconds)),
    }
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
