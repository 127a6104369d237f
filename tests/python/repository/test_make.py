"""The Makefile in a folder where nothing is made yet, with stand-ins for what it calls."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess

import pytest
from real_server import REPOSITORY

# Of each tool, what a recipe may call it for, in the order in which it is called.
TOOL = """#!/bin/sh
echo "$(basename "$0") $*" >>"$CALLS"
case "$(basename "$0") $*" in $FAILS) exit 1 ;; esac
case "$1 $2" in "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp "$0" "$3/bin/pip" \
  && cp "$0" "$3/bin/sparseagg" ;; esac
case "$*" in "--preset dev "*) mkdir -p build/dev && touch build/dev/build.ninja ;; esac
"""
FILES = [
    "CMakePresets.json",
    "CMakeLists.txt",
    "python/pyproject.toml",
    "python/setup.py",
    "python/engine/CMakeLists.txt",
]


def make(folder: pathlib.Path, target: str, fails: str = "") -> tuple[int, list[str]]:
    """Makes a target; returns the status, and the commands of the tools."""
    for name in FILES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for name in ("tools/cmake", "tools/ctest", "tools/python3", "scripts/deps.sh"):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(TOOL, encoding="utf-8")
        path.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    environment |= {
        "PATH": f"{folder}/tools:{os.environ['PATH']}",
        "CALLS": str(folder / "calls"),
        "FAILS": fails or "-",
    }
    shutil.copy(REPOSITORY / "Makefile", folder)
    done = subprocess.run(
        ["make", "-C", folder, target], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, (folder / "calls").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(("target", "groups"), [("test", {"build", "test", "browser"}), ("run", {"build"})])
def test_make_uses_the_network_before_it_compiles(tmp_path: pathlib.Path, target: str, groups: set[str]) -> None:
    status, calls = make(tmp_path, target)
    assert status == 0
    first = next(i for i, call in enumerate(calls) if call.startswith("cmake --build"))
    assert groups <= {call.split()[1] for call in calls[:first] if call.startswith("deps.sh")}
    assert any(call.startswith("pip install") for call in calls[:first])
    later = [call for call in calls[first:] if call.startswith(("pip", "python3 -m venv"))]
    assert not later, "of Python's archive, nothing is left for later"


@pytest.mark.parametrize("fails", ["ctest*", "*tests/python", "*tests/integrations*", ""])
def test_make_test_runs_all_parts_and_then_fails(tmp_path: pathlib.Path, fails: str) -> None:
    status, calls = make(tmp_path, "test", fails)
    assert (status != 0) == bool(fails)
    for part in ("ctest --preset dev", "tests/system tests/python", "tests/integrations"):
        assert sum(part in call for call in calls) == 1, calls
