"""Measures what a Python user waits for with two versions of sparseagg, which take turns.

    in_turns.py --before CHECKOUT --out FILE.json [--turns N] [--row NAME]

NAME "merge" is the engine alone on workloads A to G with one thread, by the checkouts' merge_bench, where both have it.

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
import tempfile
import time
from collections.abc import Iterator
from json import loads
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
import json_lines

ROW = pathlib.Path(__file__).with_name("row.py")
HERE = ROW.parents[2]
MERGE = "merge"
MERGE_BENCH = "build/dev/bench/merge_bench"
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


def turns(options: argparse.Namespace) -> Iterator[tuple[str, pathlib.Path]]:
    """Which version runs, and its checkout; the one that comes first changes from turn to turn."""
    checkouts = {"before": options.before, "now": HERE}
    for turn in range(options.turns):
        yield from checkouts.items() if turn % 2 == 0 else reversed(checkouts.items())


def joined(name: str, runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """A line of the table: medians of all turns."""
    line: dict[str, Any] = {"row": name}
    for which, found in runs.items():
        if absent := next((one["absent"] for one in found if "absent" in one), None):
            line[which] = None
            line[f"{which}_absent"] = absent
            continue
        line["unit"] = found[0]["unit"]
        line[which] = statistics.median(one["value"] for one in found)
        line[f"{which}_all"] = [one["value"] for one in found]
        if "first" in found[0]:
            line[f"{which}_first"] = statistics.median(one["first"] for one in found)
        if "peak_beyond_result" in found[0]:
            line[f"{which}_peak_beyond_result"] = max(one["peak_beyond_result"] for one in found)
    print({key: value for key, value in line.items() if not key.endswith("_all")}, file=sys.stderr, flush=True)
    return line


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """One row of row.py."""
    runs: dict[str, list[dict[str, Any]]] = {"before": [], "now": []}
    for which, checkout in turns(options):
        runs[which].append(run(checkout, name))
    return joined(name, runs)


def measure_merge(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A line for each workload and mode of the engine alone."""
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {}
    with tempfile.TemporaryDirectory(prefix="sparseagg-bench-") as folder:
        out = pathlib.Path(folder, "merge.json")
        for which, checkout in turns(options):
            command = [checkout / MERGE_BENCH, "--workloads", "ABCDEFG", "--max-threads", "1", "--out", out]
            subprocess.run([str(part) for part in command], stdout=subprocess.DEVNULL, check=True)
            for one in loads(out.read_text())["results"]:
                mode = ", ".join([one["numerics"], one["op"], one["weighting"], one["result"]])
                name = f"merge {one['workload']}: {mode}{', counts' if one['counts'] else ''}"
                found = {"value": one["tuples_per_s"] / 1e6, "unit": "M tuples/s"}
                runs.setdefault(name, {"before": [], "now": []})[which].append(found)
    return [joined(name, found) for name, found in runs.items()]


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=pathlib.Path, required=True, help="the other checkout")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--row", action="append", choices=[*NAMES, MERGE], help="some rows only")
    options = parser.parse_args()
    rows = options.row or [*NAMES, MERGE]
    lines = loads(options.out.read_text())["rows"] if options.row and options.out.exists() else []
    lines = [
        line for line in lines if line["row"] not in rows and not (MERGE in rows and line["row"].startswith(MERGE))
    ]
    lines += [measure(name, options) for name in rows if name != MERGE]
    if MERGE in rows and all((checkout / MERGE_BENCH).exists() for checkout in (options.before, HERE)):
        lines += measure_merge(options)
    head = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "cores": os.cpu_count(), "turns": options.turns}
    head.update(before=commit(options.before), now=commit(HERE))
    json_lines.write(options.out, {**head, "rows": lines})
    return 0


if __name__ == "__main__":
    sys.exit(main())
