"""Headless Chromium, driven through its WebDriver over HTTP: no package is needed besides Debian's own."""

from __future__ import annotations

import base64
import http.client
import json
import pathlib
import queue
import re
import shutil
import subprocess
import threading
from typing import IO, Any

TIMEOUT_S = 60
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"tab": "\ue004", "enter": "\ue007", "space": "\ue00d"}


def programs() -> tuple[str, str] | None:
    """Returns the paths of the driver and the browser, or None."""
    driver = shutil.which("chromedriver")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    return (driver, browser) if driver and browser else None


class Driver:
    """A running chromedriver. ``open`` makes windows of browsers of their own."""

    def __init__(self) -> None:
        driver, self._browser = programs() or ("", "")
        self._pages: list[Page] = []
        # The driver takes a free port of IPv4, then binds the same one of IPv6. It ends if another process has that.
        for _ in range(5):
            self._process = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, text=True)
            ports: queue.Queue[int | None] = queue.Queue()
            threading.Thread(target=self._read, args=(self._process.stdout, ports), daemon=True).start()
            port = ports.get(timeout=TIMEOUT_S)
            if port is not None:
                self._port = port
                return
            self._process.wait(TIMEOUT_S)
        raise RuntimeError(f"chromedriver ends at its start, with status {self._process.returncode}")

    @staticmethod
    def _read(lines: IO[str], ports: queue.Queue[int | None]) -> None:
        for line in lines:
            if found := re.search(r"started successfully on port (\d+)", line):
                ports.put(int(found.group(1)))
        ports.put(None)

    def open(self, url: str, *, width: int = 1100, height: int = 900, dark: bool = False) -> Page:
        # A container's root has no namespaces of its own, and little shared memory. The driver talks to the browser
        # through a pipe: for a port it asks the system for "localhost", which needs /etc/hosts.
        flags = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--remote-debugging-pipe"]
        flags.append("--hide-scrollbars")
        if dark:
            flags.append("--force-dark-mode")
        options = {"binary": self._browser, "args": flags}
        capabilities = {
            "alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}},
        }
        session = self.call("POST", "/session", {"capabilities": capabilities})["sessionId"]
        page = Page(self, f"/session/{session}")
        self._pages.append(page)
        page.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        page.go(url)
        return page

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            value = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        assert not (isinstance(value, dict) and "error" in value), value
        return value

    def close(self) -> None:
        for page in self._pages:
            page.close()
        self._process.terminate()
        self._process.wait(TIMEOUT_S)


class Page:
    """A window of a browser of its own."""

    def __init__(self, driver: Driver, path: str) -> None:
        self._driver = driver
        self._path = path
        self._is_closed = False

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        return self._driver.call(method, self._path + path, body)

    def go(self, url: str) -> None:
        self._call("POST", "/url", {"url": url})
        # On a busy machine, chromedriver may take the end of the load of the page before for that of this one.
        self.wait("document.readyState === 'complete'")

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def evaluate(self, script: str, *arguments: Any) -> Any:
        """Runs the body of an async function; returns what it returns."""
        wrapped = (
            "const done = arguments[arguments.length - 1];"
            f"(async (...args) => {{ {script} }})(...Array.from(arguments).slice(0, -1))"
            ".then((value) => done({value}), (error) => done({error: `${error.stack}`}))"
        )
        self._call("POST", "/timeouts", {"script": TIMEOUT_S * 1000})
        outcome = self._call("POST", "/execute/async", {"script": wrapped, "args": list(arguments)})
        assert "error" not in outcome, outcome["error"]
        return outcome.get("value")

    def wait(self, condition: str) -> None:
        """Waits until an expression is true; asks the page once an animation frame."""
        self.evaluate(f"while (!({condition})) await new Promise((next) => setTimeout(next, 20)); return true;")

    def fill(self, selector: str, text: str) -> None:
        element = self._call("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]
        self._call("POST", f"/element/{element}/clear", {})
        self._call("POST", f"/element/{element}/value", {"text": text})

    def press(self, key: str) -> None:
        """Presses a key on whatever has the focus."""
        self._strike([KEYS[key]])

    def type(self, text: str) -> None:
        """Types a text into whatever has the focus."""
        self._strike(list(text))

    def _strike(self, keys: list[str]) -> None:
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def errors(self) -> list[str]:
        """Returns the errors of the console since the last call."""
        return [e["message"] for e in self._call("POST", "/se/log", {"type": "browser"}) if e["level"] == "SEVERE"]

    def screenshot(self, path: pathlib.Path) -> None:
        path.write_bytes(base64.b64decode(self._call("GET", "/screenshot")))

    def close(self) -> None:
        """Ends the browser. Another call has no effect."""
        if not self._is_closed:
            self._is_closed = True
            self._call("DELETE", "")
