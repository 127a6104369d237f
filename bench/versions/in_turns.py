"""Measures what a Python user waits for with two versions of sparseagg, which take turns.

    in_turns.py --before CHECKOUT --out FILE.json [--turns N] [--row NAME]

A checkout has been built by `make build` or `make run`. Each figure comes from a process of its own (row.py says what
is timed and checked); the checkouts' order changes from turn to turn. With --row, the other rows of the file stay.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import time
from json import loads
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
import json_lines

ROW = pathlib.Path(__file__).with_name("row.py")
HERE = ROW.parents[2]
# As in row.py, which cannot be imported without the package.
NAMES = [line.split()[1].split("(")[0] for line in ROW.read_text().splitlines() if line.startswith("    def ")]
NAMES = [name for name in NAMES if not name.startswith("_")]


def run(checkout: pathlib.Path, name: str) -> dict[str, Any]:
    """One figure of one checkout; ``{"absent": reason}`` if it fails."""
    command = [checkout / ".venv/bin/python", ROW, name]
    command += ["--server", checkout / "build/dev/service/sparseagg-server"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {"absent": (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]}
    found: dict[str, Any] = loads(done.stdout)
    return found


def commit(checkout: pathlib.Path) -> str:
    """The commit that a checkout has."""
    return subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """A line of the table: medians of all turns."""
    found: dict[str, list[dict[str, Any]]] = {"before": [], "now": []}
    for turn in range(options.turns):
        for which in ("before", "now") if turn % 2 == 0 else ("now", "before"):
            found[which].append(run(options.before if which == "before" else HERE, name))
    line: dict[str, Any] = {"row": name}
    for which, runs in found.items():
        if absent := next((one["absent"] for one in runs if "absent" in one), None):
            line[which] = None
            line[f"{which}_absent"] = absent
            continue
        line["unit"] = runs[0]["unit"]
        line[which] = statistics.median(one["value"] for one in runs)
        line[f"{which}_all"] = [one["value"] for one in runs]
        if "first" in runs[0]:
            line[f"{which}_first"] = statistics.median(one["first"] for one in runs)
        if "peak_beyond_result" in runs[0]:
            line[f"{which}_peak_beyond_result"] = max(one["peak_beyond_result"] for one in runs)
    print({key: value for key, value in line.items() if not key.endswith("_all")}, file=sys.stderr, flush=True)
    return line


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=pathlib.Path, required=True, help="the other checkout")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--row", action="append", choices=NAMES, help="some rows only")
    options = parser.parse_args()
    kept = []
    if options.row and options.out.exists():
        kept = [line for line in loads(options.out.read_text())["rows"] if line["row"] not in options.row]
    lines = kept + [measure(name, options) for name in options.row or NAMES]
    head = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "cores": os.cpu_count(), "turns": options.turns}
    head.update(before=commit(options.before), now=commit(HERE))
    json_lines.write(options.out, {**head, "rows": lines})
    return 0


if __name__ == "__main__":
    sys.exit(main())
