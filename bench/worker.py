"""One library's process in the comparison. It reads commands, one JSON object a line, and answers each with one.

    {"do": "load", "folder": F, "threads": N}      → {"entries": [{"name", "output", "threads", "inputs", "refuses"}]}
    {"do": "load", "case": C, "server": PROGRAM}   → the same, of whole rounds
    {"do": "check", "entry": I}                    → {"error": text or null, "peak_bytes": B}
    {"do": "run", "entry": I, "memory": "fresh"}   → {"seconds": S, …}

A failure is {"failed": text}. "fresh" memory: everything that the allocator keeps has gone back to the system before,
so that the answer's pages are new. "warm": it keeps all, so that the answer lies where an earlier one did. A run is
timed where this process has made the same before, with the same kind of memory; where not, that is done first.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.metadata
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import data as data_module
import machine
import rounds
from contestants import MODULES

# glibc's mallopt: numbers of its parameters.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
FRESH_MMAP_THRESHOLD = 128 * 1024
MAX_INT = 2**31 - 1


class Allocator:
    """Switches glibc's malloc between giving everything back and keeping everything. Other systems' stays as it is, and
    so do allocators that libraries bring along."""

    def __init__(self) -> None:
        try:
            libc = ctypes.CDLL("libc.so.6")
            self._mallopt, self._malloc_trim = libc.mallopt, libc.malloc_trim
        except (OSError, AttributeError):
            self._mallopt = self._malloc_trim = None

    def set(self, memory: str) -> None:
        if self._mallopt is None:
            return
        if memory == "fresh":
            self._mallopt(M_MMAP_MAX, 65536)
            self._mallopt(M_MMAP_THRESHOLD, FRESH_MMAP_THRESHOLD)
            self._mallopt(M_TRIM_THRESHOLD, FRESH_MMAP_THRESHOLD)
            self._malloc_trim(0)
        else:
            self._mallopt(M_MMAP_MAX, 0)
            self._mallopt(M_TRIM_THRESHOLD, MAX_INT)


class Worker:
    """The state between commands."""

    def __init__(self, contestants: Callable[..., Iterable[Any]]) -> None:
        self._contestants = contestants
        self._allocator = Allocator()
        self._memory = ""
        self._entries: list[Any] = []
        self._reference: Any = None
        self._ran: set[tuple[int, str]] = set()

    def load(self, folder: str = "", threads: int = 1, case: str = "", server: str | None = None) -> dict[str, Any]:
        self.close()
        self._entries, self._reference, self._ran = [], None, set()
        gc.collect()
        if case:
            self._entries = list(self._contestants(rounds.Updates(case), server))
        else:
            path = pathlib.Path(folder)
            self._reference = data_module.read_reference(path)
            self._entries = list(self._contestants(data_module.read(path), threads))
        names = ("name", "output", "threads", "inputs", "refuses")
        return {"entries": [{name: getattr(entry, name) for name in names} for entry in self._entries]}

    def close(self) -> None:
        """Ends what the contestants have started."""
        for contestant in self._entries:
            if contestant.close is not None:
                contestant.close()

    def check(self, entry: int) -> dict[str, Any]:
        contestant = self._entries[entry]
        memory = "fresh" if self._reference is not None else "as it is"
        self._set_memory(memory, contestant)
        measured = machine.reset_peak()
        before = machine.resident_bytes(field="VmRSS")
        _, answer = self._timed(contestant)
        self._ran.add((entry, memory))
        peak = machine.resident_bytes() - before if measured else None
        return {"error": contestant.check(answer, self._reference), "peak_bytes": peak}

    def run(self, entry: int, memory: str) -> dict[str, Any]:
        contestant = self._entries[entry]
        # A library compiles what it compiles in its first run, and an allocator is warm after the first that is.
        if (entry, memory) not in self._ran:
            self._set_memory(memory, contestant)
            self._timed(contestant)
            self._ran.add((entry, memory))
        self._set_memory(memory, contestant)
        return {"seconds": self._timed(contestant)[0], **contestant.measured}

    def _timed(self, contestant: Any) -> tuple[float, Any]:
        if contestant.prepare is not None:
            contestant.prepare()
        gc.collect()
        gc.disable()
        try:
            start = time.perf_counter()
            answer = contestant.run()
            return time.perf_counter() - start, answer
        finally:
            gc.enable()

    def _set_memory(self, memory: str, contestant: Any) -> None:
        if memory == "as it is":  # rounds leave the allocator alone
            return
        if memory == "fresh" or memory != self._memory:
            self._allocator.set(memory)
        if memory == "fresh" and contestant.release is not None:
            contestant.release()
        self._memory = memory


def main() -> int:
    """Serves until its input ends."""
    # The pipe is for answers; what a library prints goes to standard error.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=answers, flush=True)

    try:
        name = sys.argv[1]
        mode, package = next((mode, modules[name][0]) for mode, modules in MODULES.items() if name in modules)
        version = importlib.metadata.version(package)
        in_merge = mode == "merge"
        module = importlib.import_module("contestants.merge" if in_merge else f"contestants.{name}")
        worker = Worker(getattr(module, name if in_merge else "contestants"))
    except Exception as error:  # whatever a library throws makes it absent
        answer({"failed": f"{type(error).__name__}: {error}"})
        return 0
    answer({"version": version})
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer(getattr(worker, command.pop("do"))(**command))
        except Exception as error:  # and here it is out of this workload
            answer({"failed": f"{type(error).__name__}: {str(error)[:300]}"})
    worker.close()
    os._exit(0)  # NVFlare's threads would keep the process


if __name__ == "__main__":
    sys.exit(main())
