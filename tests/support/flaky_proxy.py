"""A network that breaks."""

from __future__ import annotations

import contextlib
import socket
import threading
import time


class FlakyProxy:
    """Forwards TCP to a server; a connection breaks when it has carried its share of the client's bytes.

    `budgets` has that share for the first connections; those after them are left alone. With `pause_s`, a connection
    then stalls for so long, and goes on. With `of_answers`, it is a share of the server's bytes.
    """

    def __init__(self, address: str, budgets: list[int], pause_s: float = 0.0, of_answers: bool = False) -> None:
        host, _, port = address.rpartition(":")
        self._server = (host, int(port))
        self._budgets = list(budgets)
        self._pause_s = pause_s
        self._of_answers = of_answers
        self.broken = 0
        self.paused = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._server)
                self._sockets += [near, far]
                budget = self._budgets.pop(0) if self._budgets else None
                there, back = (None, budget) if self._of_answers else (budget, None)
                threading.Thread(target=self._forward, args=(near, far, there), daemon=True).start()
                threading.Thread(target=self._forward, args=(far, near, back), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, budget: int | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(16384):
                target.sendall(data if budget is None else data[:budget])
                if budget is not None and len(data) >= budget:
                    if not self._pause_s:
                        self.broken += 1
                        break
                    self.paused += 1
                    time.sleep(self._pause_s)
                    target.sendall(data[budget:])
                    budget = None
                elif budget is not None:
                    budget -= len(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        for end in self._sockets:
            end.close()
