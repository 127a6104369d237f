"""sparseagg-server as a process of a benchmark, and what ends a benchmark's children with it. Standard library only."""

from __future__ import annotations

import ctypes
import os
import pathlib
import re
import signal
import subprocess
from typing import Any

# One that takes longer to stop in order is killed.
STOP_TIMEOUT_S = 30


BENCH_PID = os.getpid()


def end_with_bench() -> None:
    """Runs in a child before its program: the kernel will end the child when the benchmark ends, however that ends."""
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG of linux/prctl.h
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
    if os.getppid() != BENCH_PID:  # the benchmark ended before the signal was set
        os._exit(1)


class Server:
    """sparseagg-server on a free port, for the time of a `with`; it does not outlive that, however it is left."""

    def __init__(self, binary: pathlib.Path, *flags: str, log_level: str = "error", stderr: Any = None) -> None:
        always = ("--grpc-address", "127.0.0.1:0", "--metrics-address", "", "--http-address", "")
        always += ("--log-level", log_level)
        self._process = subprocess.Popen(
            [str(binary), *always, *flags], stdout=subprocess.PIPE, stderr=stderr, text=True, preexec_fn=end_with_bench
        )
        assert self._process.stdout is not None
        match = re.search(r"listening grpc=(\S+)", self._process.stdout.readline())
        if match is None:
            self._stop()
            raise SystemExit("service.py: the server did not start")
        self.address = match.group(1)
        self.pid = self._process.pid

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        has_ended = self._process.poll() is not None
        status = self._stop()
        if has_ended or (kind is None and status != 0):
            reason = f": {error}" if error is not None else ""
            raise SystemExit(f"service.py: the server ended with status {status}{reason}")

    def memory_bytes(self) -> int:
        """Resident now."""
        status = pathlib.Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
        return int(found.group(1)) * 1024 if found else 0

    def _stop(self) -> int:
        assert self._process.stdout is not None
        self._process.terminate()
        try:
            return self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            self._process.stdout.close()
