"""Measures whole rounds as a coordinator in Python sees them, by stage, and beside what people write first.

    round_bench.py --out FILE.json [--server PATH] [--python NAME=PATH] [--case NAME] [--quick]

Each contestant has a process of its own (contestant.py says what is timed and checked), and they take turns. Flower and
NVFlare run in the interpreters named for them ("flower", "nvflare"), and are left out without one. With --case, the
other cases of the file stay as they are. What a round will take is guessed from the clients a second of the cases
before: a contestant that needs over half a minute has one round, and one that needs over ten is left out.
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
from updates import CASES

CONTESTANT = pathlib.Path(__file__).with_name("contestant.py")
# The contestants, each with the interpreter that it needs.
NAMES = {
    "sparseagg, server": "",
    "sparseagg, in memory": "",
    "NumPy, pickles": "",
    "NVFlare's cells": "nvflare",
    "Flower's SuperLink": "flower",
}
STAGES = ("create", "submit", "merge", "read")
TURNS = 3
SLOW_S = 30
LONGEST_S = 600


def run(name: str, case: str, repetitions: int, options: argparse.Namespace) -> dict[str, Any]:
    """One run of some rounds; ``{"absent": reason}`` if it fails."""
    needed = NAMES[name]
    if needed and needed not in options.pythons:
        return {"absent": f"--python {needed}=PATH is not given"}
    python = options.pythons.get(needed, sys.executable)
    command = [python, str(CONTESTANT), name, case, "--repetitions", str(repetitions)]
    if options.server is not None:
        command += ["--server", str(options.server)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {"absent": (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]}
    found: dict[str, Any] = loads(done.stdout.splitlines()[-1])
    return found


def measure(case: str, options: argparse.Namespace, earlier: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All contestants on one case, in turns."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in NAMES}
    for turn in range(1 if options.quick else TURNS):
        for name, those in runs.items():
            rates = [line["clients"] / line["total"] for line in earlier if line["name"] == name and "total" in line]
            guess = CASES[case][0] / max(rates) if rates else 0.0
            if guess > LONGEST_S:
                those[:] = [{"absent": f"{max(rates):.0f} clients a second, its most so far, would take {guess:.0f} s"}]
            elif turn == 0 or (guess < SLOW_S and "absent" not in those[-1]):
                those.append(run(name, case, 1 if guess < SLOW_S else 0, options))
    lines = []
    for name, those in runs.items():
        absent = next((each["absent"] for each in those if "absent" in each), None)
        if absent is not None:
            print(f"{case:16} {name:18} absent: {absent}", file=sys.stderr)
            lines.append({"case": case, "name": name, "absent": absent})
            continue
        rounds = [each for those_rounds in those for each in those_rounds["rounds"]]
        line = {
            "case": case,
            "name": name,
            "clients": CASES[case][0],
            "bytes": those[0]["bytes"],
            "num_rounds": len(rounds),
        }
        for stage in (*STAGES, "total", "cpu"):
            line[stage] = statistics.median(each[stage] for each in rounds)
        line["fastest"] = min(each["total"] for each in rounds)
        line["slowest"] = max(each["total"] for each in rounds)
        for peak in ("coordinator_peak_bytes", "server_peak_bytes"):
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
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--case", action="append", choices=CASES, help="some cases only")
    parser.add_argument("--quick", action="store_true", help="a small case; no figures to quote")
    options = parser.parse_args()
    options.pythons = dict(each.split("=", 1) for each in options.python)
    cases = ["quick"] if options.quick else options.case or [name for name in CASES if name != "quick"]
    lines: list[dict[str, Any]] = []
    if options.case and options.out.exists():
        lines = [line for line in loads(options.out.read_text())["rounds"] if line["case"] not in cases]
    for case in cases:
        lines += measure(case, options, lines)
    head = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "cores": os.cpu_count(),
        "numpy": __import__("numpy").__version__,
    }
    json_lines.write(options.out, {**head, "rounds": lines})
    return 0


if __name__ == "__main__":
    sys.exit(main())
