#!/usr/bin/env python3
"""Makes the wheel sparseagg-cuda13: the library with the CUDA engine that sparseagg and its server load at run time.

  scripts/cuda_wheel.py --library libsparseagg_cuda.so --out FOLDER

Fails where the wheel is less portable than its name says, or takes MAX_MB or more. Prints the wheel, with its size.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from wheels import LIBC, REPOSITORY, check, fail

MAX_MB = 60
# What was linked in comes with its licence, from these Debian packages, and CUDA's from the toolkit.
LICENCES = ("libabsl-dev", "libhwy-dev", "libsodium-dev", "libstdc++6", "libtbb-dev", "libxxhash-dev")


def make_wheel(library: Path, tag: str, out: Path) -> Path:
    """Makes the wheel from a copy of its folder, which stays as it is; returns the wheel."""
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "cuda")
        shutil.copytree(REPOSITORY / "python" / "cuda", source, ignore=shutil.ignore_patterns("build", "*.egg-info"))
        (source / "licences").mkdir()
        shutil.copy(REPOSITORY / "LICENSE", source / "licences" / "LICENSE")
        for debian in LICENCES:
            shutil.copy(Path("/usr/share/doc", debian, "copyright"), source / "licences" / debian)
        with (source / "pyproject.toml").open("a", encoding="utf-8") as project:
            project.write('\n[tool.setuptools]\nlicense-files = ["licences/*"]\n')
        command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(out)]
        environment = {**os.environ, "SPARSEAGG_CUDA_LIBRARY": str(library), "SPARSEAGG_CUDA_PLATFORM": tag}
        if subprocess.run([*command, str(source)], check=False, env=environment).returncode != 0:
            fail("pip wheel ended with an error")
    (wheel,) = out.glob(f"sparseagg_cuda13-*-py3-none-{tag}.whl")
    return wheel


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    tag = f"{LIBC}_{platform.machine()}"
    check(make_wheel(arguments.library.resolve(), tag, out), tag, MAX_MB)
    return 0


if __name__ == "__main__":
    sys.exit(main())
