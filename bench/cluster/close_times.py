"""Seconds of a cluster's close against bytes and ranges, as JSON and as a plot.

    close_times.py [--out FILE] [--plot FILE] [--servers 4] [--megabytes N …] [--quick]

64 clients submit float32 tuples with random keys of 2^24 to a round on several servers of this machine. `finish`
returns the result, `close` leaves it on the servers. Both run with each number of ranges; the median of three runs
counts. All results of one size have one hash.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import pathlib
import statistics
import time
from typing import Any

import numpy as np
import sparseagg as sa
from sparseagg.cluster import Cluster

NUM_ROWS = 1 << 24
CLIENTS = 64
MEGABYTES = (8, 32, 128, 256)
RANGES = (1, 2, 4, 8)


def hash_of(result: sa.Result) -> str:
    tensor = result["t"]
    return hashlib.blake2b(tensor.keys.tobytes() + tensor.values.tobytes(), digest_size=8).hexdigest()


def timed(call: Any) -> tuple[float, Any]:
    begun = time.perf_counter()
    answer = call()
    return time.perf_counter() - begun, answer


def measure(servers: Cluster, megabytes: int, repetitions: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng([38, megabytes])
    tuples = megabytes * 1_000_000 // 8 // CLIENTS
    spec = sa.RoundSpec([sa.TensorSpec("t", "float32", num_rows=NUM_ROWS)])
    opened = servers.create_round(spec)
    for client in range(CLIENTS):
        keys = rng.integers(0, NUM_ROWS, tuples, dtype=np.uint32)
        opened.submit(f"client-{client:03}", (keys, rng.standard_normal(tuples, np.float32)))
    found, hashes = [], set()
    for ranges in RANGES:
        with Cluster(servers.addresses, ranges=ranges, reducers=2) as cluster:
            seconds: dict[str, list[float]] = {"finish": [], "close": [], "read": []}
            for _ in range(repetitions + 1):  # the first one is not counted
                resumed = cluster.resume(opened.name)
                elapsed, result = timed(resumed.finish)
                seconds["finish"].append(elapsed)
                hashes.add(hash_of(result))
                seconds["close"].append(timed(resumed.close)[0])
                elapsed, result = timed(resumed.result)
                seconds["read"].append(elapsed)
                hashes.add(hash_of(result))
                _forget_result(cluster, opened.name)
        medians = {f"{name}_s": statistics.median(each[1:]) for name, each in seconds.items()}
        found.append({"megabytes": megabytes, "ranges": ranges, **medians})
        print(found[-1], flush=True)
    assert len(hashes) == 1
    opened.delete()
    return found


def _forget_result(cluster: Cluster, name: str) -> None:
    """Removes the result, so that the next close makes it again."""
    for client in cluster._clients:
        for each in list(client.list_rounds()):
            if each.name.startswith(f"{name}."):
                each.delete()


def plot(report: dict[str, Any], path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    for axis, what, title in zip(axes, ("finish_s", "close_s"), ("finish: to this process", "close: onto the servers")):
        for ranges in RANGES:
            rows = [row for row in report["rounds"] if row["ranges"] == ranges]
            label = f"{ranges} range" + ("s" if ranges > 1 else "")
            axis.plot([row["megabytes"] for row in rows], [row[what] for row in rows], marker="o", label=label)
        axis.set(title=title, xlabel="MB of submissions", xscale="log", yscale="log")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("seconds")
    axes[0].legend()
    figure.suptitle(f"{report['servers']} servers and 2 reducers on {report['cores']} cores of one machine")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/bench/cluster_close.json"))
    parser.add_argument("--plot", type=pathlib.Path, help="default: beside the JSON, as .png")
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--megabytes", type=int, nargs="+", default=MEGABYTES, help="sizes of the rounds")
    parser.add_argument("--quick", action="store_true", help="the two smaller sizes, one run")
    options = parser.parse_args()
    sizes, repetitions = (MEGABYTES[:2], 1) if options.quick else (options.megabytes, 3)
    with Cluster(options.servers) as servers:
        rounds = [row for megabytes in sizes for row in measure(servers, megabytes, repetitions)]
    report = {
        "date": datetime.date.today().isoformat(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[1],  # far above the cores: others had the machine, too
        "servers": options.servers,
        "clients": CLIENTS,
        "rounds": [
            {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}
            for row in rounds
        ],
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    plot(report, options.plot or options.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
