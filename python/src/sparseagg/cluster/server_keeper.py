"""Servers of a cluster that belong to this process: each is started, and started again when it ends."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import threading
import time
from collections.abc import Sequence

from sparseagg._internal.base.state_files import replaced
from sparseagg._internal.local.server import Server
from sparseagg._internal.spec.bounds import HomeServer
from sparseagg.cluster.plan import on_all
from sparseagg.errors import DeadlineExceededError, FailedPreconditionError, SparseaggError, UnavailableError

_PORTS = "ports.json"  # of a server's directory: where it listened last
_READY_S = 60.0
_FIRST_PAUSE_S = 0.1
_MOST_PAUSE_S = 5.0
_PORT_STARTS = 5  # until a keeper gives up the ports of before: three seconds


class ServerKeeper:
    """Keeps one server running, at one address: starts it again on its directory when it has ended.

    Life cycle: ``home`` waits until the server listens; ``close`` stops it. Thread-safe.

    Args:
        directory: of the server, as ``data_dir`` of ``Server``; None: rounds live in memory, and end with the process.
            A keeper that is made there later has the same ports, as long as nobody else has taken them: rounds name
            the addresses of their servers.
    """

    def __init__(self, directory: str | os.PathLike[str] | None, host: str, options: Sequence[str]) -> None:
        self._directory = None if directory is None else pathlib.Path(directory)
        self._host = host
        self._options = list(options)
        self._ports: tuple[int, int] | None = self._ports_of_before()  # of gRPC and HTTP
        self._ready = threading.Event()
        self._closing = threading.Event()
        self._home: HomeServer | None = None
        self._server: Server | None = None
        self._failure: Exception | None = None
        self.num_restarts = 0
        self._thread = threading.Thread(target=self._keep, name="sparseagg-server-keeper", daemon=True)
        self._thread.start()

    def home(self, timeout_s: float = _READY_S) -> HomeServer:
        """Returns the server's addresses, as soon as it listens.

        Raises:
            SparseaggError, OSError: why it does not start, if that is the case when the time is over.
        """
        if not self._ready.wait(timeout_s) or self._home is None:
            raise self._failure or DeadlineExceededError(
                f"a server of the cluster does not listen after {timeout_s:g} s"
            )
        return self._home

    @property
    def pid(self) -> int | None:
        """The process id of the server; None while it is not running."""
        server = self._server
        return None if server is None else server.pid

    def close(self) -> None:
        """Stops the server; its rounds stay in the directory, if there is one."""
        self._closing.set()
        self._thread.join()

    def _keep(self) -> None:
        pause = _FIRST_PAUSE_S
        num_ended = 0
        while not self._closing.is_set():
            try:
                self._server = self._started()
            except (SparseaggError, OSError) as error:
                self._failure = error
                # A server that ends at once may not get its ports. Other errors say nothing of them, such as that the
                # server of before, whose clients know them, has not ended yet.
                num_ended += isinstance(error, UnavailableError)
                if self._home is None and num_ended == _PORT_STARTS:
                    self._ports = None
                self._closing.wait(pause)
                pause = min(2 * pause, _MOST_PAUSE_S)
                continue
            pause = _FIRST_PAUSE_S
            self._ready.set()
            while not self._closing.is_set() and not self._server.wait(0.2):
                pass
            server, self._server = self._server, None
            with contextlib.suppress(SparseaggError):  # it has ended before
                server.stop()
            if not self._closing.is_set():
                self.num_restarts += 1

    def _started(self) -> Server:
        if self._directory is not None and not self._directory.parent.is_dir():  # of a node that does not mount it
            raise FailedPreconditionError(
                f"{self._directory.parent} is not there: a server starts where its data directory can be alone"
            )
        port, http_port = self._ports or (0, 0)
        options = list(self._options)
        if not any(option.split("=")[0] == "--http-address" for option in options):
            host = f"[{self._host}]" if ":" in self._host else self._host
            options += ["--http-address", f"{host}:{http_port}"]
        server = Server(self._directory, host=self._host, port=port, options=options).start()
        http = server.http_address
        home = HomeServer(server.address, None if http is None else f"{self._scheme()}://{http}")
        self._ports = (_port_of(server.address), 0 if http is None else _port_of(http))
        self._home = self._home or home
        if self._directory is not None:
            with replaced(self._directory / _PORTS) as file:
                file.write(json.dumps(self._ports).encode())
        return server

    def _scheme(self) -> str:
        return "https" if any(option.startswith("--tls-certificate") for option in self._options) else "http"

    def _ports_of_before(self) -> tuple[int, int] | None:
        if self._directory is None:
            return None
        try:
            port, http_port = json.loads((self._directory / _PORTS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return int(port), int(http_port)


class LocalServers:
    """Servers on this machine, as processes of this one."""

    def __init__(self, number: int, data_dir: str | os.PathLike[str] | None, options: Sequence[str]) -> None:
        if data_dir is not None:
            pathlib.Path(data_dir).mkdir(parents=True, exist_ok=True)
        self.keepers = [ServerKeeper(directory_of(data_dir, index), "127.0.0.1", options) for index in range(number)]
        try:
            until = time.monotonic() + _READY_S  # for all
            self.homes = [keeper.home(max(0.1, until - time.monotonic())) for keeper in self.keepers]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stops the servers, all at once."""
        on_all(self.keepers, ServerKeeper.close)


def directory_of(data_dir: str | os.PathLike[str] | None, index: int) -> pathlib.Path | None:
    """Returns the directory of a server; None without one for the cluster."""
    return None if data_dir is None else pathlib.Path(data_dir) / f"server-{index}"


def _port_of(address: str) -> int:
    return int(address.rsplit(":", 1)[1])
