"""What hostile clients of both listeners share: connections from 127.0.0.2, on threads, without end.

An attack sends what it has on all its connections as fast as the server takes it, and connects again when it is cut
off. It ends when its process does.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator

Address = tuple[str, int]
Batches = Callable[[], Iterable[bytes]]

ATTACKER = "127.0.0.2"
FOR_EVER = 1e6

# TLS of all connections, where an attack is told of an authority.
tls: ssl.SSLContext | None = None


def connected(address: Address, source: str = ATTACKER) -> socket.socket:
    peer = socket.create_connection(address, timeout=5, source_address=(source, 0))
    return peer if tls is None else tls.wrap_socket(peer, server_hostname="127.0.0.1")


def drain(peer: socket.socket) -> None:
    """Takes and drops all that the server sends, until it closes."""
    with contextlib.suppress(OSError):
        while peer.recv(1 << 16):
            pass


def on_threads(one: Callable[[], None], number: int) -> None:
    """Runs the function again and again on each of some threads."""

    def forever() -> None:
        while True:
            with contextlib.suppress(OSError):
                one()
            time.sleep(0.01)

    for _ in range(number - 1):
        threading.Thread(target=forever, daemon=True).start()
    forever()


def flood(
    address: Address,
    batches: Batches,
    connections: int = 4,
    reads: bool = True,
    preface: bytes = b"",
    pause: float = 0.0,
) -> None:
    """Sends the batches on each of the connections, again and again, and pauses before it closes one.

    With TLS nothing is read: a socket of Python's ssl serves one thread.
    """

    def one() -> None:
        with connected(address) as peer:
            peer.sendall(preface)
            if reads and tls is None:
                threading.Thread(target=drain, args=(peer,), daemon=True).start()
            for batch in batches():
                peer.sendall(batch)
            time.sleep(pause)

    on_threads(one, connections)


def endless(begin: bytes, piece: bytes) -> Batches:
    def batches() -> Iterator[bytes]:
        yield begin
        yield from itertools.repeat(piece * max(1, (1 << 16) // len(piece)))

    return batches


def unfinished(*batches: bytes) -> Batches:
    """Batches behind which nothing comes, and the connection stays open."""

    def all_of_them() -> Iterator[bytes]:
        yield from batches
        time.sleep(FOR_EVER)

    return all_of_them
