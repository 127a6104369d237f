"""A real server for the tests: the binary named by SPARSEAGG_SERVER, else the one in build/dev."""

from __future__ import annotations

import os
import pathlib
import queue
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]

START_TIMEOUT_S = 60


def server_binary() -> str:
    path = os.environ.get("SPARSEAGG_SERVER") or str(REPOSITORY / "build/dev/service/sparseagg-server")
    assert os.access(path, os.X_OK), f"no server at {path}: build it (`make build`) or set SPARSEAGG_SERVER"
    return path


def stop(pid: int) -> None:
    """Stops a child of this process, and returns when it has stopped: until a busy machine runs a certain one of its
    threads, the others go on."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)


class ServerProcess:
    """A server on a free port, with a log on standard error of its own."""

    def __init__(self, log: pathlib.Path, *flags: str, address: str = "127.0.0.1:0") -> None:
        self._log = log.open("w")
        if "--metrics-address" not in flags:  # by default at a port that others may want
            flags = ("--metrics-address", "", *flags)
        if "--http-address" not in flags:
            flags = ("--http-address", "", *flags)
        self.process = subprocess.Popen(
            [server_binary(), "--grpc-address", address, *flags], stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()
        while True:
            line = lines.get(timeout=START_TIMEOUT_S)
            assert line, f"the server ended at once: {log.read_text()}"
            match = re.search(r"\blistening grpc=(\S+)", line)
            if match:
                self.address = match.group(1)
                http = re.search(r"\bhttp=(\S+)", line)
                self.http_address = http.group(1) if http else ""
                metrics = re.search(r"\bmetrics=(\S+)", line)
                self.metrics_address = metrics.group(1) if metrics else ""
                return

    def _read(self, lines: queue.Queue[str]) -> None:
        for line in self.process.stdout:
            lines.put(line)
        lines.put("")

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Asks until it is so; fails if the server leaves before."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not condition():
            assert self.process.poll() is None, "the server has left"
            assert time.monotonic() < deadline, "waited in vain"

    def stop(self) -> int:
        """Stops it in order; returns its status."""
        self.process.terminate()
        return self._ended()

    def kill(self) -> None:
        self.process.kill()
        self._ended()

    def _ended(self) -> int:
        code = self.process.wait(timeout=START_TIMEOUT_S)
        self._log.close()
        return code
