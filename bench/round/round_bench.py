"""Measures whole rounds as a coordinator in Python sees them, by stage, and beside what people write first.

    round_bench.py --out FILE.json [--server PATH] [--case NAME] [--quick]

Each contestant has a process of its own (contestant.py says what is timed and checked), and they take turns.
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

CONTESTANT = pathlib.Path(__file__).with_name("contestant.py")
NAMES = ("sparseagg server", "sparseagg memory", "numpy pickles")
CASES = ("10 clients", "1000 clients", "100,000 clients", "dense 1 GB")
STAGES = ("create", "submit", "merge", "read")
TURNS = 3


def run(name: str, case: str, options: argparse.Namespace) -> dict[str, Any]:
    """One run of some rounds; ``{"absent": reason}`` if it fails."""
    command = [sys.executable, str(CONTESTANT), name, case, "--repetitions", "1" if options.quick else "2"]
    if options.server is not None:
        command += ["--server", str(options.server)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {"absent": (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]}
    found: dict[str, Any] = loads(done.stdout.splitlines()[-1])
    return found


def measure(case: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """All contestants on one case, in turns."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in NAMES}
    for _ in range(1 if options.quick else TURNS):
        for name in NAMES:
            runs[name].append(run(name, case, options))
    lines = []
    for name, those in runs.items():
        absent = next((each["absent"] for each in those if "absent" in each), None)
        if absent is not None:
            print(f"{case:16} {name:18} absent: {absent}", file=sys.stderr)
            lines.append({"case": case, "name": name, "absent": absent})
            continue
        rounds = [each for those_rounds in those for each in those_rounds["rounds"]]
        line = {"case": case, "name": name, "bytes": those[0]["bytes"]}
        for stage in (*STAGES, "total", "cpu"):
            line[stage] = statistics.median(each[stage] for each in rounds)
        line["fastest"] = min(each["total"] for each in rounds)
        line["slowest"] = max(each["total"] for each in rounds)
        for peak in ("client_peak_bytes", "server_peak_bytes"):
            line[peak] = max(each[peak] for each in those)
        shown = "  ".join(f"{stage} {line[stage]:7.3f}" for stage in (*STAGES, "total", "cpu"))
        print(f"{case:16} {name:18} {shown}", file=sys.stderr, flush=True)
        lines.append(line)
    return lines


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--server", type=pathlib.Path)
    parser.add_argument("--case", action="append", choices=CASES, help="some cases only")
    parser.add_argument("--quick", action="store_true", help="a small case; no figures to quote")
    options = parser.parse_args()
    cases = ["quick"] if options.quick else options.case or CASES
    lines = [line for case in cases for line in measure(case, options)]
    head = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "cores": os.cpu_count(),
        "numpy": __import__("numpy").__version__,
    }
    json_lines.write(options.out, {**head, "rounds": lines})
    return 0


if __name__ == "__main__":
    sys.exit(main())
