#!/usr/bin/env python3
"""Installs a wheel under every Python, beside old and new versions of what it requires, and tries it.

  scripts/test_matrix.py WHEEL SERVER

For each Python 3.9 to 3.13 of pyenv or the PATH, each protobuf of PROTOBUFS, and the oldest and the newest versions
that have wheels: runs tests/python/matrix/smoke.py in an environment of uv's against one server.

Writes docs/compatibility-table.json, but for what tests/system/emulated.py wrote there. A combination that uv does not
install has the reason. The exit status is 1 if an installed combination fails.
"""

from __future__ import annotations

import datetime
import itertools
import json
import platform
import subprocess
import sys
from pathlib import Path

import sparseagg as sa

REPOSITORY = Path(__file__).resolve().parent.parent
TABLE = REPOSITORY / "docs/compatibility-table.json"
PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13")
PROTOBUFS = {"3.20": ">=3.20.3,<4", "4": ">=4,<5", "5": ">=5,<6", "6": ">=6,<7", "7": ">=7,<8"}
RESOLUTIONS = {"oldest": "lowest-direct", "newest": "highest"}  # of uv, by age


def try_combination(wheel: str, address: str, python: str, age: str, protobuf: str) -> dict[str, object]:
    """Installs and tries a combination; returns it with its outcome, reason and versions."""
    # The newest of pyenv, whose shims uv cannot start.
    of_pyenv = Path.home().glob(f".pyenv/versions/{python}.*/bin/python")
    program = max(of_pyenv, key=lambda path: int(path.parts[-3].rpartition(".")[2]), default=python)
    command = [sys.executable, "-m", "uv", "run", "-q", "--isolated", "--no-project", "--no-python-downloads"]
    command += ["--no-build", "--resolution", RESOLUTIONS[age], "--python", str(program)]
    for requirement in (wheel, "numpy", "grpcio", f"protobuf{PROTOBUFS[protobuf]}"):
        command += ["--with", requirement]
    command += [str(REPOSITORY / "tests/python/matrix/smoke.py"), address]
    outcome, reason, versions = "works", "", {}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode == 0:
            versions = json.loads(done.stdout.splitlines()[-1])
        elif "Traceback" in done.stderr:
            outcome, reason = "fails", done.stderr.strip().splitlines()[-1]
        else:
            outcome, reason = "does not install", " ".join(done.stderr.split())[:200]
    except subprocess.TimeoutExpired as error:
        outcome, reason = "fails", f"no end within {error.timeout} s"
    found = {"python": python, "protobuf": protobuf, "age": age, "outcome": outcome, "reason": reason}
    return {**found, "versions": versions, "date": datetime.date.today().isoformat()}


def write_table(**changes: object) -> None:
    """Replaces entries of the table, which has a line for each combination."""
    table = {**json.loads(TABLE.read_text(encoding="utf-8")), **changes}
    rows = ",\n".join(map(json.dumps, table.pop("results")))
    TABLE.write_text(f'{json.dumps(table)[:-1]}, "results": [\n{rows}\n]}}\n', encoding="utf-8")


def main() -> None:
    """Runs the command."""
    wheel, program = sys.argv[1:]
    results = []
    with sa.Server(program=program) as server:
        for combination in itertools.product(PYTHONS, RESOLUTIONS, PROTOBUFS):
            results.append(try_combination(wheel, server.address, *combination))
            print(results[-1], flush=True)
    write_table(wheel=Path(wheel).name, machine=f"{platform.system()} {platform.machine()}", results=results)
    sys.exit(any(each["outcome"] == "fails" for each in results))


if __name__ == "__main__":
    main()
