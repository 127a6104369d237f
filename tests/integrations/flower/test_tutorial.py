"""The tutorial of Flower does what it says."""

from __future__ import annotations

import pathlib
import subprocess
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]


def test_tutorial_does_what_it_says():
    page = REPOSITORY / "docs/tutorials/flower.md"
    subprocess.run([sys.executable, str(REPOSITORY / "scripts/run_page.py"), str(page)], check=True)
