"""The plug-ins of tests/cuda/plugin, of the build that the server is from."""

from __future__ import annotations

import pathlib

import pytest
from real_server import server_binary


def plugin(name: str) -> str:
    """Returns the path of a plug-in; skips where the build has none, as under the sanitizers."""
    path = pathlib.Path(server_binary()).resolve().parents[1] / "tests" / "cuda" / f"libsparseagg_{name}.so"
    if not path.is_file():
        pytest.skip(f"there is no {path}")
    return str(path)
