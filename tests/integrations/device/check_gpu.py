"""Checks and times merges of arrays in a GPU's memory, with the libraries that make them. Needs a GPU; no pytest.

    python tests/integrations/device/check_gpu.py [--json FILE] [--only torch,cupy,jax,numba,times]

Needs sparseagg with its CUDA engine (SPARSEAGG_CUDA_PLUGIN names the library of a build), and takes about a minute.
Each library has a process of its own, in which it meets no other one's memory pool, and whose crash is one failure.
Prints a line for each check. Exit status: 1 if one failed. What is not installed is skipped, by name: torch,
cupy-cuda13x, jax[cuda13], numba-cuda[cu13].
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pathlib
import subprocess
import sys

TESTS = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS / name) for name in ("python", "support")]

import sparseagg as sa  # noqa: E402
from checking import Checks, vector  # noqa: E402
from libraries import check_cupy, check_jax, check_numba, check_torch  # noqa: E402
from timing import times  # noqa: E402

LIBRARIES = ("torch", "cupy", "jax", "numba")
GROUP_TIMEOUT_S = 60


def run_group(group: str, out: str | None) -> int:
    """Runs the checks of one library in this process. Returns its exit status."""
    module = {"numba": "numba.cuda", "times": "torch"}.get(group, group)
    try:
        importlib.import_module(module)
    except ImportError as error:
        print(f"skipped {group}: {error}", flush=True)
        return 0
    try:
        sa.Aggregator(vector(1), device="cuda")
    except sa.SparseaggError as error:
        print(f"FAILED  {group}: {error}", flush=True)
        return 1
    checks = Checks(group)
    if group == "times":
        with checks.named("all are there"):
            table = times(checks)
            if out:
                pathlib.Path(out).write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
    else:
        # What no check expects, such as a library without a GPU, ends the group.
        with checks.named("all checks ran"):
            {"torch": check_torch, "cupy": check_cupy, "jax": check_jax, "numba": check_numba}[group](checks)
    return 1 if checks.num_failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks and times merges of arrays in a GPU's memory.")
    parser.add_argument("--json", help="where the table of times goes")
    parser.add_argument("--only", default=",".join((*LIBRARIES, "times")), help="groups of checks, by comma")
    parser.add_argument("--group", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.group:
        return run_group(arguments.group, arguments.json)
    environment = {
        **os.environ,
        "JAX_ENABLE_X64": "1",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "PYTHONFAULTHANDLER": "1",
    }
    failed = []
    for group in arguments.only.split(","):
        command = [sys.executable, __file__, "--group", group, *(["--json", arguments.json] if arguments.json else [])]
        try:
            status = subprocess.run(command, env=environment, timeout=GROUP_TIMEOUT_S).returncode
        except subprocess.TimeoutExpired:
            status = f"none after {GROUP_TIMEOUT_S} s"
        if status != 0:
            failed.append(group)
            print(f"FAILED  {group}: exit status {status}", flush=True)
    print(f"failed: {', '.join(failed)}" if failed else "nothing failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
