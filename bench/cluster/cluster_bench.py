"""Rounds over several servers on this machine: seconds from the seal to the result, and how even the ranges are.

    cluster_bench.py [--out FILE] [--quick]

Clients with random keys submit to one server, and to clusters of 1, 2 and 4 servers; those times are not counted. Then
`finish` runs several times; the median counts, and the first run, whose connections and workers are cold, is given by
itself. The result of each is held to that of one server, bit for bit. CPU seconds are those of this process and of the
servers; with Ray those of its workers are not counted, and the field is null.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import hashlib
import importlib.util
import json
import os
import pathlib
import statistics
import time
from typing import Any

import numpy as np
import sparseagg as sa
from sparseagg.cluster import Cluster
from sparseagg.cluster.plan import cuts_of_sample

NUM_ROWS = 1 << 24
SERVERS = (1, 2, 4)
RANGES = (1, 4, 8)


def updates_of(clients: int, tuples: int) -> dict[str, Any]:
    rng = np.random.default_rng(38)
    return {
        f"client-{i:03}": (rng.integers(0, NUM_ROWS, tuples, dtype=np.uint32), rng.standard_normal(tuples, np.float32))
        for i in range(clients)
    }


def hash_of(result: sa.Result) -> str:
    tensor = result["t"]
    return hashlib.blake2b(tensor.keys.tobytes() + tensor.values.tobytes(), digest_size=8).hexdigest()


def cpu_seconds(pids: list[int]) -> float:
    """CPU seconds of this process and of others, so far."""
    ticks = os.sysconf("SC_CLK_TCK")
    of_others = 0.0
    for pid in pids:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        of_others += (int(fields[11]) + int(fields[12])) / ticks
    return time.process_time() + of_others


def measure(finish: Any, pids: list[int], repetitions: int) -> dict[str, Any]:
    """Returns the times of some runs, and the hash of their result."""
    seconds, cpu, hashes = [], [], set()
    for _ in range(repetitions + 1):
        begun, cpu_begun = time.perf_counter(), cpu_seconds(pids)
        result = finish()
        seconds.append(time.perf_counter() - begun)
        cpu.append(cpu_seconds(pids) - cpu_begun)
        hashes.add(hash_of(result))
    assert len(hashes) == 1
    return {
        "first_s": seconds[0],
        "median_s": statistics.median(seconds[1:]),
        "fastest_s": min(seconds[1:]),
        "cpu_s": statistics.median(cpu[1:]),
        "hash": hashes.pop(),
    }


def one_server(spec: sa.RoundSpec, updates: dict[str, Any], repetitions: int) -> dict[str, Any]:
    """The same updates in rounds of one server: seconds from the close to the result."""
    with sa.Server() as server, sa.Client(server.address) as client:
        rounds = []
        for _ in range(repetitions + 1):
            rounds.append(client.create_round(spec))
            for client_id, update in updates.items():
                rounds[-1].submit(client_id, update)
        waiting = iter(rounds)
        return measure(lambda: next(waiting).finish(), [server.pid], repetitions)


def cluster_rounds(spec: sa.RoundSpec, updates: dict[str, Any], repetitions: int) -> list[dict[str, Any]]:
    found = []
    executors = ["local", *(["ray"] if importlib.util.find_spec("ray") else [])]
    for number in SERVERS:
        with contextlib.ExitStack() as stack:
            servers = [stack.enter_context(sa.Server()) for _ in range(number)]
            addresses, pids = [each.address for each in servers], [each.pid for each in servers]
            with Cluster(addresses) as cluster:
                opened = cluster.create_round(spec)
                for client_id, update in updates.items():
                    opened.submit(client_id, update)
            for executor in executors:
                for ranges in RANGES:
                    with Cluster(addresses, executor=executor, ranges=ranges, reducers=2) as cluster:
                        resumed = cluster.resume(opened.name)
                        times = measure(resumed.finish, pids, repetitions)
                        if executor == "ray":
                            times["cpu_s"] = None
                        steps = dict(resumed.times)
                    found.append({"servers": number, "ranges": ranges, "executor": executor, **times, "steps": steps})
                    print(found[-1], flush=True)
    return found


def small_round() -> dict[str, Any]:
    """The overhead of a cluster of two servers: a round of ten clients with ten tuples each."""
    spec = sa.RoundSpec([sa.TensorSpec("t", "float32", num_rows=1000)])
    updates = updates_of(10, 10)
    updates = {each: (keys % 1000, values) for each, (keys, values) in updates.items()}
    seconds = {"cluster": [], "server": []}
    with Cluster(2) as cluster, sa.Client(cluster.addresses[0]) as client:
        for _ in range(20):
            for name, create in (("cluster", cluster.create_round), ("server", client.create_round)):
                opened = create(spec)
                for client_id, update in updates.items():
                    opened.submit(client_id, update)
                begun = time.perf_counter()
                opened.finish()
                seconds[name].append(time.perf_counter() - begun)
                opened.delete()
    return {f"{name}_finish_s": statistics.median(each) for name, each in seconds.items()}


def balance() -> list[dict[str, Any]]:
    """The fullest of 8 ranges beside the mean, and the share of the most frequent key, which no cut divides."""
    found = []
    rng = np.random.default_rng(39)
    for exponent in (0.8, 1.0, 1.2):
        weights = 1.0 / np.arange(1, 1_000_001) ** exponent
        # The frequent keys are anywhere, as hashed or numbered words are.
        keys = rng.permutation(1_000_000)[
            np.searchsorted(np.cumsum(weights) / weights.sum(), rng.random(4_000_000)).clip(0, 999_999)
        ].astype(np.uint64)
        # A client lists a key once, so that a key comes from each of 64 clients at most.
        keys = np.concatenate([np.unique(part) for part in np.array_split(keys, 64)])
        ranges = cuts_of_sample(keys[:: max(1, len(keys) // 100_000)], 8)
        begins = np.array([begin for begin, _ in ranges], np.uint64)
        shares = np.bincount(np.searchsorted(begins, keys, side="right") - 1, minlength=8)
        found.append({"zipf": exponent, "tuples": len(keys), "fullest_of_mean": float(shares.max() / shares.mean())})
    return found


def rounded(value: Any) -> Any:
    """Returns the value with five digits of each number that has more."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/bench/cluster.json"))
    parser.add_argument("--quick", action="store_true", help="a tenth of the tuples")
    options = parser.parse_args()
    clients, tuples, repetitions = 64, 25_000 if options.quick else 250_000, 3
    spec = sa.RoundSpec([sa.TensorSpec("t", "float32", num_rows=NUM_ROWS)])
    updates = updates_of(clients, tuples)
    alone = one_server(spec, updates, repetitions)
    print("one server", alone, flush=True)
    rounds = cluster_rounds(spec, updates, repetitions)
    assert {each.pop("hash") for each in rounds} == {alone.pop("hash")}
    num_bytes = clients * tuples * 8
    for each in rounds:
        each["megabytes_per_s"] = num_bytes / 1e6 / each["median_s"]
    report = {
        "date": datetime.date.today().isoformat(),
        "cores": os.cpu_count(),
        "clients": clients,
        "tuples": clients * tuples,
        "bytes": num_bytes,
        "one_server": {**alone, "megabytes_per_s": num_bytes / 1e6 / alone["median_s"]},
        "clusters": rounds,
        "small_round": small_round(),
        "balance": balance(),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(rounded(report), indent=1) + "\n")


if __name__ == "__main__":
    main()
