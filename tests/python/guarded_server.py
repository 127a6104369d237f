"""A sparseagg server with TLS, and a token for the coordinator and each client, which can be killed and goes on."""

from __future__ import annotations

import pathlib

from real_server import ServerProcess
from sparseagg._internal.commands.cli import main


class GuardedServer:
    """A server that keeps its rounds, until the end of a ``with`` block.

    Args:
        folder: for all that it writes.
        clients: number of clients; their names are site-0, site-1, ….

    Attributes:
        address, ca: of the server.
        coordinator: a token.
        clients: a token for each.
        nameless: a token of a client without a name.
    """

    def __init__(self, folder: pathlib.Path, clients: int) -> None:
        self._folder, self._tokens, self._starts = folder, folder / "tokens", 0
        self.coordinator, self.nameless = self._token("coordinator"), self._token("client")
        self.clients = [self._token("client", f"site-{client}") for client in range(clients)]
        self.ca = folder / "tls" / "ca.pem"
        self._start("127.0.0.1:0")
        self.address = self._server.address

    def _token(self, *words: str) -> str:
        """Makes a token of a role, and of a client's name, before the server reads them all."""
        path = self._folder / f"{'-'.join(words)}.token"
        flags = [part for flag, word in zip(("--role", "--name"), words) for part in (flag, word)]
        assert main(["keys", "create", str(self._tokens), *flags, "--output", str(path)]) == 0
        return path.read_text().strip()

    def kill(self) -> None:
        """Ends the server as kill -9 does."""
        self._server.kill()

    def restart(self) -> None:
        """Starts it again, at the same address."""
        self._start(self.address)

    def _start(self, address: str) -> None:
        self._starts += 1
        log = self._folder / f"server-{self._starts}.log"
        flags = ("--data-dir", "data", "--tokens-file", "tokens", "--dev-tls", "tls")
        paths = (flag if flag.startswith("--") else str(self._folder / flag) for flag in flags)
        self._server = ServerProcess(log, *paths, address=address)

    def __enter__(self) -> GuardedServer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._server.process.poll() is None:
            self._server.kill()
