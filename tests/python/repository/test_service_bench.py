"""bench/service/service.py and the programs that it starts."""

from __future__ import annotations

import pathlib
import signal
import subprocess
import sys
import time

import pytest
from real_server import BENCH

RUN_SMALL_ROUNDS = """
import pathlib, sys
sys.path.insert(0, sys.argv[1])
import service
service.Bench(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), service.QUICK).small_rounds()
"""


def proc(pid: str | int, name: str) -> str:
    """A file of a process in /proc; empty for a process that has ended."""
    try:
        return pathlib.Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def wait_until(holds) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_service_bench_leaves_nothing_behind_when_it_is_ended(tmp_path, number) -> None:
    programs = tmp_path / "server", tmp_path / "loadgen"
    for program, says in zip(programs, ("echo listening grpc=127.0.0.1:1", "")):
        program.write_text(f"#!/bin/sh\n{says}\nexec sleep 600\n", encoding="utf-8")
        program.chmod(0o755)
    bench = subprocess.Popen([sys.executable, "-c", RUN_SMALL_ROUNDS, BENCH / "service", *programs])

    def children() -> list[str]:
        return proc(bench.pid, f"task/{bench.pid}/children").split()

    wait_until(lambda: len(children()) == 2)
    started = children()
    bench.send_signal(number)
    bench.wait(30)
    wait_until(lambda: not any(proc(child, "cmdline") for child in started))
