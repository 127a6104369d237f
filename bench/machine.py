"""The machine and its processes: names, memory speed, CPU time, resident memory; and the JSON of benchmarks."""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import re
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

SWEEP_BYTES = 256 << 20


def cpu_name() -> str:
    """The processor's name, with family and model, since virtual machines often name the maker only."""
    text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    found = dict(re.findall(r"^(model name|cpu family|model)\s*: (.*)$", text, re.MULTILINE)[::-1])
    family = f", family {found['cpu family']}, model {found['model']}" if "cpu family" in found else ""
    return found.get("model name", "unknown") + family


def memory_speed(threads: int) -> dict[str, float]:
    """Bytes a second that this many threads read, and write to memory that was written before; medians of 7."""
    parts = np.array_split(np.ones(SWEEP_BYTES // 8, np.uint64), threads)

    def rate(work: Callable[[Any], Any]) -> float:
        seconds = []
        for _ in range(7):
            start = time.perf_counter()
            list(pool.map(work, parts))
            seconds.append(time.perf_counter() - start)
        return SWEEP_BYTES / statistics.median(seconds)

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:  # NumPy releases the lock of the interpreter
        return {"read": rate(np.add.reduce), "write": rate(lambda part: np.copyto(part, 2))}


def cpu_seconds(pid: int | str) -> float:
    """The CPU time that a process has used."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int | str = "self", field: str = "VmHWM") -> int:
    """The highest resident size of a process, or with "VmRSS" the present one."""
    found = re.search(rf"^{field}:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found.group(1)) * 1024 if found else 0


def reset_peak() -> bool:
    """Makes the highest resident size of this process the present one; False if the system does not let it."""
    try:
        pathlib.Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def rounded(value: Any) -> Any:
    """The value with the numbers in it rounded to five significant digits; whole numbers stay as they are."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if abs(value) < 1e5 else round(value)
    if isinstance(value, dict):
        return {name: rounded(member) for name, member in value.items()}
    return [rounded(member) for member in value] if isinstance(value, list) else value


def dumps(value: Any, levels: int = 2) -> str:
    """JSON text in which each member of the outer objects, and each object of a list there, has a line of its own."""
    value = rounded(value)
    if levels and isinstance(value, dict) and value:
        members = (f"{json.dumps(name)}: {dumps(member, levels - 1)}" for name, member in value.items())
        return "{\n" + ",\n".join(members) + "\n}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
    return json.dumps(value)
