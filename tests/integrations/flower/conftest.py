"""Helpers that the tests of the client have, too."""

from __future__ import annotations

import pathlib
import sys

TESTS = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(TESTS / "python"), str(TESTS / "support")]
