"""A round larger than the memory of any process of its cluster: peak memory of each.

    memory_bench.py [--out FILE] [--servers 4] [--limit-mib 256] [--submissions-mib 600] [--numerics fixed_point]

Servers with a memory limit take the submissions; another process merges them, with its own limit. Peaks are those of
the kernel (VmHWM), of the whole process. The result is held to that of one process without a limit, bit for bit.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import hashlib
import json
import pathlib
import subprocess
import sys
import time
from typing import Any

import numpy as np
import sparseagg as sa
from sparseagg.cluster import Cluster

NUM_ROWS = 1 << 19
WIDTH = 8
ROWS = 1 << 17  # of each client: 4.5 MiB
MIB = 1 << 20


def update_of(client: int) -> tuple[Any, Any]:
    rng = np.random.default_rng([5, client])
    keys = np.unique(rng.integers(0, NUM_ROWS, ROWS + ROWS // 4, dtype=np.uint32))[:ROWS]
    return keys, rng.standard_normal((len(keys), WIDTH), np.float32)


def hash_of(result: sa.Result) -> str:
    tensor = result["t"]
    return hashlib.blake2b(tensor.keys.tobytes() + tensor.values.tobytes(), digest_size=8).hexdigest()


def peak_mib(pid: int | str = "self") -> float:
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def reduce(addresses: list[str], name: str, limit: int, ranges: int) -> None:
    """In a process of its own: merges the round, and prints what that took."""
    before = peak_mib()
    with Cluster(addresses, reducers=1, ranges=ranges or None, memory_limit=limit) as cluster:
        begun = time.perf_counter()
        result = cluster.resume(name).finish()
        seconds = time.perf_counter() - begun
    found = {"hash": hash_of(result), "seconds": seconds, "before_mib": before, "peak_mib": peak_mib()}
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--limit-mib", type=int, default=256)
    parser.add_argument("--submissions-mib", type=int, default=600)
    parser.add_argument("--numerics", choices=("canonical", "fixed_point"), default="fixed_point")
    parser.add_argument("--reduce", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.reduce:
        addresses, name, limit, ranges = arguments.reduce
        reduce(addresses.split(","), name, int(limit), int(ranges))
        return
    clients = arguments.submissions_mib * MIB // (ROWS * (4 + 4 * WIDTH))
    tensor = sa.TensorSpec("t", "float32", num_rows=NUM_ROWS, row_width=WIDTH)
    spec = sa.RoundSpec([tensor])
    if arguments.numerics == "fixed_point":
        spec = sa.RoundSpec([tensor], numerics="fixed_point", value_bound=100.0, max_submissions=clients)
    found: dict[str, Any] = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
    alone = sa.Aggregator(spec, memory_limit=1 << 30)
    with contextlib.ExitStack() as stack:
        options = ("--memory-limit", f"{arguments.limit_mib}MiB")
        servers = [stack.enter_context(sa.Server(options=options)) for _ in range(arguments.servers)]
        addresses = [server.address for server in servers]
        sent = 0
        with Cluster(addresses) as cluster:
            opened = cluster.create_round(spec)
            for client in range(clients):
                keys, rows = update_of(client)
                sent += keys.nbytes + rows.nbytes
                opened.submit(f"client-{client:04}", (keys, rows))
                alone.add(f"client-{client:04}", (keys, rows), copy=True)
        expected = hash_of(alone.finish())
        reducers = []
        # A canonical range may be larger than the memory; partials are cut into ranges that fit.
        for ranges in (1, 0) if arguments.numerics == "canonical" else (0,):  # 0: as many as the cluster plans
            limit = arguments.limit_mib * MIB * 7 // 10  # the rest is for Python, NumPy, gRPC and the result
            command = [sys.executable, __file__, "--reduce", ",".join(addresses), opened.name, str(limit), str(ranges)]
            answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
            assert answer.pop("hash") == expected
            reducers.append({"ranges": ranges, "memory_limit_mib": limit / MIB, **answer})
        found.update(
            servers=arguments.servers,
            limit_mib=arguments.limit_mib,
            numerics=arguments.numerics,
            clients=clients,
            submissions_mib=sent / MIB,
            server_peak_mib=[peak_mib(server.pid) for server in servers],
            reducers=reducers,
        )
    print(json.dumps(found, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    most = max(*found["server_peak_mib"], *(each["peak_mib"] for each in found["reducers"]))
    assert most <= 1.1 * arguments.limit_mib, f"{most} MiB"


if __name__ == "__main__":
    main()
