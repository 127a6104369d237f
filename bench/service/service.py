"""Measures the server under load: starts it, drives it with sparseagg-loadgen, and writes a JSON file.

What loadgen answers for was verified there, bit for bit. Runs that are compared with each other take turns. Standard
library only; client_python wants the package `sparseagg` beside it.
"""

from __future__ import annotations

import argparse
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
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
import json_lines
from server_process import Server, end_with_bench


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
    soak_seconds: float
    soak_connections: int


FULL = Sizes(1, 7, 21, (1, 4, 16), "ABEF", 64, 1000, 10, 1000, 600, 200)
QUICK = Sizes(10, 2, 3, (1, 4), "AE", 8, 30, 3, 20, 4, 40)


# In Gbit/s, of those whose tails are measured beside loopback's.
NETWORKS = (10, 1)


class Bench:
    """The measurements, each against a server of its own."""

    def __init__(self, server: pathlib.Path, loadgen: pathlib.Path, sizes: Sizes) -> None:
        self._server = server
        self._loadgen = loadgen
        self._sizes = sizes

    def _load(self, server: Server, workload: str, *flags: str | float, divide: int | None = None) -> dict[str, Any]:
        divide = divide or self._sizes.divide_clients
        always = ("--target", server.address, "--workload", workload, "--divide-clients", divide)
        return self._run(self._loadgen, *always, *flags)

    def _run(self, *command: object) -> dict[str, Any]:
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, check=False, preexec_fn=end_with_bench
        )
        if done.returncode != 0:
            raise SystemExit(f"service.py: {' '.join(str(part) for part in command)}: {done.stderr.strip()}")
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def share_of_sink(self) -> list[dict[str, Any]]:
        """Bytes a second against a server that drops them, for several numbers of streams."""
        found = []
        for streams in self._sizes.streams:
            with Server(self._server) as server:
                turns = ("--streams", streams, "--repetitions", self._sizes.share_repetitions)
                found.append(self._load(server, "A", *turns, "--sink", "raw", "--sink", "typed"))
            raw = found[-1]["sinks"]["raw"]
            say(
                f"{streams:3} streams: {found[-1]['bytes_per_s'] / 1e6:6.0f} MB/s, {raw['share']:.0%} of the sink's "
                f"{raw['bytes_per_s'] / 1e6:.0f}; with the merge {raw['share_with_merge']:.0%}"
            )
        return found

    def packed(self) -> list[dict[str, Any]]:
        """Tuples a second with packed keys and float16 values, against the same tuples plain, and the sink's."""
        found = []
        for streams in self._sizes.streams:
            with Server(self._server) as server:
                turns = ("--streams", streams, "--repetitions", self._sizes.share_repetitions)
                form = ("--keys", "packed", "--values", "float16", "--against-plain", "--sink", "raw")
                found.append(self._load(server, "A", *turns, *form))
            plain = found[-1]["plain"]
            sink = found[-1]["sinks"]["raw"]["bytes_per_s"] / found[-1]["bytes_per_tuple"]
            say(
                f"{streams:3} streams, packed: {found[-1]['tuples_per_s'] / 1e6:.0f} M tuples/s in "
                f"{found[-1]['bytes_per_tuple']:.2f} bytes each, {plain['tuples_per_s_against_it']:.2f} times the "
                f"{plain['tuples_per_s'] / 1e6:.0f} M of plain ones; the sink {sink / plain['tuples_per_s']:.2f} times"
            )
        return found

    def client_python(self) -> list[dict[str, Any]]:
        """Bytes a second that one process sends with the Python client."""
        found = []
        for threads in (1, 4):
            with Server(self._server) as server:
                program = pathlib.Path(__file__).with_name("python_client.py")
                clients = max(1, 100 // self._sizes.divide_clients)
                flags = ("--clients", clients, "--threads", threads, "--repetitions", self._sizes.repetitions)
                found.append(self._run(sys.executable, program, "--target", server.address, *flags))
            rates = [found[-1][f"{name}bytes_per_s"] / 1e6 for name in ("", "slowest_", "fastest_")]
            say(f"Python, {threads} threads: {rates[0]:.0f} MB/s ({rates[1]:.0f} to {rates[2]:.0f})")
        return found

    def tails(self) -> list[dict[str, Any]]:
        """From the close to the result, as a share of the time that the submissions took.

        Over loopback, as fast as it goes, and with submissions that come as networks of some Gbit/s would bring them.
        """
        found = []
        for workload in self._sizes.tail_workloads:
            with Server(self._server) as server:
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
            shares = [
                f"{run['tail_share']:.1%} ({'loopback' if run['gigabits_per_s'] is None else run['gigabits_per_s']})"
                for run in found
                if run["workload"] == workload
            ]
            say(f"workload {workload}: tail, of the ingest time, by Gbit/s: {', '.join(shares)}")
        return found

    def concurrent_rounds(self) -> dict[str, Any]:
        """The same submissions, to one round and dealt out among many; from the first to the last result."""
        many = self._sizes.concurrent_rounds
        seconds: dict[int, list[float]] = {1: [], many: []}
        with Server(self._server) as server:
            for _ in range(self._sizes.repetitions):
                for rounds, measured in seconds.items():
                    run = self._load(server, "E", "--streams", 16, "--rounds", rounds, "--repetitions", 1)
                    measured += run["total_seconds"]
        slower = statistics.median(seconds[many]) / statistics.median(seconds[1]) - 1
        say(f"{many} rounds at once: {slower:+.1%} time against one")
        return {"workload": "E", "seconds": {str(rounds): times for rounds, times in seconds.items()}, "slower": slower}

    def small_rounds(self) -> dict[str, Any]:
        """From the creation of a round to its result, of 20 clients with 1000 tuples each."""
        with Server(self._server) as server:
            flags = ("--whole-rounds", self._sizes.small_rounds, "--streams", 20)
            found = self._load(server, "E", *flags, divide=500)
        say(f"small rounds: p50 {found['latency']['p50_ms']:.2f} ms, p99 {found['latency']['p99_ms']:.2f} ms")
        return found

    def memory_growth(self) -> dict[str, Any]:
        """Resident memory of a server after more and more small rounds."""
        with Server(self._server) as server:
            resident = []
            for _ in range(self._sizes.growth_batches):
                flags = ("--whole-rounds", self._sizes.growth_batch_rounds, "--streams", 20)
                self._load(server, "E", *flags, divide=500)
                resident.append(server.memory_bytes())
        say(
            f"memory after {self._sizes.growth_batch_rounds} rounds {resident[0] / 1e6:.1f} MB, "
            f"after {self._sizes.growth_batch_rounds * len(resident)} {resident[-1] / 1e6:.1f} MB"
        )
        return {"rounds_per_sample": self._sizes.growth_batch_rounds, "resident_bytes": resident}

    def durability(self) -> dict[str, Any]:
        """Bytes a second at each level of durability, from large and from small updates.

        On the disk of temporary files, and in memory, which shows what the software alone costs.
        """
        places = {"disk": pathlib.Path(tempfile.gettempdir()), "memory": pathlib.Path("/dev/shm")}
        found: list[dict[str, Any]] = []
        for place, parent in places.items():
            if not parent.is_dir():
                continue
            for workload, divide in (("A", self._sizes.divide_clients), ("E", 5 * self._sizes.divide_clients)):
                found.append({"place": place, **self._durability_at(parent, workload, divide)})
                rates, disk = found[-1]["bytes_per_s"], found[-1]["sequential_bytes_per_s"]
                shown = ", ".join(f"{level} {rate / 1e6:.0f} MB/s" for level, rate in rates.items())
                shares = ", ".join(f"{level} {share:.0%}" for level, share in found[-1]["of_first"].items())
                say(f"durability, {place}, workload {workload}: {shown} ({shares}); one file {disk / 1e6:.0f} MB/s")
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
            plain = stack.enter_context(Server(self._server))
            secure = stack.enter_context(Server(self._server, *dev_tls))
            with_tokens = stack.enter_context(Server(self._server, *dev_tls, "--tokens-file", str(tokens)))
            contestants: dict[str, tuple[Any, ...]] = {
                "plain": (plain,),
                "tls": (secure, *ca),
                "tls, token": (with_tokens, *ca, "--token-file", token),
            }
            for streams in (1, 16):
                rates = self._in_turns(contestants, "A", streams, self._sizes.divide_clients)
                found.append({"streams": streams, **compared(rates)})
                shown = ", ".join(f"{name} {rate / 1e6:.0f} MB/s" for name, rate in found[-1]["bytes_per_s"].items())
                say(f"{streams} streams: {shown}")
        return {"workload": "A", "runs": found}

    def _in_turns(
        self, contestants: dict[str, tuple[Any, ...]], workload: str, streams: int, divide: int
    ) -> dict[str, list[float]]:
        """Bytes a second of each contestant, a server and flags of the load generator, one run after another."""
        rates: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(self._sizes.repetitions):
            for name, (server, *flags) in contestants.items():
                run = self._load(server, workload, "--streams", streams, "--repetitions", 1, *flags, divide=divide)
                rates[name].append(run["bytes_per_s"])
        return rates

    def _durability_at(self, parent: pathlib.Path, workload: str, divide: int) -> dict[str, Any]:
        disk = [sequential_bytes_per_s(parent) for _ in range(self._sizes.repetitions)]
        with contextlib.ExitStack() as stack:
            contestants: dict[str, tuple[Any, ...]] = {}
            for level in ("memory", "async", "sync"):
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sparseagg-bench-", dir=parent))
                flags = ("--data-dir", folder, "--durability", level)
                contestants[level] = (stack.enter_context(Server(self._server, *flags)),)
            rates = self._in_turns(contestants, workload, 16, divide)
        return {
            "workload": workload,
            "divide_clients": divide,
            "sequential_bytes_per_s": round(statistics.median(disk)),
            **compared(rates),
        }

    def soak(self) -> dict[str, Any]:
        """Good clients among three times as many bad ones, and the server's memory against its limit."""
        limit = 256 << 20
        flags = ("--memory-limit", str(limit), "--max-message-bytes", "1MiB", "--upload-timeout", "5s")
        with Server(self._server, *flags) as server:
            seconds, connections = self._sizes.soak_seconds, self._sizes.soak_connections
            soak = ("--soak", "--duration", seconds, "--connections", connections, "--server-pid", server.pid)
            found = self._load(server, "A", *soak, "--rate", 50, divide=2)
        found["limit_bytes"] = limit
        found["peak_of_limit"] = round(found["peak_bytes"] / limit, 4)
        say(
            f"soak: {found['submissions']} submissions of {connections // 4} good clients among {connections} counted "
            f"once each; at most {found['peak_bytes'] / 1e6:.0f} MB resident, {found['peak_of_limit']:.0%} of the limit"
        )
        return found


def sequential_bytes_per_s(folder: pathlib.Path) -> float:
    """What the disk of a folder takes in one file, with a sync in the end."""
    block = os.urandom(1 << 22)
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        begin = time.monotonic()
        for _ in range(64):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        return 64 * len(block) / (time.monotonic() - begin)


def compared(rates: dict[str, list[float]]) -> dict[str, Any]:
    """Medians, and shares of the first one: of runs that took turns, so that what else the machine does is in both."""
    first, *others = rates
    shares = {name: statistics.median(mine / its for mine, its in zip(rates[name], rates[first])) for name in others}
    return {
        "bytes_per_s": {name: round(statistics.median(found)) for name, found in rates.items()},
        "of_first": {name: round(share, 3) for name, share in shares.items()},
        "all_bytes_per_s": {name: [round(rate) for rate in found] for name, found in rates.items()},
    }


def say(text: str) -> None:
    """Progress, for people."""
    print(text, file=sys.stderr, flush=True)


MEASUREMENTS = (
    "share_of_sink",
    "packed",
    "client_python",
    "tails",
    "concurrent_rounds",
    "small_rounds",
    "memory_growth",
    "durability",
    "tls",
    "soak",
)


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", type=pathlib.Path, required=True, help="sparseagg-server")
    parser.add_argument("--loadgen", type=pathlib.Path, required=True, help="sparseagg-loadgen")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="JSON to write")
    parser.add_argument("--quick", action="store_true", help="a look in less than a minute; no figures to quote")
    parser.add_argument("--only", action="append", choices=MEASUREMENTS, help="just this one, or these")
    parser.add_argument("--skip", action="append", default=[], choices=MEASUREMENTS, help="not this one, or these")
    parser.add_argument("--soak-seconds", type=float, help="how long the soak lasts (600; with --quick 4)")
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL
    if options.soak_seconds is not None:
        sizes = dataclasses.replace(sizes, soak_seconds=options.soak_seconds)
    bench = Bench(options.server, options.loadgen, sizes)
    begin = time.monotonic()
    found: dict[str, Any] = {
        name: getattr(bench, name)()
        for name in MEASUREMENTS
        if name in (options.only or MEASUREMENTS) and name not in options.skip
    }
    head = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "cores": os.cpu_count(),
        "quick": options.quick,
        "seconds": round(time.monotonic() - begin, 1),
    }
    json_lines.write(options.out, {**head, **found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
