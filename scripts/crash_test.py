#!/usr/bin/env python3
"""Kills a server with a data directory again and again, and checks that nothing acknowledged is lost.

    python scripts/crash_test.py [--cycles N] [--seed N] [--server PATH] [--durability sync]

A cycle is one round. Clients submit their updates concurrently, in streams and in calls of one chunk each. Some submit
again, and some withdraw. Meanwhile the server is killed: in turn at each of its named fail points
(service/base/fail_point.h), and at a random time. It starts again in the same directory, and the clients go on. Then
the coordinator closes the round, during which the server is killed, too, and reads the result twice, with a kill
between.

Each cycle checks that

- every acknowledged submission is in the result once, and no withdrawn one;
- a submission without an acknowledgement is in the result once or not at all, never in part;
- the result has the bits of a sum over the listed submissions, which this script computes by itself;
- the result has the same bits after a restart;
- all cycles with the same submissions have one hash.

Prints the seed first, and a JSON object with the figures in the last line. Exits 1 at the first failure, and leaves the
data directory and the server's log for a look.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

import numpy as np
import sparseagg as sa

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
FAIL_POINT = re.compile(r"\bFailPoint\(\"(\w+)\"\)")
# Fail points that a cycle passes more than once.
MANY_TIMES = re.compile("chunk|submission|sync|answer|acknowledgement")
START_TIMEOUT_S = 60
DIMENSION = 20_000
WIDTH = 3
SPEC = sa.RoundSpec(
    tensors=[sa.TensorSpec("v", dtype="float32", dimension=DIMENSION, width=WIDTH)],
    op="sum",
    weighting="by_weight",
    result="sparse",
    return_counts=True,
)
RETRY = sa.RetryPolicy(attempts=200, initial=0.02, maximum=0.2)


def fail_points(repository: pathlib.Path = REPOSITORY) -> list[str]:
    """The names of all fail points in the server's sources."""
    texts = (path.read_text(encoding="utf-8") for path in sorted((repository / "service").rglob("*.cc")))
    return sorted({name for text in texts for name in FAIL_POINT.findall(text)})


class Failure(Exception):
    """Something is lost, or counted twice, or in part."""


@dataclasses.dataclass
class Client:
    """One client, what it sends, and what it was told."""

    id: str
    keys: np.ndarray
    rows: np.ndarray
    weight: float
    resumable: bool
    chunk_bytes: int
    withdraws: bool
    repeats: bool  # submits a second time, as a client does that was started again
    is_acknowledged: bool = False
    is_withdrawn: bool = False
    error: BaseException | None = None


def make_client(index: int, content_seed: int) -> Client:
    """A client whose update depends on its index and the seed only."""
    rng = np.random.default_rng([content_seed, index])
    # Of a large one, chunks lie in files beside the database.
    is_large = index % 3 == 1
    num_keys = int(rng.integers(8000, 12_000) if is_large else rng.integers(1, 200))
    return Client(
        id=f"client-{index:03}",
        keys=np.sort(rng.choice(DIMENSION, num_keys, replace=False)),
        rows=rng.standard_normal((num_keys, WIDTH)).astype(np.float32),
        weight=float(rng.integers(1, 5)),
        resumable=bool(rng.integers(2)),
        chunk_bytes=int(rng.choice([100_000, 1 << 20] if is_large else [256, 1024, 1 << 20])),
        withdraws=index % 8 == 3,
        repeats=index % 4 == 0,
    )


