"""The demo whose clients are workers."""

from __future__ import annotations

import json
import subprocess
import sys

from real_server import server_binary


def test_demo_pull_agrees_though_worker_processes_are_killed(tmp_path):
    flags = [
        "--server",
        server_binary(),
        "--out",
        str(tmp_path),
        "--quick",
        "--pull",
        "--clients",
        "12",
        "--rounds",
        "2",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "sparseagg", "demo", *flags], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["reference_equal"] is True
    assert summary["kills"] == 2
    assert summary["loss_last"] < summary["loss_first"]
