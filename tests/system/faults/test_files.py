"""A server without file descriptors, without its port, and without memory for its threads."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import urllib.request

import numpy as np
import pytest
import sparseagg as sa
from real_server import START_TIMEOUT_S, server_binary
from wrapped_server import wrap

SPEC = sa.RoundSpec([sa.TensorSpec("v", dtype="float32", num_rows=100_000)])
CONNECTIONS = 1000


@pytest.fixture
def server(monkeypatch, tmp_path):
    start = wrap(monkeypatch, tmp_path, "ulimit -n 256;")
    started = start(
        tmp_path / "log",
        *("--data-dir", str(tmp_path / "data"), "--metrics-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0"),
    )
    yield started
    started.kill()


def connect(address: str, stack: contextlib.ExitStack) -> int:
    """Connects as often as the address takes it; returns how often that was."""
    host, _, port = address.rpartition(":")
    made = 0
    for _ in range(CONNECTIONS):
        connection = stack.enter_context(socket.socket())
        connection.setblocking(False)
        made += connection.connect_ex((host, int(port))) in (0, 115)  # EINPROGRESS
    return made


def normal_round(server, name: str) -> None:
    with sa.Client(server.address, timeout=START_TIMEOUT_S) as client:
        rnd = client.create_round(SPEC, round_id=name)
        for who in range(20):
            rnd.submit(f"client-{who}", {"v": (np.arange(50_000), np.ones(50_000, np.float32))}, resumable=who % 2 == 0)
        assert rnd.finish()["v"].values.tolist() == [20.0] * 50_000
        rnd.delete()


def metrics(server) -> str:
    with urllib.request.urlopen(f"http://{server.metrics_address}/metrics", timeout=START_TIMEOUT_S) as page:
        return page.read().decode()


@pytest.mark.parametrize("port", ["address", "http_address", "metrics_address"])
def test_flood_of_connections_leaves_room_for_a_round(server, port) -> None:
    normal_round(server, "before")
    with contextlib.ExitStack() as stack:
        assert connect(getattr(server, port), stack) == CONNECTIONS
        normal_round(server, "during")
        assert "sparseagg_connections" in metrics(server)
        descriptors = len(os.listdir(f"/proc/{server.process.pid}/fd"))
        assert descriptors < 256, "the server has used up its files"
    normal_round(server, "after")
    assert "sparseagg_connections" in metrics(server)
    assert server.stop() == 0


def test_taken_port_of_the_metrics_is_named(tmp_path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [server_binary(), "--grpc-address", "127.0.0.1:0", "--http-address", "none"]
        done = subprocess.run(
            [*command, "--metrics-address", address], capture_output=True, text=True, timeout=START_TIMEOUT_S
        )
    assert done.returncode != 0
    assert f"--metrics-address: cannot listen on {address}: " in done.stderr
    assert "Address already in use" in done.stderr


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
