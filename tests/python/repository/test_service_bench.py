"""The servers of bench/service/service.py, which end with their measurement."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from conftest import REPOSITORY


@pytest.fixture
def fake_server(tmp_path):
    """Writes a program that says what the server says, leaves its id behind, and waits with these signal handlers."""

    def make(first_line: str, on_terminate: str = "SIG_DFL") -> pathlib.Path:
        program = tmp_path / "server"
        lines = [
            f"#!{sys.executable}",
            "import os, pathlib, signal, time",
            f"signal.signal(signal.SIGTERM, signal.{on_terminate})",
            f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))",
            f"print({first_line!r}, flush=True)",
            "time.sleep(60)",
        ]
        program.write_text("\n".join(lines) + "\n", encoding="utf-8")
        program.chmod(0o755)
        return program

    yield make
    assert not is_running(int((tmp_path / "pid").read_text(encoding="utf-8")))


RUN_SMALL_ROUNDS = """
import pathlib, sys
sys.path.insert(0, sys.argv[1])
import service
service.Bench(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), service.QUICK).small_rounds()
"""


def children_of(pid: int) -> list[int]:
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_for(holds):
    deadline = time.monotonic() + 60
    while not (found := holds()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_service_bench_ends_its_server_when_a_measurement_fails(module, fake_server) -> None:
    service = module("service")
    bench = service.Bench(fake_server("listening grpc=127.0.0.1:1"), pathlib.Path("/bin/false"), service.QUICK)
    with pytest.raises(SystemExit, match="/bin/false"):
        bench.small_rounds()


def test_service_bench_kills_a_server_that_does_not_stop(module, fake_server, monkeypatch) -> None:
    service = module("service")
    monkeypatch.setattr(service, "STOP_TIMEOUT_S", 0.2)
    server = service.Server(fake_server("listening grpc=127.0.0.1:1", "SIG_IGN"))
    with pytest.raises(SystemExit, match="status -9"), server:
        assert server.address == "127.0.0.1:1"


def test_service_bench_says_how_a_server_ended_that_its_loadgen_lost(module, fake_server) -> None:
    service = module("service")

    def lose() -> None:
        with service.Server(fake_server("listening grpc=127.0.0.1:1")) as server:
            os.kill(server.pid, signal.SIGSEGV)
            os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
            raise SystemExit("loadgen: Socket closed")

    with pytest.raises(SystemExit, match=r"status -11.*Socket closed"):
        lose()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_service_bench_leaves_nothing_behind_when_it_is_ended(fake_server, number) -> None:
    server = fake_server("listening grpc=127.0.0.1:1")
    loadgen = server.with_name("loadgen")
    loadgen.write_text(f"#!{sys.executable}\nimport os, time\nprint(os.getpid())\ntime.sleep(60)\n", encoding="utf-8")
    loadgen.chmod(0o755)
    bench = subprocess.Popen([sys.executable, "-c", RUN_SMALL_ROUNDS, REPOSITORY / "bench", server, loadgen])
    children = wait_for(
        lambda: len(found := children_of(bench.pid)) == 2 and (server.parent / "pid").exists() and found
    )
    bench.send_signal(number)
    bench.wait(30)
    wait_for(lambda: not any(is_running(child) for child in children))


def test_service_bench_ends_a_server_that_does_not_say_where_it_is(module, fake_server) -> None:
    with pytest.raises(SystemExit, match="did not start"):
        module("service").Server(fake_server("something else"))
