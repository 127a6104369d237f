"""The benchmarks: workloads × contestants, in turns, in one of three modes.

    run.py merge --out FILE.json [--workloads ABCDD64EFGJ] …  updates in memory to a result in memory
    run.py round --out FILE.json [--workloads "10 clients"] … whole rounds, as a coordinator in Python waits for them
    run.py service --out FILE.json [--workloads tls] …        the server under load (load.py)

In the first two, every library has a process of its own. For each workload every contestant first runs once, untimed,
is held to a reference, and is out if it is wrong; then they take turns, in an order drawn anew for each turn, until
each has its repetitions: in the mode merge with fresh memory, and after that with warm. How many those are goes by the
first that is timed: slow ones have fewer, and the result says how many. Writes a JSON file, which show.py reads.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import json
import os
import pathlib
import platform
import random
import re
import select
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import data
import load
import machine
import numpy as np
from contestants import MODULES
from rounds import CASES

HERE = pathlib.Path(__file__).resolve().parent
BUILD = HERE.parent / "build" / "dev"
MEMORIES = {"merge": ("fresh", "warm"), "round": ("as it is",)}
# One that takes longer for a command hangs.
LONGEST_S = {"merge": 30, "round": 600}
PATIENCE_S = {"merge": 0.7, "round": 30}  # for one's repetitions
SEED = 1  # of the turns
STAGES = ("create", "submit", "merge", "read", "total", "cpu")
BEFORE = "before: "  # begins the names of the contestants of another checkout


class Process:
    """A library's process, which is started again when it has ended."""

    def __init__(self, python: str, module: str, environment: dict[str, str], longest_s: float, prefix: str) -> None:
        self.module, self.prefix = module, prefix
        self._python, self._longest_s = python, longest_s
        stand_ins = pathlib.Path(sys.prefix, "torch-stand-ins")
        libraries = {"LD_LIBRARY_PATH": str(stand_ins)} if module == "torch" and stand_ins.is_dir() else {}
        self._environment = {**os.environ, **environment, **libraries}
        self._loaded: dict[str, Any] = {}
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [self._python, str(HERE / "worker.py"), self.module],
            cwd=HERE,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        answer = self._read()
        self.failed: str | None = answer.get("failed")
        self.version: str | None = answer.get("version")

    def ask(self, **command: Any) -> dict[str, Any]:
        """Sends a command and waits for its answer; a process that dies or hangs answers with {"failed": …}."""
        if command["do"] == "load":
            self._loaded = command
        if self._process.poll() is not None:
            self._start()
            if command["do"] != "load" and "failed" in (answer := self.ask(**self._loaded)):
                return answer
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return {"failed": self._death()}
        return self._read()

    def stop(self) -> None:
        """Ends it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        # There is one answer a command, so nothing waits in the buffer before it.
        if not select.select([self._process.stdout], [], [], self._longest_s)[0]:
            self._process.kill()
            self._process.wait()
            return {"failed": f"no answer within {self._longest_s} s"}
        line = self._process.stdout.readline()
        if not line:
            return {"failed": self._death()}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _death(self) -> str:
        return f"its process ended with status {self._process.wait()}"


@dataclasses.dataclass
class Entry:
    """A contestant in one workload."""

    process: Process
    index: int
    name: str
    output: str
    threads: int
    inputs: str
    refuses: str | None
    peak_bytes: int | None = None
    runs: dict[str, list[dict[str, Any]]] = dataclasses.field(default_factory=lambda: collections.defaultdict(list))

    def target(self, options: argparse.Namespace) -> int:
        """Repetitions that it has time for: all where that is little, one where a single one is much. Ours has all.

        The first timed one tells: the one before it, whose answer was checked, may have compiled what it runs.
        """
        if "sparseagg" in self.name:
            return int(options.repetitions)
        first = next((run["seconds"] for run in self.runs[MEMORIES[options.mode][0]]), None)
        patience = 0.3 if options.quick else PATIENCE_S[options.mode]
        if first is None or first > patience:
            return 1
        return max(2, min(options.repetitions, int(patience / first)))

    def wants(self, memory: str, options: argparse.Namespace) -> bool:
        """Whether it should run again. Those that are very slow are not run with warm memory, which takes two."""
        target = self.target(options)
        return len(self.runs[memory]) < target and (memory != "warm" or target > 1)


class Comparison:
    """All workloads of a mode."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._random = random.Random(SEED)
        self._processes: list[Process] = []
        self.absent: list[dict[str, str]] = _absent()
        self.versions: dict[str, str] = {}
        self.workloads: list[dict[str, Any]] = []
        self.results: list[dict[str, Any]] = []
        self.left_out: list[dict[str, str]] = []

    def run(self, folder: pathlib.Path) -> None:
        """Runs all workloads; ``folder`` is for their files."""
        self._start()
        try:
            for name in self._options.workloads:
                began = time.monotonic()
                if self._options.mode == "merge":
                    facts = data.write(self._options.loadgen, name, 20 if self._options.quick else 1, folder / name)
                    self.workloads.append(facts)
                    self._compare(facts, folder=str(folder / name), threads=self._options.threads)
                    for file in (folder / name).iterdir():
                        file.unlink()
                else:
                    self._compare({"name": name}, case=name, server=self._options.server)
                _say(f"{name}: {time.monotonic() - began:.0f} s")
        finally:
            for process in self._processes:
                process.stop()

    def _start(self) -> None:
        mode, before = self._options.mode, self._options.before
        modules = MODULES[mode]
        wanted = self._options.libraries.split(",") if self._options.libraries else list(modules)
        known = {absent["library"] for absent in self.absent}
        for module in wanted:
            package, environment = modules[module]
            pythons = {"": self._options.pythons.get(package, sys.executable)}
            if before is not None and package == "sparseagg":
                pythons[BEFORE] = str(before / ".venv/bin/python")
            for prefix, python in pythons.items():
                if prefix + package in known:
                    continue
                try:
                    process = Process(python, module, environment, LONGEST_S[mode], prefix)
                    reason = process.failed
                except OSError as error:
                    reason = str(error)
                if reason is not None:
                    self.absent.append({"library": prefix + package, "reason": reason})
                    known.add(prefix + package)
                    _say(f"{prefix}{package} is absent: {reason}")
                    continue
                self.versions[prefix + package] = str(process.version)
                self._processes.append(process)

    def _compare(self, facts: dict[str, Any], **load: Any) -> None:
        entries: list[Entry] = []
        for process in self._processes:
            if "server" in load and process.prefix == BEFORE:
                load["server"] = str(self._options.before / "build/dev/service/sparseagg-server")
            answer = process.ask(do="load", **load)
            if "failed" in answer:
                self._leave_out(facts["name"], process.prefix + process.module, answer["failed"])
                continue
            for index, entry in enumerate(answer["entries"]):
                entries.append(Entry(process, index, **{**entry, "name": process.prefix + entry["name"]}))
        entries = [entry for entry in entries if self._passes(facts["name"], entry)]
        # All with fresh memory, then all with warm: a change between the two empties or fills an allocator.
        for memory in MEMORIES[self._options.mode][: 1 if self._options.quick else None]:
            while turn := [entry for entry in entries if entry.wants(memory, self._options)]:
                self._random.shuffle(turn)
                failed = [entry for entry in turn if not self._times(facts["name"], entry, memory)]
                entries = [entry for entry in entries if not any(entry is other for other in failed)]
        line = _result if self._options.mode == "merge" else _round
        self.results += [line(facts["name"], entry) for entry in entries if any(entry.runs.values())]

    def _passes(self, workload: str, entry: Entry) -> bool:
        if entry.refuses is not None:
            self._leave_out(workload, entry.name, entry.refuses)
            return False
        answer = entry.process.ask(do="check", entry=entry.index)
        problem = answer.get("failed") or answer["error"]
        if problem is not None:
            self._leave_out(workload, entry.name, f"wrong: {problem}" if "error" in answer else problem)
            return False
        entry.peak_bytes = answer["peak_bytes"]
        return True

    def _times(self, workload: str, entry: Entry, memory: str) -> bool:
        answer = entry.process.ask(do="run", entry=entry.index, memory=memory)
        if "failed" in answer:
            self._leave_out(workload, entry.name, answer["failed"])
            return False
        entry.runs[memory].append(answer)
        return True

    def _leave_out(self, workload: str, name: str, reason: str) -> None:
        self.left_out.append({"workload": workload, "contestant": name, "reason": reason})
        _say(f"{workload}: without {name}: {reason}")


