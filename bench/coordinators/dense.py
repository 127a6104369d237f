"""Averages dense arrays of several clients with sparseagg, NumPy, torch and the coordinators' own code.

    dense.py --out FILE.json [--plot FILE.png] [--python flower=PATH] [--python nvflare=PATH] [--server PATH]

Each run has a process of its own (dense_contestant.py says what is timed and checked), and the contestants take turns.
A coordinator is imported from the interpreter named for it, and reported as absent without one.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
import json_lines

CONTESTANT = pathlib.Path(__file__).with_name("dense_contestant.py")
# Elements a client, clients, repetitions. The largest array has 1 GB; of it, coordinators that keep all replies would
# need more memory than a machine of 24 GiB has, so four clients are all.
SIZES = {"100 MB": (25_000_000, 8, 5), "1 GB": (250_000_000, 4, 1)}
QUICK = {"4 MB": (1_000_000, 3, 1)}


def run(name: str, python: str, elements: int, clients: int, options: argparse.Namespace) -> dict[str, Any]:
    """One run; ``{"name": …, "absent": reason}`` if it fails."""
    command = [python, str(CONTESTANT), name, "--elements", str(elements), "--clients", str(clients)]
    if options.server is not None:
        command += ["--server", str(options.server)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
        return {"name": name, "absent": lines[-1]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(size: str, options: argparse.Namespace, pythons: dict[str, str]) -> list[dict[str, Any]]:
    """All contestants on one size, in turns."""
    elements, clients, repetitions = (QUICK if options.quick else SIZES)[size]
    names = [*dict.fromkeys(options.only or NAMES)]
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(repetitions):
        for name in names:
            if not any("absent" in each for each in runs[name]):
                runs[name].append(run(name, pythons.get(name, sys.executable), elements, clients, options))
    found = []
    for name, those in runs.items():
        last = those[-1]
        if "absent" not in last:
            last["elements_per_s"] = statistics.median(each["elements_per_s"] for each in those)
            last["seconds"] = [each["seconds"] for each in those]
            memory = last["server_bytes"] or last["peak_bytes"]
            say(f"{size:>7} {name:22} {last['elements_per_s'] / 1e6:8.0f} M elements/s {memory / 1e6:8.0f} MB")
        else:
            say(f"{size:>7} {name:22} absent: {last['absent']}")
        found.append({"size": size, **last})
    return found


NAMES = (
    "numpy float32",
    "numpy float64",
    "torch float32",
    "flower",
    "nvflare",
    "sparseagg canonical",
    "sparseagg fixed_point",
    "sparseagg server",
)


def say(text: str) -> None:
    """Progress, for people."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--server", type=pathlib.Path)
    parser.add_argument("--only", action="append", choices=NAMES)
    parser.add_argument("--quick", action="store_true", help="small arrays; no figures to quote")
    options = parser.parse_args()
    pythons = dict(each.split("=", 1) for each in options.python)
    found = [each for size in (QUICK if options.quick else SIZES) for each in measure(size, options, pythons)]
    head = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "cores": os.cpu_count(), "threads": 1}
    json_lines.write(options.out, {**head, "runs": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
