"""Helpers that the tests of the client have, too."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator

import pytest
import sparseagg as sa

TESTS = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(TESTS / "python"), str(TESTS / "support")]


@pytest.fixture(scope="module")
def server() -> Iterator[sa.Client]:
    """A client of a server of its own."""
    with sa.Client(":local:") as client:
        yield client
