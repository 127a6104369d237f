"""A short run of cluster_crash_cycles.py; ``make test PARTS=crash`` has the long one."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest
from real_server import REPOSITORY, START_TIMEOUT_S, server_binary

SCRIPT = REPOSITORY / "tests/system/cluster_crash_cycles.py"


@pytest.mark.parametrize("where", ["local", "ray", "nodes of ray"])
def test_killed_cluster_loses_nothing_acknowledged(tmp_path, where):
    if where != "local" and importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: make test-ray")
    options = {
        "local": ["--cycles", "3", "--executor", "local"],
        "ray": ["--cycles", "3", "--executor", "ray"],
        "nodes of ray": ["--cycles", "2", "--executor", "ray", "--nodes", "2"],
    }
    command = [sys.executable, str(SCRIPT), "--folder", str(tmp_path), "--server", server_binary(), *options[where]]
    run = subprocess.run(command, capture_output=True, text=True, timeout=10 * START_TIMEOUT_S)
    assert run.returncode == 0, run.stdout + run.stderr
    figures = json.loads(run.stdout.splitlines()[-1])
    assert figures["kills"] >= (3 if where == "nodes of ray" else 6)
    kinds = {"local": {"server"}, "ray": {"server", "reducer", "server actor"}}.get(
        where, {"server", "reducer", "node"}
    )
    assert kinds <= figures["killed"].keys()
    if where == "local":
        assert figures["fail_points"].keys() == {"range_written"}
    assert figures["sets"] == figures["hashes"] == 1
    assert not list(tmp_path.iterdir())
