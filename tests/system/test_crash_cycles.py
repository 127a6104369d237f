"""A short run of crash_cycles.py; ``make test PARTS=crash`` has the long one."""

from __future__ import annotations

import json
import subprocess
import sys

from real_server import REPOSITORY, START_TIMEOUT_S, server_binary

SCRIPT = REPOSITORY / "tests/system/crash_cycles.py"
CYCLES = 24


def test_killed_server_loses_nothing_acknowledged(tmp_path):
    command = [sys.executable, str(SCRIPT), "--cycles", str(CYCLES), "--folder", str(tmp_path)]
    run = subprocess.run(
        [*command, "--server", server_binary()], capture_output=True, text=True, timeout=3 * START_TIMEOUT_S
    )
    assert run.returncode == 0, run.stdout + run.stderr
    figures = json.loads(run.stdout.splitlines()[-1])
    assert figures["cycles"] == CYCLES
    assert figures["kills"] >= CYCLES // 4
    assert figures["sets"] == figures["hashes"] == 1
    assert figures["tasks_completed"] >= 15 * (CYCLES // 3)
    assert figures["versions"] >= CYCLES // 3
    assert not list(tmp_path.iterdir())


# ---- a small run of lease_load.py ----


def test_every_task_is_completed_once_though_a_third_of_the_workers_abandon_theirs():
    flags = ["--workers", "90", "--tasks", "150", "--lease", "1", "--open-tasks", "1000", "--slack", "60"]
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "tests/system/lease_load.py"), "--server", server_binary(), *flags],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["leases"] >= 180
    assert figures["abandoned"] == 30
