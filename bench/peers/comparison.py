"""Compares sparseagg with its peers on workloads A to G, in one run and in turns.

Every library has a process of its own. For each workload every contestant first merges once, untimed, is held to a
reference, and is out if it is wrong; then they take turns, in an order drawn anew for each turn, with fresh memory and
after that with warm, until each has its repetitions. How many those are goes by the first that is timed: slow ones have
fewer, and the result says how many. Writes a JSON file, which table.py and plot.py read.
"""

from __future__ import annotations

import argparse
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
import native
import numpy as np
from contestants import MODULES

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "common"))
import json_lines  # noqa: E402

MEMORIES = ("fresh", "warm")
# One that takes longer for a command hangs.
LONGEST_S = 30


class Process:
    """A library's process, which is started again when it has ended."""

    def __init__(self, module: str, environment: dict[str, str]) -> None:
        self.module = module
        stand_ins = pathlib.Path(sys.prefix, "torch-stand-ins")
        libraries = {"LD_LIBRARY_PATH": str(stand_ins)} if module == "torch_" and stand_ins.is_dir() else {}
        self._environment = {**os.environ, **environment, **libraries}
        self._loaded: dict[str, Any] = {}
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py"), self.module],
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
        if not select.select([self._process.stdout], [], [], LONGEST_S)[0]:
            self._process.kill()
            self._process.wait()
            return {"failed": f"no answer within {LONGEST_S} s"}
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
    seconds: dict[str, list[float]] = dataclasses.field(default_factory=lambda: {memory: [] for memory in MEMORIES})

    def target(self, options: argparse.Namespace) -> int:
        """Repetitions that it has time for: all where that is little, one where a single one is much. Ours has all.

        The first timed one tells: the one before it, whose answer was checked, may have compiled what it runs.
        """
        if self.name.startswith("sparseagg"):
            return int(options.repetitions)
        first = next(iter(self.seconds["fresh"]), None)
        if first is None or first > options.patience:
            return 1
        return max(options.least, min(options.repetitions, int(options.patience / first)))

    def wants(self, memory: str, options: argparse.Namespace) -> bool:
        """Whether it should run again. Those that are very slow are not run with warm memory, which takes two."""
        target = self.target(options)
        return len(self.seconds[memory]) < target and (memory == "fresh" or target > 1)


