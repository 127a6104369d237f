#!/usr/bin/env python3
r"""Streams: commits a second from batched clients, and how long a cut stops commits at workload A.

    bench/service/streams.py --server build/dev/service/sparseagg-server -o bench/results/streams.json

Rate: threads of one process send batches of small submissions; every version is read and its submissions are counted.
Cuts: clients send updates of workload A (100 000 of 10 million keys, Zipf 1.1) without a pause, while another cuts
every half second, and a third sends the smallest of submissions and measures how long each takes. The server's log has
how long each cut kept further commits waiting. Client and server share the cores. Wants the package `sparseagg`.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import statistics
import sys
import tempfile
import threading
import time
from typing import Any

import numpy as np
import sparseagg as sa
from python_client import NUM_ROWS, SEED, make_update
from server_process import Server

BATCH = 1000  # submissions of a message
KEYS = 10  # of each of them
BUFFER = 1000


def rate(server: pathlib.Path, flags: list[str], threads: int, seconds: float) -> dict[str, Any]:
    """Returns the commits a second of batches."""
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=100_000)], op="mean", result_ttl=600)
    rng = np.random.default_rng(SEED)
    keys = np.sort(rng.integers(0, 100_000, (BATCH, KEYS)), axis=1).astype(np.uint32).ravel()
    update = {"v": (np.arange(BATCH + 1) * KEYS, keys, rng.random(BATCH * KEYS, np.float32))}
    sent = [0] * threads
    with Server(server, *flags) as running, sa.Client(running.address) as client:
        stream = client.stream(spec, buffer=BUFFER, staleness=sa.staleness.polynomial(0.5), max_staleness=1000)
        until = time.monotonic() + seconds

        def send(thread: int) -> None:
            ids = [f"t{thread}-{k:04}" for k in range(BATCH)]
            while time.monotonic() < until:
                base = stream.refresh().version - 1
                receipt = stream.submit_batch(ids, update, base_version=base)
                if receipt.num_submissions != BATCH:
                    raise SystemExit(f"streams.py: {receipt}")
                sent[thread] += BATCH

        begin = time.monotonic()
        workers = [threading.Thread(target=send, args=(thread,)) for thread in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        elapsed = time.monotonic() - begin
        last = stream.cut().version - 1
        counted, after = 0, 0
        while after < last:
            for version in stream.watch(after):
                if version.state != "done":
                    raise SystemExit(f"streams.py: {version}")
                counted += version.num_submissions
                after = version.version
    if counted != sum(sent):
        raise SystemExit(f"streams.py: {sum(sent)} commits were sent, and versions have {counted}")
    return {
        "threads": threads,
        "batch": BATCH,
        "keys": KEYS,
        "buffer": BUFFER,
        "commits": counted,
        "versions": last,
        "seconds": round(elapsed, 3),
        "commits_per_s": round(counted / elapsed),
    }


def cuts(server: pathlib.Path, flags: list[str], seconds: float) -> dict[str, Any]:
    """Returns how long cuts and small commits take while clients send workload A."""
    spec = sa.RoundSpec([sa.TensorSpec("tensor", "float32", num_rows=NUM_ROWS)], op="sum", result_ttl=5)
    rng = np.random.default_rng(SEED)
    updates = [make_update(rng) for _ in range(20)]
    latencies: list[float] = []
    num_sent = [0, 0]
    with tempfile.TemporaryFile("w+") as log:
        with Server(server, *flags, log_level="info", stderr=log) as running, sa.Client(running.address) as client:
            stream = client.stream(spec, buffer=1_000_000, staleness=sa.staleness.constant(), max_staleness=1000)
            stream.submit("warm", {"tensor": updates[0]}, base_version=0)
            until = time.monotonic() + seconds

            def send(thread: int) -> None:
                while time.monotonic() < until:
                    update = updates[(2 * num_sent[thread] + thread) % len(updates)]
                    stream.submit(f"c{thread}", {"tensor": update}, base_version=0, key_encoding="plain")
                    num_sent[thread] += 1

            def probe() -> None:
                small = np.array([1], np.uint32), np.array([1], np.float32)
                while time.monotonic() < until:
                    begin = time.perf_counter()
                    stream.submit("probe", {"tensor": small}, base_version=0)
                    latencies.append(time.perf_counter() - begin)

            workers = [threading.Thread(target=send, args=(thread,)) for thread in range(2)]
            workers.append(threading.Thread(target=probe))
            for worker in workers:
                worker.start()
            while time.monotonic() < until:
                time.sleep(0.5)
                stream.cut()
            for worker in workers:
                worker.join()
            stream.delete()
        log.seek(0)
        found = [float(ms) for ms in re.findall(r"stream_cut .*\bms=([0-9.e-]+)", log.read())]
    if not found:
        raise SystemExit("streams.py: the server's log has no cuts")
    latencies.sort()
    return {
        "tuples": len(updates[0][0]),
        "large_commits": sum(num_sent),
        "cuts": len(found),
        "cut_ms": {"median": round(statistics.median(found), 3), "max": round(max(found), 3)},
        "small_commit_ms": {
            "count": len(latencies),
            "median": round(latencies[len(latencies) // 2] * 1e3, 3),
            "p99": round(latencies[len(latencies) * 99 // 100] * 1e3, 3),
            "max": round(latencies[-1] * 1e3, 3),
        },
    }


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", type=pathlib.Path, required=True, help="the sparseagg-server to measure")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--conditions", default="", help="of the machine, for the file")
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True, help="the JSON file to write")
    options = parser.parse_args()
    found: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "conditions": options.conditions,
        "cores": os.cpu_count(),
    }
    with tempfile.TemporaryDirectory() as folder:
        stored = ["--data-dir", f"{folder}/data"]
        found["rate"] = {
            "memory": rate(options.server, [], 2, options.seconds),
            "data_dir_sync": rate(options.server, stored, 2, options.seconds),
        }
        found["cuts"] = {
            "memory": cuts(options.server, [], options.seconds),
            "data_dir_sync": cuts(options.server, ["--data-dir", f"{folder}/other"], options.seconds),
        }
    options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
