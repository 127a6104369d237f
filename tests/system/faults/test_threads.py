"""A server for whose threads there is no memory: the start ends with the reason."""

from __future__ import annotations

import subprocess

import pytest
from real_server import server_binary

LOCAL = "127.0.0.1:0"


@pytest.mark.parametrize("durability", ["memory", "sync"])
def test_too_many_threads_end_the_start_with_a_text(durability: str, tmp_path) -> None:
    # Enough for the program, but not for the stacks of so many threads. By a program, not by a preexec_fn: this process
    # uses gRPC, whose handlers of fork() may abort the child before it becomes the server.
    limit = ["prlimit", f"--as={1200 << 20}"]
    flags = ["--threads", "1000", "--memory-limit", "256MiB", "--durability", durability]
    if durability != "memory":
        flags += ["--data-dir", str(tmp_path / "data")]
    ended = subprocess.run(
        [*limit, server_binary(), "--grpc-address", LOCAL, "--http-address", LOCAL, "--metrics-address", LOCAL, *flags],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    assert "of 1000 worker threads (--threads)" in ended.stderr
