"""A real server for the tests: the binary named by SPARSEAGG_SERVER, else the one in build/dev."""

from __future__ import annotations

import os
import pathlib
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import ModuleType

import pytest
import sparseagg as sa
from flaky_proxy import FlakyProxy

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
BENCH = REPOSITORY / "bench"
sys.path[:0] = [str(REPOSITORY / "tests" / "data"), str(REPOSITORY / "tests" / "support")]

START_TIMEOUT_S = 60


def server_binary() -> str:
    path = os.environ.get("SPARSEAGG_SERVER") or str(REPOSITORY / "build/dev/service/sparseagg-server")
    assert os.access(path, os.X_OK), f"no server at {path}: build it (`make build`) or set SPARSEAGG_SERVER"
    return path


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


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    running = ServerProcess(tmp_path_factory.mktemp("server") / "log")
    yield running
    assert running.stop() == 0


@pytest.fixture
def start_server(tmp_path: pathlib.Path):
    """Starts more servers, with flags; those left are stopped in the end."""
    running: list[ServerProcess] = []

    def start(*flags: str, address: str = "127.0.0.1:0") -> ServerProcess:
        running.append(ServerProcess(tmp_path / f"server-{len(running)}.log", *flags, address=address))
        return running[-1]

    yield start
    for process in running:
        if process.process.poll() is None:
            process.kill()


@pytest.fixture(scope="session")
def client(server: ServerProcess) -> Iterator[sa.Client]:
    with sa.Client(server.address) as connected:
        yield connected


@pytest.fixture
def flaky(server):
    proxies: list[FlakyProxy] = []

    def make(*budgets: int, pause_s: float = 0.0, of_answers: bool = False) -> FlakyProxy:
        proxies.append(FlakyProxy(server.address, list(budgets), pause_s, of_answers))
        return proxies[-1]

    yield make
    for proxy in proxies:
        proxy.close()


@pytest.fixture(scope="session")
def self_signed(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, pathlib.Path]:
    """A key and a certificate for localhost."""
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    subprocess.run([*command.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return key, certificate


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch):
    """Imports a module of the benchmarks, whose names are too plain to leave behind."""
    for folder in ("gpu", "peers", "service"):
        monkeypatch.syspath_prepend(str(BENCH / folder))
    before = set(sys.modules)

    def load(name: str) -> ModuleType:
        return __import__(name)

    yield load
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(BENCH) in str(sys.modules[name].__file__):
            del sys.modules[name]