class Comparison:
    """All workloads."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._library = native.load()
        self._random = random.Random(options.seed)
        self._processes: list[Process] = []
        self.absent: list[dict[str, str]] = _absent()
        self.versions: dict[str, str] = {}
        self.workloads: list[dict[str, Any]] = []
        self.results: list[dict[str, Any]] = []
        self.left_out: list[dict[str, str]] = []

    def run(self, folder: pathlib.Path) -> None:
        self._start()
        try:
            for name in self._options.workloads:
                began = time.monotonic()
                workload = native.Workload(self._library, name, self._options.seed, self._options.divide_clients)
                path = folder / name
                facts = data.write(workload, self._options.seed, self._options.divide_clients, path)
                del workload
                self.workloads.append(facts)
                self._compare(facts, path)
                for file in path.iterdir():
                    file.unlink()
                _say(f"{name}: {time.monotonic() - began:.0f} s")
        finally:
            for process in self._processes:
                process.stop()

    def _start(self) -> None:
        wanted = self._options.libraries.split(",") if self._options.libraries else list(MODULES)
        known = {absent["library"] for absent in self.absent}
        for module in wanted:
            package, environment = MODULES[module]
            if package in known:
                continue
            process = Process(module, environment)
            if process.failed is not None:
                process.stop()
                self.absent.append({"library": package, "reason": process.failed})
                known.add(package)
                _say(f"{package} is absent: {process.failed}")
                continue
            self.versions[package] = str(process.version)
            self._processes.append(process)

    def _compare(self, facts: dict[str, Any], path: pathlib.Path) -> None:
        entries: list[Entry] = []
        for process in self._processes:
            answer = process.ask(do="load", folder=str(path), threads=self._options.threads)
            if "failed" in answer:
                self._leave_out(facts["name"], process.module, answer["failed"])
                continue
            found = [Entry(process, index, **entry) for index, entry in enumerate(answer["entries"])]
            entries += [entry for entry in found if re.search(self._options.contestants, entry.name)]
        entries = [entry for entry in entries if self._passes(facts["name"], entry)]
        # All with fresh memory, then all with warm: a change between the two empties or fills an allocator.
        for memory in MEMORIES[:1] if self._options.fresh_only else MEMORIES:
            while turn := [entry for entry in entries if entry.wants(memory, self._options)]:
                self._random.shuffle(turn)
                failed = [entry for entry in turn if not self._times(facts["name"], entry, memory)]
                entries = [entry for entry in entries if not any(entry is other for other in failed)]
        self.results += [_result(facts["name"], entry) for entry in entries if any(entry.seconds.values())]

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
        entry.seconds[memory].append(answer["seconds"])
        return True

    def _leave_out(self, workload: str, name: str, reason: str) -> None:
        self.left_out.append({"workload": workload, "contestant": name, "reason": reason})
        _say(f"{workload}: without {name}: {reason}")


def _result(workload: str, entry: Entry) -> dict[str, Any]:
    """The line of a contestant. By kind of memory: number of repetitions, and seconds."""
    return {
        "workload": workload,
        "contestant": entry.name,
        "output": entry.output,
        "threads": entry.threads,
        "inputs": entry.inputs,
        "peak_bytes": entry.peak_bytes,
        **{
            memory: {
                "repetitions": len(seconds),
                "median_seconds": statistics.median(seconds),
                "least_seconds": min(seconds),
                "most_seconds": max(seconds),
            }
            for memory, seconds in entry.seconds.items()
            if seconds
        },
    }


def _absent() -> list[dict[str, str]]:
    path = pathlib.Path(sys.prefix, "absent.json")
    if not path.exists():
        return []
    return [{"library": name, "reason": reason} for name, reason in json.loads(path.read_text()).items()]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, required=True, help="JSON file to write")
    parser.add_argument("--workloads", default="ABCDEFG", help="letters (%(default)s)")
    parser.add_argument("--libraries", help=f"modules, with commas between (all of {', '.join(MODULES)})")
    parser.add_argument("--contestants", default="", help="only those in whose names this regular expression is found")
    parser.add_argument("--seed", type=int, default=1, help="of the workloads and of the turns (%(default)s)")
    parser.add_argument("--divide-clients", type=int, default=1, help="take fewer clients, for a quick look")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="at most (%(default)s)")
    parser.add_argument("--repetitions", type=int, default=7, help="of each, fresh and warm (%(default)s)")
    parser.add_argument("--least", type=int, default=2, help="repetitions of those that are slow (%(default)s)")
    parser.add_argument("--patience", type=float, default=0.7, help="seconds for one's repetitions (%(default)s)")
    parser.add_argument("--fresh-only", action="store_true", help="not with warm memory, for a quick look")
    return parser


def main() -> int:
    """Runs the command; returns its exit status."""
    options = _parser().parse_args()
    library = native.load()
    began = time.monotonic()
    memory = {f"{threads} threads": native.memory_speed(library, threads) for threads in sorted({1, options.threads})}
    comparison = Comparison(options)
    with tempfile.TemporaryDirectory(prefix="sparseagg-comparison-") as folder:
        comparison.run(pathlib.Path(folder))
    out = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": {
            "cpu": native.cpu_name(library),
            "cores": os.cpu_count(),
            "system": platform.platform(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "memory_bytes_per_s": memory,
        },
        "seed": options.seed,
        "divide_clients": options.divide_clients,
        "seconds": round(time.monotonic() - began),
        "versions": comparison.versions,
        "absent": comparison.absent,
        "left_out": comparison.left_out,
        "workloads": comparison.workloads,
        "results": comparison.results,
    }
    json_lines.write(options.out, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
