"""The CPU time and the resident memory of processes; and the JSON of benchmarks."""

from __future__ import annotations

import json
import os
import pathlib
import re
from typing import Any


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
