"""Fixtures of tests/python and tests/system: real servers and clients of them."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
import sparseagg as sa

TESTS = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS / name) for name in ("data", "python", "support")]

from every_client import settled  # noqa: E402
from flaky_proxy import FlakyProxy  # noqa: E402
from real_server import ServerProcess  # noqa: E402


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Skips what needs the engine where the tests are told that there is none."""
    outcome = yield
    wants_engine = call.excinfo is not None and call.excinfo.errisinstance(sa.errors.EngineMissingError)
    if wants_engine and "SPARSEAGG_TESTS_WITHOUT_ENGINE" in os.environ:
        report = outcome.get_result()
        report.outcome, report.longrepr = "skipped", (str(item.path), 0, "needs the engine")


@pytest.fixture(scope="session", autouse=True)
def signals() -> None:
    """Lets signals have their effect in the children of the tests where this process ignores them, as under nohup.

    A handler that does nothing is as good here; but other than an ignored signal, it ends with the start of a program.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


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


@pytest.fixture(scope="module", params=[sa.Client, sa.aio.Client], ids=["blocking", "asyncio"])
def connect(request):
    """Makes a client of either shell; the fixture closes them."""
    with contextlib.ExitStack() as clients:
        yield lambda *arguments, **options: clients.enter_context(settled(request.param, *arguments, **options))


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
    """A key and a certificate for localhost and 127.0.0.1."""
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    command += " -addext subjectAltName=DNS:localhost,IP:127.0.0.1"  # not every machine has an address of localhost
    subprocess.run([*command.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return key, certificate
