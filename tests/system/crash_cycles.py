#!/usr/bin/env python3
"""Kills a server with a data directory again and again, and checks that nothing acknowledged is lost.

    python tests/system/crash_cycles.py [--cycles N] [--seed N] [--server PATH] [--durability sync]

Cycles are a round, a batch of tasks, a stream and a model in turn. The server is killed in every other of each at one
of its named fail points (service/base/fail_point.h), in turn, and else at a random time. It starts again in the same
directory, and the clients go on.

In a round, clients submit their updates concurrently, in streams, in calls of one chunk each, and in batches of many
clients. Some submit again, and some withdraw. Then the coordinator closes the round, during which the server is killed,
too, and reads the result twice, with a kill between. The cycle checks that

- every acknowledged submission is in the result once, and no withdrawn one;
- a submission without an acknowledgement is in the result once or not at all, never in part;
- the result has the bits of a sum over the listed submissions, which this script computes by itself;
- the result has the same bits after a restart;
- the certificate and all receipts are verified, and are the same after a restart;
- all rounds with the same submissions have one hash.

With tasks, a coordinator creates and cancels while workers lease, extend, complete, fail, give back and abandon. After
one more kill, the cycle checks that

- every acknowledged task is there;
- every acknowledged end of a task has stayed, with its worker, its submission and its result;
- no task was completed twice, or ended in two ways;
- the submission of a completed task is in its round.

In a stream, the same clients commit several times, in streams, chunks and batches, while somebody cuts; some withdraw.
Before and after one more kill, the cycle checks that

- every acknowledged commit is in one version, with the position, staleness and weight that its client was told, and no
  withdrawn one is;
- a commit without an acknowledgement is in one version or in none;
- versions follow one another without gaps, and the positions of each come after those of the one before;
- each version has the bits that sparseagg.aggregate gives for its commits, in their order and with their weights, and
  where all products are exact also those of a sum by NumPy.

A model is driven by rounds or by a stream, with FedAdam and rows that expire. After each version, and after kills, the
cycle checks that

- no version is lost that was acknowledged, and none is applied twice;
- another round is not applied to a base that has a version, and the same one gives the same answer;
- all rows of the newest version, and of an older one, have the bits of the optimizer's formulas in NumPy.

With --torn-tails, each kill also takes from each file a part of what no sync had covered: the end of the file is cut,
or zeroed, at a random place. With --power-failures it takes all of that. Under --durability async, what was
acknowledged may then be lost; clients submit again, and the cycles, which are all rounds, check that

- a result is the sum of the listed submissions, none of which counts in part;
- a result that was there has the same bits after a restart, or its round is failed, gone, or open again.

Prints the seed first, and a JSON object with the figures in the last line. Exits 1 at the first failure, and leaves the
data directory and the server's log for a look.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import random
import shutil
import sys
import tempfile
import time

from crash.fail_points import fail_points, points_of_models, points_of_rounds, points_of_streams, points_of_tasks
from crash.failure import Failure
from crash.lossy_round_cycle import LossyRoundCycle
from crash.model_cycle import ModelCycle
from crash.round_cycle import RoundCycle
from crash.server import Server
from crash.stream_cycle import StreamCycle
from crash.task_cycle import TaskCycle
from crash.torn_files import TornFiles
from crash.updates import make_batch, make_client
from crash.volume import Volume

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
KINDS = {"all": [0, 1, 2, 3], "streams": [2], "models": [3]}


def run(options: argparse.Namespace) -> int:
    """Runs all cycles; returns the exit status."""
    seed = options.seed if options.seed is not None else int.from_bytes(os.urandom(4), "little")
    print(f"crash_cycles: seed {seed}, {options.cycles} cycles", flush=True)
    points = fail_points(REPOSITORY)
    points_of = [points_of_rounds(points), points_of_tasks(points), points_of_streams(points), points_of_models(points)]
    folder = pathlib.Path(tempfile.mkdtemp(prefix="crash-", dir=options.folder))
    disk = _make_disk(options, folder, seed)
    is_lossy = disk is not None and options.durability == "async"
    server = Server(options.server, folder, ["--durability", options.durability], disk)
    hashes: dict[frozenset[str], str] = {}
    hits: collections.Counter[str] = collections.Counter()
    kills = completed = versions = model_versions = 0
    begin = time.monotonic()
    try:
        for number in range(options.cycles):
            rng = random.Random(seed * 1_000_003 + number)
            kinds = KINDS[options.kinds] if not is_lossy else [0]
            kind, turn = kinds[number % len(kinds)], number // len(kinds)
            own = points_of[kind]
            point = own[turn // 2 % len(own)] if turn % 2 == 0 else ""
            clients = [make_client(index, seed) for index in range(options.clients)]
            batches = [make_batch(index, seed) for index in range(options.batches)]
            cycle: RoundCycle | TaskCycle | StreamCycle | ModelCycle
            if kind == 0:
                kind_of_round = LossyRoundCycle if is_lossy else RoundCycle
                cycle = kind_of_round(server, number, rng, point, clients, batches)
            elif kind == 1:
                cycle = TaskCycle(server, number, rng, point)
            elif kind == 2:
                cycle = StreamCycle(server, number, rng, point, clients, batches)
            else:
                cycle = ModelCycle(server, number, rng, point)
            try:
                if isinstance(cycle, RoundCycle):
                    listed, found = cycle.run()
                    if hashes.setdefault(listed, found) != found:
                        raise Failure("another cycle had another hash for the same submissions")
                elif isinstance(cycle, TaskCycle):
                    completed += cycle.run()
                elif isinstance(cycle, StreamCycle):
                    versions += cycle.run()
                else:
                    model_versions += cycle.run()
            except BaseException:
                print(f"crash_cycles: cycle {number} at '{point or 'a random time'}', seed {seed}; see {folder}")
                raise
            finally:
                kills += cycle.num_kills
                hits.update(cycle.points)
                server.close()
            if options.verbose:
                name = ("round", "tasks", "stream", "model")[kind]
                print(f"cycle {number}: {name}, {point or 'random'}, {cycle.num_kills} kills", flush=True)
    except Failure as failure:
        print(f"crash_cycles: FAILED: {failure}")
        return 1
    finally:
        server.close()
        if disk is not None:
            disk.close()
    shutil.rmtree(folder)
    never = [point for point in points if not hits[point]] if options.cycles >= 8 * max(map(len, points_of)) else []
    figures = {
        "seed": seed,
        "cycles": options.cycles,
        "kills": kills,
        "starts": server.num_starts,
        "fail_points": len(points),
        "hit": len([point for point in points if hits[point]]),
        "never_hit": never,
        "sets": len(hashes),
        "hashes": len(set(hashes.values())),
        "tasks_completed": completed,
        "versions": versions,
        "model_versions": model_versions,
        "torn_files": disk.num_torn if isinstance(disk, TornFiles) else 0,
        "seconds": round(time.monotonic() - begin, 1),
    }
    print(json.dumps(figures))
    return 0


def _make_disk(options: argparse.Namespace, folder: pathlib.Path, seed: int) -> Volume | TornFiles | None:
    if options.torn_tails:
        library = pathlib.Path(options.server).resolve().parent.parent / "tests/service/libsparseagg_recording_disk.so"
        return TornFiles(folder, library, seed)
    return Volume(folder) if options.power_failures else None


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--clients", type=int, default=8, help="in a round, each by itself")
    parser.add_argument("--batches", type=int, default=2, help="in a round, of 60 clients each")
    parser.add_argument("--kinds", choices=list(KINDS), default="all", help="what the cycles are")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--durability", choices=["sync", "async"], default="sync")
    parser.add_argument(
        "--power-failures", action="store_true", help="with each kill, lose what is not synced; needs root"
    )
    parser.add_argument("--torn-tails", action="store_true", help="with each kill, lose parts of what is not synced")
    parser.add_argument("--folder", help="where the data directory is made; by default that of temporary files")
    parser.add_argument("--server", default=str(REPOSITORY / "build/dev/service/sparseagg-server"), help="a test build")
    parser.add_argument("--verbose", action="store_true", help="a line for each cycle")
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
