"""A browser, and the page of examples/browser_client, which another server than sparseagg's gives out."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator

import browser
import pytest
from http_calls import LOCAL
from real_server import REPOSITORY, ServerProcess
from served import QuietFiles


@pytest.fixture(scope="module")
def driver() -> Iterator[browser.Driver]:
    running = browser.Driver()
    yield running
    running.close()


@pytest.fixture(scope="session")
def origin() -> Iterator[str]:
    """The origin of a server of the repository's files."""
    files = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(QuietFiles, directory=REPOSITORY))
    threading.Thread(target=files.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{files.server_port}"
    files.shutdown()
    files.server_close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, origin: str) -> Iterator[ServerProcess]:
    """A server with a gateway, which pages of ``origin`` may ask, too."""
    running = ServerProcess(tmp_path_factory.mktemp("gateway") / "log", *LOCAL, "--http-origins", origin)
    yield running
    assert running.stop() == 0
