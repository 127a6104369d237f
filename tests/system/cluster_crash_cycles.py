#!/usr/bin/env python3
"""Kills servers, coordinators and Ray's workers of a cluster again and again, and checks that nothing is lost.

    python tests/system/cluster_crash_cycles.py [--cycles N] [--seed N] [--server PATH] [--servers N]
        [--executor ray [--nodes N]]

In each cycle, clients submit to a round on all servers, and some submit again or withdraw, while servers are killed.
Then the round is closed, while servers are killed, one of them by itself after it has written a range and before it
answers. It is closed by processes of which each but the last one kills itself before a random one of its calls (seal,
count, export and merge of a range, write of a range and of the list). With Ray, the actors of servers and of reducers
are killed, too, and with --nodes the raylets that they run on; every second round is closed by this process. The result
is read, and read again after one more kill. The cycle checks that

- every acknowledged submission is in the result once, and no withdrawn one;
- the result has the bits of a sum over the listed submissions, which NumPy computes;
- the result has the same bits after a restart, and in every cycle with the same submissions.

Prints the seed first, and a JSON object with the figures in the last line. Exits 1 at the first failure.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import json
import os
import pathlib
import random
import shutil
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))

from crash.armed_starts import ArmedStarts  # noqa: E402
from crash.cluster_cycle import RETRY, ClusterCycle, kill_process  # noqa: E402
from crash.failure import Failure  # noqa: E402
from crash.ray_nodes import RayNodes  # noqa: E402
from crash.updates import make_client  # noqa: E402
from sparseagg.cluster import Cluster  # noqa: E402


def make_killer(
    cluster: Cluster, is_ray: bool, nodes: RayNodes | None, kills: collections.Counter[str], armed: ArmedStarts
):
    """Returns a function that kills a server, or with Ray also an actor's process or a node."""

    # In turns, so that a short run has each of them.
    kinds = itertools.cycle(["server", "reducer", *(["node"] if nodes is not None else []), "server actor"])

    def kill(rng: random.Random) -> None:
        if not is_ray:
            pid = rng.choice(cluster._started.keepers).pid
            armed.give_back(pid)
            kill_process(pid)
            kills["server"] += 1
            return
        ray = cluster._started._ray
        what = next(kinds)
        if what != "reducer":  # its server ends with it
            armed.give_back()
        if what == "node":
            nodes.kill(rng.randrange(1 << 16))
        elif what == "reducer":
            ray.kill(rng.choice(cluster._executor._actors), no_restart=False)
        elif what == "server actor":
            ray.kill(rng.choice(cluster._started.actors), no_restart=False)
        else:
            _, pid = ray.get(rng.choice(cluster._started.actors).pids.remote())
            kill_process(pid)
        kills[what] += 1

    return kill


def run(options: argparse.Namespace) -> int:
    """Runs all cycles; returns the exit status."""
    seed = options.seed if options.seed is not None else int.from_bytes(os.urandom(4), "little")
    print(f"cluster_crash_cycles: seed {seed}, {options.cycles} cycles", flush=True)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="cluster-crash-", dir=options.folder))
    armed = ArmedStarts(folder, pathlib.Path(options.server).resolve())
    hashes: dict[frozenset[str], str] = {}
    kills: collections.Counter[str] = collections.Counter()
    begin = time.monotonic()
    is_ray = options.executor == "ray"
    with contextlib.ExitStack() as stack:
        nodes = stack.enter_context(RayNodes([{}] * options.nodes)) if options.nodes else None
        on_ray = {"reducer_cpus": 0} if is_ray else {}
        cluster = stack.enter_context(
            Cluster(
                options.servers,
                executor=options.executor,
                data_dir=folder / "data",
                reducers=2,
                ranges=3,
                retry=RETRY,
                **on_ray,
            )
        )
        ray_address = cluster._started._ray.get_runtime_context().gcs_address if is_ray else ""
        kill = make_killer(cluster, is_ray, nodes, kills, armed)
        for number in range(options.cycles):
            clients = [make_client(index, seed) for index in range(options.clients)]
            rng = random.Random(seed * 1_000_003 + number)
            by_processes = not is_ray or number % 2 == 0
            cycle = ClusterCycle(cluster, kill, number, rng, clients, by_processes, ray_address, armed)
            try:
                listed, found = cycle.run()
                if hashes.setdefault(listed, found) != found:
                    raise Failure("another cycle had another hash for the same submissions")
            except Failure as failure:
                print(f"cluster_crash_cycles: FAILED: cycle {number}, seed {seed}, {folder}: {failure}")
                return 1
            kills["coordinator"] += cycle.num_coordinators
            armed.count()
            if options.verbose:
                print(f"cycle {number}: {dict(kills)}", flush=True)
    shutil.rmtree(folder)
    figures = {
        "seed": seed,
        "executor": options.executor,
        "servers": options.servers,
        "nodes": options.nodes,
        "cycles": options.cycles,
        "kills": sum(kills.values()),
        "killed": dict(kills),
        "fail_points": dict(armed.hits),
        "sets": len(hashes),
        "hashes": len(set(hashes.values())),
        "seconds": round(time.monotonic() - begin, 1),
    }
    print(json.dumps(figures))
    return 0


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=50)
    parser.add_argument("--clients", type=int, default=12, help="in a round")
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--executor", choices=["local", "ray"], default="local")
    parser.add_argument("--nodes", type=int, default=0, help="of Ray, on this machine, that are killed; 0: none is")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--folder", help="where the data directories are made; by default that of temporary files")
    parser.add_argument("--server", default=str(HERE.parents[1] / "build/dev/service/sparseagg-server"))
    parser.add_argument("--verbose", action="store_true", help="a line for each cycle")
    options = parser.parse_args()
    if options.nodes and options.executor != "ray":
        parser.error("--nodes are of Ray: --executor ray")
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