def _result(workload: str, entry: Entry) -> dict[str, Any]:
    """The line of a contestant of the mode merge. By kind of memory: number of repetitions, and seconds."""
    line = {
        "workload": workload,
        "contestant": entry.name,
        "output": entry.output,
        "threads": entry.threads,
        "inputs": entry.inputs,
        "peak_bytes": entry.peak_bytes,
    }
    for memory, runs in entry.runs.items():
        if not runs:  # too slow for a second kind of memory
            continue
        seconds = [run["seconds"] for run in runs]
        line[memory] = {
            "repetitions": len(seconds),
            "median_seconds": statistics.median(seconds),
            "least_seconds": min(seconds),
            "most_seconds": max(seconds),
        }
    return line


def _round(case: str, entry: Entry) -> dict[str, Any]:
    """The line of a contestant of the mode round: medians of the stages."""
    runs = entry.runs["as it is"]
    line = {"case": case, "name": entry.name, "clients": CASES[case][0], "num_rounds": len(runs)}
    line.update({stage: statistics.median(run[stage] for run in runs) for stage in STAGES})
    line.update(fastest=min(run["total"] for run in runs), slowest=max(run["total"] for run in runs))
    line.update({name: max(run[name] for run in runs) for name in ("coordinator_peak_bytes", "server_peak_bytes")})
    return line