class Volume:
    """A file system in a file, whose power can fail: what was not synced is lost, as on a disk. Needs root.

    The kernel keeps what the server has written until a sync, or for some seconds, in its cache of this file system. A
    copy of the file is what a disk would have.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._image = folder / "disk"
        self._copy = folder / "disk.copy"
        self.path = folder / "mounted"
        self.path.mkdir()
        with self._image.open("wb") as file:
            file.truncate(256 << 20)
        self._run("mkfs.ext4", "-q", "-F", self._image)
        self._mount()

    def fail(self) -> None:
        """Takes the power away, and gives it back. Requires: no process uses the file system."""
        self._run("cp", "--sparse=always", self._image, self._copy)
        self.unmount()
        self._copy.replace(self._image)
        self._mount()

    def unmount(self) -> None:
        self._run("umount", self.path)

    def _mount(self) -> None:
        # Without its own syncs in between, which would save what the server has not synced.
        self._run("mount", "-o", "loop,commit=600", self._image, self.path)

    @staticmethod
    def _run(*command: str | pathlib.Path) -> None:
        subprocess.run(command, check=True)


class Server:
    """The server, which is started again with the same address and directory after each kill."""

    def __init__(self, binary: str, folder: pathlib.Path, flags: list[str], volume: Volume | None) -> None:
        self._binary = binary
        self._folder = folder
        self._flags = flags
        self._volume = volume
        self._data = (folder if volume is None else volume.path) / "data"
        self._log = (folder / "server.log").open("w")  # open for all starts
        self._address = f"unix:{folder}/socket"
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self.num_starts = 0

    @property
    def address(self) -> str:
        return self._address

    def start(self, fail_point: str = "", hit: int = 1) -> bool:
        """Starts the server. Returns False if it was killed before it listened, as a fail point of the restart does."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARSEAGG_")}
        if fail_point:
            environment["SPARSEAGG_FAIL_POINT"] = f"{fail_point}:{hit}"
        command = [self._binary, "--grpc-address", self._address, "--metrics-address", "none", *self._flags]
        command += ["--http-address", "none"]
        command += ["--data-dir", str(self._data), "--threads", "2", "--memory-limit", "256MiB"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True, env=environment)
        self._process = process
        self.num_starts += 1
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], START_TIMEOUT_S)
        line = process.stdout.readline() if ready else ""
        if line.startswith("listening"):
            return True
        status = self._end()
        if status != -signal.SIGKILL:
            raise Failure(f"the server did not start, but ended with status {status}")
        return False

    def wait_killed(self, timeout_s: float) -> bool:
        """Waits for the fail point; returns whether it was hit. A server that ends otherwise is a failure."""
        assert self._process is not None
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        self._end()
        if status != -signal.SIGKILL:
            raise Failure(f"the server ended with status {status}")
        return True

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._end()

    def _end(self) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        status = self._process.wait()
        self._process.stdout.close()
        if self._volume is not None:
            self._volume.fail()
        return status

    def close(self) -> None:
        """Kills the server, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self.kill()


def expected(clients: list[Client]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The sum by numpy alone: float64 from client to client in the order of their ids, rounded once."""
    rows = np.zeros((DIMENSION, WIDTH), np.float64)
    counts = np.zeros(DIMENSION, np.uint32)
    for client in sorted(clients, key=lambda each: each.id):
        rows[client.keys] += client.weight * client.rows.astype(np.float64)
        counts[client.keys] += 1
    (keys,) = np.nonzero(counts)
    return keys, rows[keys].astype(np.float32), counts[keys]


def digest(keys: np.ndarray, rows: np.ndarray, counts: np.ndarray) -> str:
    """A hash of the keys and counts, and of the bits of the rows."""
    state = hashlib.sha256()
    for array in (keys.astype(np.uint64), rows, counts.astype(np.uint64)):
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()


def digest_of(result: sa.TensorResult) -> str:
    """The same of a result."""
    assert result.values is not None
    assert result.counts is not None
    return digest(result.keys, result.values, result.counts)


class Cycle:
    """One round, from its creation to its deletion."""

    def __init__(self, server: Server, number: int, rng: random.Random, clients: list[Client]) -> None:
        self._server = server
        self._id = f"round-{number}"
        self._rng = rng
        self._clients = clients
        self.num_kills = 0
        self.points: list[str] = []  # that were hit
        self._restart_point = ""

    def run(self, point: str) -> tuple[frozenset[str], str]:
        """Returns who is in the result, and its hash. ``point``: the fail point of this cycle; empty: a random time."""
        # Those of the restart can only be hit when there is something to restore, and the deletion comes after the kill
        # between the two reads.
        late = point.startswith("restored") or point.endswith("_delete")
        self._restart_point = point if late else ""
        armed = "" if late else point
        self._start(armed, self._rng.choice([1, 1, 2, 3, 5]) if MANY_TIMES.search(armed) else 1)
        threads = [threading.Thread(target=self._submit, args=(client,), daemon=True) for client in self._clients]
        coordinator = threading.Thread(target=self._create, daemon=True)
        coordinator.start()
        for thread in threads:
            thread.start()
        self._disturb(armed, threads)
        coordinator.join()
        for thread in threads:
            thread.join()
        for client in self._clients:
            if client.error is not None:
                raise Failure(f"{client.id} failed: {client.error!r}") from client.error
        return self._finish(armed)

    def _start(self, point: str = "", hit: int = 1) -> None:
        while not self._server.start(point, hit):
            self.num_kills += 1
            self._hit(point)
            point = ""

    def _restart(self) -> None:
        """Starts again. A fail point that is armed at restarts stays so until it is hit."""
        self.num_kills += 1
        self._start(self._restart_point)

    def _hit(self, point: str) -> None:
        self.points.append(self._restart_point or point)
        self._restart_point = ""

    def _disturb(self, point: str, threads: list[threading.Thread]) -> None:
        """Waits until the fail point is hit or all clients are done, or kills at a random time; starts again."""
        until = time.monotonic() + self._rng.random() * 0.3 if not point else float("inf")
        while any(thread.is_alive() for thread in threads):
            if self._server.wait_killed(0.005):
                self._hit(point)
            elif time.monotonic() >= until:
                self._server.kill()
                until = float("inf")
            else:
                continue
            self._restart()

    @contextlib.contextmanager
    def _connected(self, chunk_bytes: int) -> Iterator[sa.Client]:
        with sa.Client(self._server.address, retry=RETRY, timeout=60, chunk_bytes=chunk_bytes) as client:
            yield client

    def _create(self) -> None:
        with self._connected(1 << 20) as client:
            client.create_round(SPEC, round_id=self._id)

    def _submit(self, who: Client) -> None:
        try:
            with self._connected(who.chunk_bytes) as client:
                rnd = client.create_round(SPEC, round_id=self._id)
                update = {"v": (who.keys, who.rows)}
                rnd.submit(who.id, update, weight=who.weight, resumable=who.resumable)
                who.is_acknowledged = True
                if who.repeats:
                    self._repeat(rnd, who)
                if who.withdraws:
                    rnd.withdraw(who.id)
                    who.is_withdrawn = True
        except Exception as error:
            who.error = error

    def _repeat(self, rnd: sa.Round, who: Client) -> None:
        """Submits again: the same, which does not count, and something else, which is refused."""
        again = rnd.submit(who.id, {"v": (who.keys, who.rows)}, weight=who.weight, resumable=not who.resumable)
        if not again.duplicate:
            raise Failure("an acknowledged submission counted a second time")
        with contextlib.suppress(sa.AlreadyExists):
            rnd.submit(who.id, {"v": (who.keys, who.rows + 1)}, weight=who.weight, resumable=who.resumable)
            raise Failure("other content of an acknowledged client counted")

    def _finish(self, point: str) -> tuple[frozenset[str], str]:
        """Closes, reads, kills, reads again, and deletes."""
        stop = threading.Event()
        kill_now = threading.Event()

        def watch() -> None:
            killed_at = time.monotonic() + self._rng.random() * 0.05
            while not stop.wait(0.002):
                if self._server.wait_killed(0):
                    self._hit(point)
                elif kill_now.is_set() or (not point and time.monotonic() >= killed_at):
                    self._server.kill()
                    kill_now.clear()
                    killed_at = float("inf")
                else:
                    continue
                self._restart()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        with self._connected(1 << 20) as client:
            rnd = client.get_round(self._id)
            result = rnd.close()["v"]
            listed = frozenset(each.client_id for each in rnd.submissions())
            kill_now.set()
            while kill_now.is_set():
                time.sleep(0.001)
            again = rnd.result()["v"]
            rnd.delete()
        stop.set()
        watcher.join()
        first = digest_of(result)
        self._check(listed, first, digest_of(again))
        return listed, first

    def _check(self, listed: frozenset[str], first: str, second: str) -> None:
        acknowledged = {client.id for client in self._clients if client.is_acknowledged and not client.withdraws}
        withdrawn = {client.id for client in self._clients if client.is_withdrawn}
        if lost := acknowledged - listed:
            raise Failure(f"acknowledged, but not in the result: {sorted(lost)}")
        if back := withdrawn & listed:
            raise Failure(f"withdrawn, but in the result: {sorted(back)}")
        keys, rows, counts = expected([client for client in self._clients if client.id in listed])
        if first != digest(keys, rows, counts):
            raise Failure("the result has other bits than the sum of the listed submissions")
        if first != second:
            raise Failure("the result has other bits after the restart")


