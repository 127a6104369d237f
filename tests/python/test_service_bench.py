"""The servers of bench/service.py, which end with their measurement."""

from __future__ import annotations

import os
import pathlib
import sys

import pytest


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


def test_service_bench_ends_a_server_that_does_not_say_where_it_is(module, fake_server) -> None:
    with pytest.raises(SystemExit, match="did not start"):
        module("service").Server(fake_server("something else"))
