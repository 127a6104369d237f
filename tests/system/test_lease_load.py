"""A small run of lease_load.py."""

from __future__ import annotations

import json
import subprocess
import sys

from real_server import REPOSITORY, server_binary


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
