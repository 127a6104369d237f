"""Sparse arrays with inconsistent pointers and indices are refused, and no reader follows them."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

DAMAGE = pathlib.Path(__file__).parents[2] / "support" / "foreign_damage.py"


@pytest.mark.parametrize("library", ["jax", "scipy", "sparse", "tensorflow", "torch"])
def test_damaged_arrays_are_read_right_or_refused(library: str) -> None:
    pytest.importorskip(library)
    seed, count = 43, 200 if library in ("jax", "tensorflow") else 2000
    command = [sys.executable, str(DAMAGE), library, str(seed), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-300:]}\n{done.stderr[-1000:]}"