def run(options: argparse.Namespace) -> int:
    """Runs all cycles; returns the exit status."""
    seed = options.seed if options.seed is not None else int.from_bytes(os.urandom(4), "little")
    print(f"crash_test: seed {seed}, {options.cycles} cycles", flush=True)
    points = fail_points()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="crash-", dir=options.folder))
    volume = Volume(folder) if options.power_failures else None
    server = Server(options.server, folder, ["--durability", options.durability], volume)
    hashes: dict[frozenset[str], str] = {}
    hits: collections.Counter[str] = collections.Counter()
    kills = 0
    begin = time.monotonic()
    try:
        for number in range(options.cycles):
            rng = random.Random(seed * 1_000_003 + number)
            # Every other cycle is at a fail point, so that each comes up as often as any other.
            point = points[number // 2 % len(points)] if number % 2 == 0 else ""
            cycle = Cycle(server, number, rng, [make_client(index, seed) for index in range(options.clients)])
            try:
                listed, found = cycle.run(point)
                if hashes.setdefault(listed, found) != found:
                    raise Failure("another cycle had another hash for the same submissions")
            except BaseException:
                print(f"crash_test: cycle {number} at '{point or 'a random time'}', seed {seed}; see {folder}")
                raise
            finally:
                kills += cycle.num_kills
                hits.update(cycle.points)
                server.close()
            if options.verbose:
                print(
                    f"cycle {number}: {point or 'random'}, {cycle.num_kills} kills, {len(listed)} counted", flush=True
                )
    except Failure as failure:
        print(f"crash_test: FAILED: {failure}")
        return 1
    finally:
        server.close()
        if volume is not None:
            volume.unmount()
    shutil.rmtree(folder)
    never = [point for point in points if not hits[point]] if options.cycles >= 2 * len(points) else []
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
        "seconds": round(time.monotonic() - begin, 1),
    }
    print(json.dumps(figures))
    return 0


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--clients", type=int, default=8, help="in a cycle")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--durability", choices=["sync", "async"], default="sync")
    parser.add_argument(
        "--power-failures", action="store_true", help="with each kill, lose what is not synced; needs root"
    )
    parser.add_argument("--folder", help="where the data directory is made; by default that of temporary files")
    parser.add_argument("--server", default=str(REPOSITORY / "build/dev/service/sparseagg-server"), help="a test build")
    parser.add_argument("--verbose", action="store_true", help="a line for each cycle")
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
