#!/usr/bin/env python3
"""Unpacks a bundle in an empty folder and uses it with an empty environment, as on a machine that has nothing.

  scripts/check_bundle.py BUNDLE.tar.xz

Checks that no program needs a newer libc (bundle.sh has looked at other libraries), that a server on the CPU serves a
round to this Python's sparseagg, which must be installed, and that `check.sh --quick` passes on those of its parts that
are quick, with the half for the GPU listed as not run where there is no GPU. The tests in the bundle are those that
`make test` runs, and are left out. Exit status 1 and the reason on the first thing that is wrong.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import sparseagg as sa

OLDEST_LIBC = (2, 28)
START_TIMEOUT_S = 60
# Of check.sh: the parts, the seconds that it may take, and the files that it may leave.
PARTS = ("device", "bench", "serve", "peers", "sanitizer")
WITHIN_S = 500
MAX_FILES = 8


def fail(text: str) -> None:
    """Ends the check."""
    raise SystemExit(f"check_bundle: {text}")


def check_libraries(folder: Path) -> int:
    """Every program and library, and the versions of libc's symbols that they ask for; returns how many there are."""
    programs = [path for path in folder.rglob("*") if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"]
    for program in programs:
        symbols = subprocess.run(["objdump", "-T", str(program)], check=True, capture_output=True, text=True).stdout
        versions = {tuple(map(int, found.split("."))) for found in re.findall(r"\bGLIBC_([0-9.]+)", symbols)}
        if versions and max(versions) > OLDEST_LIBC:
            fail(f"{program.name} needs libc {'.'.join(map(str, max(versions)))}")
    return len(programs)


def check_round(folder: Path) -> None:
    """A round on the CPU, through a real socket."""
    command = [str(folder / "bin/sparseagg-server"), "--config", str(folder / "sparseagg.toml")]
    command += ["--backend", "cpu", "--grpc-address", "127.0.0.1:0", "--http-address", "none"]
    command += ["--metrics-address", "none"]
    server = subprocess.Popen(command, cwd=folder, env={}, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        if not line.startswith("listening grpc="):
            fail(f"the server said {line!r}")
        with sa.Client(line.split()[1].removeprefix("grpc=")) as client:
            spec = sa.RoundSpec(tensors=[sa.TensorSpec("t", dtype="float32", num_rows=10, row_width=2)], op="sum")
            opened = client.create_round(spec)
            opened.submit("a", {"t": (np.array([7, 9]), np.array([[1, 2], [3, 4]], np.float32))})
            opened.submit("b", {"t": (np.array([9]), np.array([[5, 8]], np.float32))})
            result = opened.finish()["t"]
        values = result.values
        if result.keys.tolist() != [7, 9] or values is None or values.tolist() != [[1, 2], [8, 12]]:
            fail(f"the round gave {result.keys} and {values}")
    finally:
        server.terminate()
        status = server.wait(START_TIMEOUT_S)
    if status != 0:
        fail(f"the server ended with status {status}")


def check_script(folder: Path) -> None:
    """The quick parts of check.sh."""
    out = folder.parent / "out"
    command = [str(folder / "check.sh"), "--quick", "--half", "both", "--out", str(out), "--only", ",".join(PARTS)]
    command += ["--within", str(WITHIN_S)]
    done = subprocess.run(command, cwd=folder, env={}, check=False)
    if done.returncode != 0:
        fail(f"check.sh ended with status {done.returncode}")
    found = json.loads((out / "check.json").read_text(encoding="utf-8"))
    results = {(step["part"], step["half"]): step["result"] for step in found["steps"]}
    if any(results[part, "cpu"] != "ok" for part in ("device", "bench", "serve", "peers")):
        fail(f"check.json says {results}")
    files = sorted(path.name for path in out.rglob("*"))
    if "more.tar" not in files or len(files) > MAX_FILES:
        fail(f"check.sh has left {files}, and not {MAX_FILES} files at most")
    if found["no_gpu"] and results["bench", "gpu"] != "not run":
        fail("check.json lists the GPU's benchmarks as run where there is no GPU")


def main() -> int:
    """Runs the command; returns its exit status."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    bundle = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as parent:
        subprocess.run(["tar", "-xf", str(bundle)], check=True, cwd=parent)
        (folder,) = Path(parent).iterdir()
        print(f"{check_libraries(folder)} programs and libraries need libc {'.'.join(map(str, OLDEST_LIBC))} only")
        check_round(folder)
        print("a server with an empty environment served a round on the CPU")
        check_script(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
