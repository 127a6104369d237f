"""A real SuperLink with SuperNodes on loopback, each a process, and apps that are run on them."""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

BIN = pathlib.Path(sys.executable).parent
HERE = pathlib.Path(__file__).resolve().parent

PYPROJECT = """
[project]
name = "job"
version = "1.0.0"
description = "a job of sparseagg's tests"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "sparseagg"

[tool.flwr.app.components]
serverapp = "job.server:app"
clientapp = "job.client:app"

[tool.flwr.app.config]
"""


def free_port() -> int:
    """A port that was free a moment ago: Flower passes ports on to processes that it starts."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class SuperLink:
    """A SuperLink and SuperNodes, until the end of a ``with`` block.

    Args:
        folder: for logs, apps and Flower's own files.
        nodes: number of SuperNodes.
        through: makes the address that SuperNodes connect to from the SuperLink's, such as that of a proxy.
        environment: more variables of the SuperLink (None) or a SuperNode, by its number, and of their apps.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        nodes: int,
        through: Any = None,
        environment: Callable[[int | None], dict[str, str]] = lambda node: {},
    ) -> None:
        self.folder, self._nodes, self._through, self._environment = folder, nodes, through, environment
        self.port = free_port()
        self.processes: list[subprocess.Popen[bytes]] = []
        self._env = {
            **os.environ,
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "TMPDIR": str(folder),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH")))),
        }

    def __enter__(self) -> SuperLink:
        home = self.folder / "home"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "local"\n[superlink.local]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n',
            encoding="utf-8",
        )
        try:
            own = self._environment(None)
            self._start(own, "superlink", "--port", str(self.port), "--disable-runtime-dependency-installation")
            self._wait_for_port(self.port)
            address = f"127.0.0.1:{self.port}"
            if self._through is not None:
                address = self._through(address)
            for node in range(self._nodes):
                self._start(
                    self._environment(node),
                    "supernode",
                    *("--superlink", address, "--port", str(free_port())),
                    *("--node-config", f"partition-id={node} num-partitions={self._nodes}"),
                )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self.processes):
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        for process in reversed(self.processes):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # its own session, with the app processes that it has started
                process.wait()

    def run(self, server: str, client: str, timeout: float = 240) -> str:
        """Runs an app, given as the source of its two modules, and returns the log."""
        app = self.folder / f"app-{len(list(self.folder.glob('app-*')))}"
        (app / "job").mkdir(parents=True)
        (app / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
        for name, source in {"__init__": "", "server": server, "client": client}.items():
            (app / "job" / f"{name}.py").write_text(source, encoding="utf-8")
        done = subprocess.run(
            [BIN / "flwr", "run", app, "local", "--stream"],
            env=self._env,
            cwd=app,
            timeout=timeout,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise AssertionError(f"{done.stdout}\n{done.stderr}\n{self.logs()}")
        return done.stdout + done.stderr

    def logs(self) -> str:
        """The ends of all logs."""
        return "\n".join(f"== {path.name}\n{path.read_text()[-6000:]}" for path in sorted(self.folder.glob("*.log")))

    def _start(self, environment: dict[str, str], program: str, *arguments: str) -> None:
        with (self.folder / f"{len(self.processes)}-{program}.log").open("wb") as log:
            self.processes.append(
                subprocess.Popen(
                    [BIN / f"flower-{program}", "--insecure", *arguments],
                    env={**self._env, **environment},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def _wait_for_port(self, port: int) -> None:
        end = time.monotonic() + 60
        while True:
            if self.processes[-1].poll() is not None:
                raise AssertionError(self.logs())
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                if time.monotonic() > end:
                    raise AssertionError(self.logs()) from None
                time.sleep(0.05)
