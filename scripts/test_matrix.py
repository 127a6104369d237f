#!/usr/bin/env python3
"""Installs a wheel under every Python, beside old and new versions of what it requires, and tries it.

  scripts/test_matrix.py WHEEL --server PATH

For each Python 3.9 to 3.13 of pyenv or the PATH, each protobuf of PROTOBUFS, and the oldest and the newest versions
that have wheels: makes a virtual environment, installs, and runs tests/python/matrix/smoke.py against one server.
uv's cache saves a second run the downloads.

Writes docs/compatibility-table.json. A combination that uv does not install has the reason. The exit
status is 1 if an installed combination fails.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sparseagg as sa

REPOSITORY = Path(__file__).resolve().parent.parent
SMOKE = REPOSITORY / "tests" / "python" / "matrix" / "smoke.py"
TABLE = REPOSITORY / "docs" / "compatibility-table.json"

PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13")
PROTOBUFS = {"3.20": ">=3.20.3,<4", "4": ">=4,<5", "5": ">=5,<6", "6": ">=6,<7", "7": ">=7,<8"}
RESOLUTIONS = {"oldest": "lowest-direct", "newest": "highest"}  # of uv, by age
NEIGHBOURS = ("numpy", "grpcio")
SMOKE_TIMEOUT_S = 120
WORKS, FAILS, NO_INSTALL = "works", "fails", "does not install"


def run(*command: str, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a program without the variables that would show it other packages."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return subprocess.run(command, capture_output=True, text=True, env=inherited, timeout=timeout, check=False)


def interpreter(version: str) -> str:
    """Returns what to ask uv for: the newest Python of pyenv, whose shims uv cannot start, or the version."""
    of_pyenv = list(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    return str(max(of_pyenv, key=lambda path: int(path.parts[-3].rpartition(".")[2]))) if of_pyenv else version


def try_combination(wheel: Path, python: str, protobuf: str, age: str, address: str) -> dict[str, Any]:
    """Installs and tries a combination; returns it with its outcome, reason and versions."""
    found: dict[str, Any] = {"python": python, "protobuf": protobuf, "age": age, "outcome": NO_INSTALL, "reason": ""}
    found.update(versions={}, date=datetime.date.today().isoformat())
    uv = [sys.executable, "-m", "uv"]
    with tempfile.TemporaryDirectory(prefix="sparseagg-matrix-") as folder:
        inside = str(Path(folder, "bin", "python"))
        requirements = [str(wheel), *NEIGHBOURS, f"protobuf{PROTOBUFS[protobuf]}"]
        options = ["--only-binary", ":all:", "--resolution", RESOLUTIONS[age]]
        for command in (
            [*uv, "venv", "-q", "--no-python-downloads", "--python", interpreter(python), folder],
            [*uv, "pip", "install", "-q", "--python", inside, *options, *requirements],
        ):
            done = run(*command)
            if done.returncode != 0:
                return {**found, "reason": " ".join(done.stderr.replace("×", "").split())[:200]}
        try:
            done = run(inside, str(SMOKE), address, timeout=SMOKE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return {**found, "outcome": FAILS, "reason": f"no end within {SMOKE_TIMEOUT_S} s"}
    if done.returncode != 0:
        return {**found, "outcome": FAILS, "reason": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    return {**found, "outcome": WORKS, "versions": json.loads(done.stdout.splitlines()[-1])}


def write_results(wheel: str, results: Sequence[dict[str, Any]]) -> None:
    """Writes the JSON file."""
    machine = f"{platform.system()} {platform.machine()}"
    rows = ",\n".join(map(json.dumps, results))
    head = f'"wheel": {json.dumps(wheel)}, "machine": {json.dumps(machine)}'
    TABLE.write_text(f'{{{head}, "results": [\n{rows}\n]}}\n', encoding="utf-8")


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--server", required=True)
    arguments = parser.parse_args()
    results = []
    with sa.Server(program=arguments.server) as server:
        for python, age, protobuf in itertools.product(PYTHONS, RESOLUTIONS, PROTOBUFS):
            results.append(try_combination(arguments.wheel, python, protobuf, age, server.address))
            print(results[-1], flush=True)
    write_results(arguments.wheel.name, results)
    return 1 if any(each["outcome"] == FAILS for each in results) else 0


if __name__ == "__main__":
    sys.exit(main())
