"""Runs the tests of the JavaScript client and of the pages' model, in Node."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess

import pytest
from real_server import server_binary

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]


def node() -> str | None:
    """Returns the path of Node 18 or later."""
    path = shutil.which("node")
    if path is None:
        return None
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    return path if int(re.match(r"v(\d+)", version).group(1)) >= 18 else None


@pytest.mark.skipif(node() is None, reason="no Node 18 here (scripts/deps.sh browser installs it)")
def test_javascript_client():
    environment = {**os.environ, "SPARSEAGG_SERVER": server_binary()}
    done = subprocess.run(
        [node(), "--test", "js/"], cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
