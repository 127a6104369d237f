"""A sparseagg server with TLS, and a token for the coordinator and each client, which can be killed and goes on."""

from __future__ import annotations

import pathlib

from real_server import ServerProcess
from sparseagg._internal.commands.cli import main


def make_token(table: pathlib.Path, role: str, *flags: str) -> str:
    """Adds a token of a role to a table of them, which is made where there is none; returns it."""
    output = table.with_name(f"token-{len(list(table.parent.glob('token-*')))}")
    assert main(["keys", "create", str(table), "--role", role, *flags, "--output", str(output)]) == 0
    assert output.stat().st_mode & 0o777 == 0o600
    return output.read_text().strip()


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
        self.coordinator, self.nameless = (make_token(self._tokens, role) for role in ("coordinator", "client"))
        self.clients = [make_token(self._tokens, "client", "--name", f"site-{client}") for client in range(clients)]
        self.ca = folder / "tls" / "ca.pem"
        self._start("127.0.0.1:0")
        self.address = self._server.address

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