def _absent() -> list[dict[str, str]]:
    path = pathlib.Path(sys.prefix, "absent.json")
    if not path.exists():
        return []
    return [{"library": name, "reason": reason} for name, reason in json.loads(path.read_text()).items()]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=[*MODULES, "service"])
    parser.add_argument("--out", type=pathlib.Path, required=True, help="JSON file to write")
    parser.add_argument(
        "--workloads",
        help=f"names (ABCDD64EFGJ), or, with ; between, cases of rounds: {', '.join(CASES)}; of the service: "
        f"{', '.join(load.MEASUREMENTS)}",
    )
    parser.add_argument("--libraries", help="names of MODULES, with commas between (all of the mode)")
    parser.add_argument("--python", action="append", default=[], metavar="PACKAGE=PATH", help="such as flwr=…")
    parser.add_argument(
        "--before", type=pathlib.Path, metavar="CHECKOUT", help="another built checkout, to compare with"
    )
    parser.add_argument("--server", default=BUILD / "service/sparseagg-server", type=pathlib.Path, help="the program")
    parser.add_argument("--loadgen", default=BUILD / "tools/loadgen/sparseagg-loadgen", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="at most (%(default)s)")
    parser.add_argument("--repetitions", type=int, help="of each, fresh and warm (7; of rounds 3; --quick 2)")
    parser.add_argument("--quick", action="store_true", help="little of everything, and no figures to quote")
    return parser


def main() -> int:
    """Runs the command; returns its exit status."""
    options = _parser().parse_args()
    is_merge = options.mode == "merge"
    # Workers run in this folder. The links of virtual environments must stay as they are.
    pythons = [each.split("=", 1) for each in options.python]
    options.pythons = {package: str(pathlib.Path(path).absolute()) for package, path in pythons}
    options.server = str(options.server.absolute())
    options.before = options.before and options.before.absolute()
    options.repetitions = options.repetitions or (2 if options.quick else 7 if is_merge else 3)
    given = options.workloads and (
        re.findall("[A-Z][0-9]*", options.workloads) if is_merge else options.workloads.split(";")
    )
    began = time.monotonic()
    found: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": {
            "cpu": machine.cpu_name(),
            "cores": os.cpu_count(),
            "system": platform.platform(),
            "python": platform.python_version(),
            "numpy": np.__version__,
        },
    }
    found["quick"] = options.quick
    if options.mode == "service":
        found.update(load.measure(options.server, options.loadgen, options.quick, given or load.MEASUREMENTS))
    else:
        if is_merge:
            speeds = {f"{each} threads": machine.memory_speed(each) for each in sorted({1, options.threads})}
            found["machine"]["memory_bytes_per_s"] = speeds
        options.workloads = given or (
            [*"ABCD", "D64", *"EFGJ"] if is_merge else list(CASES)[-1:] if options.quick else list(CASES)[:-1]
        )
        comparison = Comparison(options)
        with tempfile.TemporaryDirectory(prefix="sparseagg-comparison-") as folder:
            comparison.run(pathlib.Path(folder))
        found.update(versions=comparison.versions, absent=comparison.absent, left_out=comparison.left_out)
        if is_merge:
            found["workloads"] = comparison.workloads
        found["results" if is_merge else "rounds"] = comparison.results
    found["seconds"] = round(time.monotonic() - began)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(machine.dumps(found) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
