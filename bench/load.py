"""The mode "service" of run.py: starts the server, drives it with sparseagg-loadgen.

What loadgen answers for was verified there, bit for bit. Runs that are compared with each other take turns. An update
that a Python process sends is measured by `run.py round`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import sparseagg as sa
from machine import resident_bytes

NETWORKS = (10, 1)  # in Gbit/s, of those whose tails are measured beside loopback's


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    divide_clients: int
    repetitions: int
    share_repetitions: int
    streams: tuple[int, ...]
    tail_workloads: str
    concurrent_rounds: int
    small_rounds: int
    growth_batches: int
    growth_batch_rounds: int
    disk_blocks: int


FULL = Sizes(1, 7, 21, (1, 4, 16), "ABEF", 64, 1000, 10, 1000, 64)
QUICK = Sizes(40, 1, 1, (1, 4), "AE", 8, 10, 3, 10, 8)


class Bench:
    """The measurements, each against a server of its own."""

    def __init__(self, server: str, loadgen: pathlib.Path, sizes: Sizes) -> None:
        self._program = server
        self._loadgen = loadgen
        self._sizes = sizes

    def _server(self, *flags: str) -> sa.Server:
        return sa.Server(program=self._program, options=["--log-level", "error", *flags])

    def _load(self, server: sa.Server, workload: str, *flags: str | float, divide: int | None = None) -> dict[str, Any]:
        always = ("--target", server.address, "--workload", workload)
        command = [self._loadgen, *always, "--divide-clients", divide or self._sizes.divide_clients, *flags]
        texts = [str(part) for part in command]
        done = subprocess.run(texts, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"service.py: {' '.join(texts)}: {done.stderr.strip()}")
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def _by_streams(self, *flags: str) -> list[dict[str, Any]]:
        found = []
        command = [self._loadgen, "--serve-sink"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as sink:
            address = (sink.stdout.readline() if sink.stdout else "").rpartition("=")[2].strip()
            for streams in self._sizes.streams:
                with self._server() as server:
                    turns = ("--sink", address, "--streams", streams, "--repetitions", self._sizes.share_repetitions)
                    found.append(self._load(server, "A", *turns, *flags))
        return found

    def share_of_sink(self) -> list[dict[str, Any]]:
        """Bytes a second against a server that drops them, for several numbers of streams."""
        found = self._by_streams()
        for run in found:
            sink = run["sink"]
            say(
                f"{run['streams']:3} streams: {run['bytes_per_s'] / 1e6:6.0f} MB/s, {sink['share']:.0%} of the sink's "
                f"{sink['bytes_per_s'] / 1e6:.0f}; with the merge {sink['share_with_merge']:.0%}"
            )
        return found

    def packed(self) -> list[dict[str, Any]]:
        """Tuples a second with packed keys and float16 values, and the sink's."""
        found = self._by_streams("--keys", "packed", "--values", "float16")
        for run in found:
            say(
                f"{run['streams']:3} streams, packed: {run['tuples_per_s'] / 1e6:.0f} M tuples/s in "
                f"{run['bytes_per_tuple']:.2f} bytes each"
            )
        return found

    def tails(self) -> list[dict[str, Any]]:
        """From the close to the result, as a share of the time that the submissions took.

        Over loopback, as fast as it goes, and with submissions that come as networks of some Gbit/s would bring them.
        """
        found = []
        for workload in self._sizes.tail_workloads:
            with self._server() as server:
                repetitions = ("--repetitions", self._sizes.repetitions)
                loopback = self._load(server, workload, "--streams", 16, *repetitions)
                found.append({"gigabits_per_s": None, **loopback})
                for gigabits in NETWORKS:
                    bytes_per_s = gigabits * 1e9 / 8
                    if bytes_per_s > loopback["bytes_per_s"]:
                        continue
                    rate = bytes_per_s * loopback["clients"] / loopback["bytes"]
                    # The duration ends with the first pass over all clients: one round.
                    run = self._load(server, workload, "--rate", rate, "--duration", 0.001, *repetitions)
                    found.append({"gigabits_per_s": gigabits, **run})
        for run in found:
            say(f"workload {run['workload']}, {run['gigabits_per_s']} Gbit/s: tail {run['tail_share']:.1%}")
        return found

    def concurrent_rounds(self) -> dict[str, Any]:
        """The same submissions, to one round and dealt out among many; from the first to the last result."""
        many = self._sizes.concurrent_rounds
        seconds: dict[int, list[float]] = {1: [], many: []}
        with self._server() as server:
            for _ in range(self._sizes.repetitions):
                for rounds, measured in seconds.items():
                    run = self._load(server, "E", "--streams", 16, "--rounds", rounds, "--repetitions", 1)
                    measured += run["total_seconds"]
        slower = statistics.median(seconds[many]) / statistics.median(seconds[1]) - 1
        say(f"{many} rounds at once: {slower:+.1%} time against one")
        return {"workload": "E", "seconds": {str(rounds): times for rounds, times in seconds.items()}, "slower": slower}

    def small_rounds(self) -> dict[str, Any]:
        """From the creation of a round to its result, of 20 clients with 1000 tuples each."""
        with self._server() as server:
            flags = ("--whole-rounds", self._sizes.small_rounds, "--streams", 20)
            found = self._load(server, "E", *flags, divide=500)
        say(f"small rounds: p50 {found['latency']['p50_ms']:.2f} ms, p99 {found['latency']['p99_ms']:.2f} ms")
        return found

    def memory_growth(self) -> dict[str, Any]:
        """Resident memory of a server after more and more small rounds."""
        rounds, resident = self._sizes.growth_batch_rounds, []
        with self._server() as server:
            for _ in range(self._sizes.growth_batches):
                self._load(server, "E", "--whole-rounds", rounds, "--streams", 20, divide=500)
                resident.append(resident_bytes(server.pid or 0, "VmRSS"))
        say(f"memory after each {rounds} rounds: {', '.join(f'{each / 1e6:.1f} MB' for each in resident)}")
        return {"rounds_per_sample": rounds, "resident_bytes": resident}

    def durability(self) -> dict[str, Any]:
        """Bytes a second at each level of durability, from large and from small updates.

        On the disk of temporary files, and in memory, which shows what the software alone costs.
        """
        places = {"disk": pathlib.Path(tempfile.gettempdir()), "memory": pathlib.Path("/dev/shm")}
        found: list[dict[str, Any]] = []
        for place, parent in places.items():
            if not parent.is_dir():
                continue
            blocks = self._sizes.disk_blocks
            disk = [sequential_bytes_per_s(parent, blocks) for _ in range(self._sizes.repetitions)]
            for workload, divide in (("A", self._sizes.divide_clients), ("E", 5 * self._sizes.divide_clients)):
                with contextlib.ExitStack() as stack:
                    contestants: dict[str, tuple[Any, ...]] = {}
                    for level in ("memory", "async", "sync"):
                        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sparseagg-bench-", dir=parent))
                        flags = ("--data-dir", folder, "--durability", level)
                        contestants[level] = (stack.enter_context(self._server(*flags)),)
                    rates = self._in_turns(f"durability, {place}", contestants, workload, 16, divide)
                facts = {"place": place, "workload": workload, "divide_clients": divide}
                found.append({**facts, "sequential_bytes_per_s": round(statistics.median(disk)), **rates})
        return {"streams": 16, "runs": found}

    def tls(self) -> dict[str, Any]:
        """Bytes a second over plain connections, over TLS, and over TLS with a bearer token; one and 16 streams."""
        found = []
        with contextlib.ExitStack() as stack:
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sparseagg-bench-")))
            token, tokens = folder / "token", folder / "tokens"
            token.write_text("token-of-the-benchmark", encoding="ascii")
            tokens.write_text(f"{hashlib.sha256(token.read_bytes()).hexdigest()} admin bench -\n", encoding="ascii")
            dev_tls = ("--dev-tls", str(folder / "tls"))
            ca = ("--tls-ca", folder / "tls" / "ca.pem")
            plain = stack.enter_context(self._server())
            secure = stack.enter_context(self._server(*dev_tls))
            with_tokens = stack.enter_context(self._server(*dev_tls, "--tokens-file", str(tokens)))
            contestants: dict[str, tuple[Any, ...]] = {
                "plain": (plain,),
                "tls": (secure, *ca),
                "tls, token": (with_tokens, *ca, "--token-file", token),
            }
            for streams in (1, 16):
                rates = self._in_turns("TLS", contestants, "A", streams, self._sizes.divide_clients)
                found.append({"streams": streams, **rates})
        return {"workload": "A", "runs": found}

    def _in_turns(
        self, title: str, contestants: dict[str, tuple[Any, ...]], workload: str, streams: int, divide: int
    ) -> dict[str, Any]:
        """Bytes a second of each contestant, a server and flags of the load generator, one run after another.

        Returns medians, and shares of the first contestant: what else the machine does is in both.
        """
        rates: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(self._sizes.repetitions):
            for name, (server, *flags) in contestants.items():
                run = self._load(server, workload, "--streams", streams, "--repetitions", 1, *flags, divide=divide)
                rates[name].append(run["bytes_per_s"])
        first, *others = rates
        shares = {
            name: statistics.median(mine / its for mine, its in zip(rates[name], rates[first])) for name in others
        }
        found = {name: round(statistics.median(each)) for name, each in rates.items()}
        shown = ", ".join(f"{name} {rate / 1e6:.0f} MB/s" for name, rate in found.items())
        say(f"{title}, workload {workload}, {streams} streams: {shown}")
        return {
            "bytes_per_s": found,
            "of_first": {name: round(share, 3) for name, share in shares.items()},
            "all_bytes_per_s": {name: [round(rate) for rate in each] for name, each in rates.items()},
        }


def sequential_bytes_per_s(folder: pathlib.Path, blocks: int) -> float:
    """What the disk of a folder takes in one file of so many blocks of 4 MiB, with a sync in the end."""
    block = os.urandom(1 << 22)
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        begin = time.monotonic()
        for _ in range(blocks):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        return blocks * len(block) / (time.monotonic() - begin)


def say(text: str) -> None:
    """Progress, for people."""
    print(text, file=sys.stderr, flush=True)


MEASUREMENTS = [name for name in vars(Bench) if not name.startswith("_")]


def measure(server: str, loadgen: pathlib.Path, quick: bool, names: Sequence[str]) -> dict[str, Any]:
    """Returns what each of these MEASUREMENTS found."""
    bench = Bench(server, loadgen, QUICK if quick else FULL)
    return {name: getattr(bench, name)() for name in names}
