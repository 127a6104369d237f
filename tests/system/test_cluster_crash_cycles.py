"""A short run of cluster_crash_cycles.py; ``make crash-test`` has the long one."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest
from real_server import REPOSITORY, START_TIMEOUT_S, server_binary

SCRIPT = REPOSITORY / "tests/system/cluster_crash_cycles.py"


@pytest.mark.parametrize("executor", ["local", "ray"])
def test_killed_cluster_loses_nothing_acknowledged(tmp_path, executor):
    if executor == "ray" and importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: make test-ray")
    command = [sys.executable, str(SCRIPT), "--cycles", "3", "--folder", str(tmp_path), "--executor", executor]
    run = subprocess.run(
        [*command, "--server", server_binary()], capture_output=True, text=True, timeout=5 * START_TIMEOUT_S
    )
    assert run.returncode == 0, run.stdout + run.stderr
    figures = json.loads(run.stdout.splitlines()[-1])
    assert figures["kills"] >= 6
    assert figures["sets"] == figures["hashes"] == 1
    assert not list(tmp_path.iterdir())
