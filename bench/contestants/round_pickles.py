"""What people write first: updates pickled over a socket to a process that adds them up with NumPy at the end."""

from __future__ import annotations

import pickle
import socket
import struct
import subprocess
import sys
from typing import Any

from rounds import Stages, Sums, Updates, contestant, numpy_sums

from contestants import Contestant


def contestants(updates: Updates, server: str | None) -> list[Contestant]:
    del server  # it has its own
    return [contestant("NumPy, pickles", updates, updates.expected(), Pickles(updates))]


class Pickles:
    """Rounds with such a process."""

    is_exact = False  # adds in float32

    def __init__(self, updates: Updates) -> None:
        self._updates = updates
        self._process = subprocess.Popen(
            [sys.executable, "-m", "contestants.round_pickles"], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.server_pids = [self._process.pid]
        self._socket = socket.create_connection(("127.0.0.1", int(self._process.stdout.readline())))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def round(self, stages: Stages) -> Sums:
        stages.end("create")
        for _, update in self._updates:
            send(self._socket, update)
            receive(self._socket)  # the acknowledgement
        stages.end("submit")
        send(self._socket, None)
        receive(self._socket)
        stages.end("merge")
        send(self._socket, None)
        keys, values = receive(self._socket)
        stages.end("read")
        return keys, values

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


def send(peer: socket.socket, thing: Any) -> None:
    """Sends a pickle, after its length."""
    data = pickle.dumps(thing, pickle.HIGHEST_PROTOCOL)
    peer.sendall(struct.pack("<Q", len(data)))
    peer.sendall(data)


def receive(peer: socket.socket) -> Any:
    """Returns the next pickle; ``EOFError`` if the other side has closed."""

    def read(size: int) -> bytearray:
        data = bytearray(size)
        view, at = memoryview(data), 0
        while at < size:
            count = peer.recv_into(view[at:])
            if count == 0:
                raise EOFError
            at += count
        return data

    return pickle.loads(read(struct.unpack("<Q", read(8))[0]))


def serve() -> None:
    """The other side, until this one closes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        peer, _ = listener.accept()
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while True:
        updates: list[Any] = []
        try:
            while (update := receive(peer)) is not None:
                updates.append(update)
                send(peer, True)
        except EOFError:
            return
        sums = numpy_sums(updates)
        send(peer, True)
        receive(peer)
        send(peer, sums)


if __name__ == "__main__":
    serve()
