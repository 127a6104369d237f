"""The tutorial of clients in a browser, done in headless Chromium."""

from __future__ import annotations

import functools
import http.server
import subprocess
import sys
import threading

import browser
import pytest
from http_calls import LOCAL
from real_server import REPOSITORY, ServerProcess
from served import QuietFiles

sys.path.append(str(REPOSITORY / "scripts"))
import run_page

if browser.programs() is None:
    pytest.skip("no chromium and chromium-driver here (scripts/deps.sh browser installs them)", allow_module_level=True)


def test_page_of_the_tutorial_takes_part(driver: browser.Driver, tmp_path) -> None:
    """As its reader does it, at ports that are free."""
    text = (REPOSITORY / "docs/tutorials/browser.md").read_text(encoding="utf-8")
    folder = tmp_path / "folder"
    folder.mkdir()
    files = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(QuietFiles, directory=folder))
    threading.Thread(target=files.serve_forever, daemon=True).start()
    origin = f"http://127.0.0.1:{files.server_port}"
    server = ServerProcess(tmp_path / "log", *LOCAL, "--http-origins", origin)
    for old, new in (("127.0.0.1:8003", server.http_address), ("127.0.0.1:8001", server.address)):
        assert old in text
        text = text.replace(old, new)
    try:
        said = ""
        for language, title, content in run_page.blocks_of(text):
            if language in ("html", "python"):
                (folder / title).write_text(content, encoding="utf-8")
            elif title == "browser":
                page = driver.open(f"{origin}/index.html")
                for button in ("a", "a", "b", "send"):
                    page.evaluate("document.getElementById(args[0]).click()", button)
                page.wait(f"document.getElementById('state').textContent === {content.strip()!r}")
            elif language == "text":
                assert said == content
            elif not title:
                assert content.startswith("python ")
                command = [sys.executable, *content.split()[1:]]
                said = subprocess.run(command, check=True, cwd=folder, capture_output=True, text=True).stdout
    finally:
        files.shutdown()
        files.server_close()
        assert server.stop() == 0
