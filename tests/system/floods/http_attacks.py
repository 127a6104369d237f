"""Hostile clients of the HTTP gateway, by name.

python http_attacks.py NAME HOST:PORT
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import pathlib
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator

from hostile import Address, Batches, connected, endless, flood, on_threads, unfinished

HOST = b"Host: localhost\r\n"
JSON = b"Content-Type: application/json\r\n"
BYTES = b"Content-Type: application/octet-stream\r\n"
CHUNKS = b"/v1/rounds/none/chunks?client_id=h&submission_id=s&tensor=w"
MIB = 1 << 20
POLL = b'{"clientId":"h%d","leaseId":"l","labels":["none"],"timeout":"60s"}'


def get(path: bytes, headers: bytes = b"") -> bytes:
    return b"GET " + path + b" HTTP/1.1\r\n" + HOST + headers + b"\r\n"


def post(path: bytes, headers: bytes, size: int) -> bytes:
    """The head of a request with a body."""
    return b"POST " + path + b" HTTP/1.1\r\n" + HOST + headers + b"Content-Length: %d\r\n\r\n" % size


def body(path: bytes, headers: bytes, content: bytes) -> bytes:
    """A whole request with a body."""
    return post(path, headers, len(content)) + content


def poll(number: int) -> bytes:
    return body(b"/v1/tasks:lease", JSON, POLL % number)


WEBSOCKET = get(
    b"/v1/info",
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
)
H2C = get(b"/v1/info", b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n")
OF_HTTP2 = (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)) * 1000
UNFINISHED_HEAD, UNFINISHED_BODY = b"GET / HTTP/1.1\r\nX-Slow: ", post(CHUNKS, BYTES, 4 * MIB) + bytes(1000)

# What an attack sends, made when it runs, on how many connections, and whether it reads answers.
FLOODS: dict[str, tuple[Callable[[], Batches], int, bool]] = {
    # Bodies of 4 MiB, each without its last byte.
    "unfinished_bodies": (lambda: unfinished(post(CHUNKS, BYTES, 4 * MIB), bytes(4 * MIB - 1)), 100, True),
    # Bodies of 4 MiB for a round that is not there.
    "bodies": (lambda: endless(b"", body(CHUNKS, BYTES, bytes(4 * MIB))), 32, True),
    # Bodies that are declared with a TiB, and sent.
    "huge_bodies": (lambda: endless(post(CHUNKS, BYTES, 1 << 40), bytes(1 << 16)), 4, True),
    # Chunked bodies without an end.
    "endless_chunks": (
        lambda: endless(
            b"POST " + CHUNKS + b" HTTP/1.1\r\n" + HOST + BYTES + b"Transfer-Encoding: chunked\r\n\r\n",
            b"1000\r\n" + bytes(0x1000) + b"\r\n",
        ), 4, True,
    ),
    # A header without an end; headers without an end; as many headers as there may be.
    "huge_header": (lambda: endless(b"GET / HTTP/1.1\r\nX-Long: ", b"x"), 4, True),
    "many_headers": (lambda: endless(b"GET / HTTP/1.1\r\n", b"a: b\r\n"), 4, True),
    "full_headers": (lambda: endless(b"", get(b"/v1/info", b"a: b\r\n" * 2700)), 4, True),
    # Requests one after the other; and those for the largest page.
    "pipelined": (lambda: endless(b"", get(b"/v1/info")), 4, True),
    "pipelined_unread": (lambda: endless(b"", get(b"/v1/info")), 100, False),
    "pages_unread": (lambda: endless(b"", get(b"/v1/openapi.json")), 100, False),
    # A body of 64 MiB, compressed.
    "compressed": (
        lambda: lambda: [body(CHUNKS, BYTES + b"Content-Encoding: gzip\r\n", gzip.compress(bytes(64 * MIB)))], 4, True,
    ),
    # JSON of a MiB of brackets.
    "deep_json": (
        lambda: endless(
            b"", body(b"/v1/rounds", JSON, b"[" * MIB) + body(b"/v1/rounds", JSON, b'{"spec":' * (MIB // 8))
        ), 4, True,
    ),
    # JSON of 4 MiB of small objects, each a message of its own.
    "wide_json": (
        lambda: endless(
            b"", body(b"/v1/rounds", JSON, b'{"spec":{"tensors":[' + b"{}," * (4 * MIB // 3) + b"{}]}}")
        ), 16, True,
    ),
    # Requests to speak WebSocket or HTTP/2, and then frames of those.
    "upgrades": (lambda: lambda: [WEBSOCKET, b"\x81\x85" + bytes(9), H2C, OF_HTTP2], 4, True),
}  # fmt: skip


def drip(address: Address, begin: bytes, piece: bytes, connections: int = 200) -> None:
    """Sends a piece on each of many connections now and then; connects again where one was closed."""
    peers: list[socket.socket] = []
    while True:
        for peer in peers[:]:
            try:
                peer.send(piece)
            except OSError:
                peers.remove(peer)
                peer.close()
        with contextlib.suppress(OSError):
            while len(peers) < connections:
                peers.append(connected(address))
                peers[-1].setblocking(False)
                peers[-1].send(begin)
        time.sleep(0.1)


def connects(address: Address) -> None:
    """Connections that are opened and closed, or reset, as fast as possible."""

    def one() -> None:
        for kind in range(100):
            with connected(address) as peer:
                if kind % 2:
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    on_threads(one, 4)


def idle(address: Address) -> None:
    """Connections that do nothing, from eight addresses, each as many as it may have."""
    peers: list[socket.socket] = []
    while True:
        for host in range(2, 10):
            with contextlib.suppress(OSError):
                peers.append(connected(address, f"127.0.0.{host}"))
        if len(peers) > 2000:
            peers.pop(0).close()
            time.sleep(0.01)


def half_closed(address: Address) -> None:
    """Requests, whole and in part, after which the client closes its half, and reads nothing."""
    kept: list[socket.socket] = []
    requests = itertools.cycle([get(b"/v1/openapi.json"), b"GET /v1/info HT", post(CHUNKS, BYTES, MIB) + bytes(1000)])

    def one() -> None:
        kept.append(connected(address))
        kept[-1].sendall(next(requests))
        kept[-1].shutdown(socket.SHUT_WR)
        if len(kept) > 200:
            kept.pop(0).close()

    on_threads(one, 1)


def abandoned_polls(address: Address) -> None:
    """Calls that wait for a task, whose clients leave at once."""

    def one() -> None:
        for _ in range(100):
            with connected(address) as peer:
                peer.sendall(poll(0))

    on_threads(one, 4)


def crowd(address: Address, begin: Callable[[int], bytes], hosts: int = 1) -> None:
    """Keeps 1200 connections open from each of some addresses, or tries to; ``begin``: what the n-th one sends."""

    def one(source: str, numbers: Iterator[int]) -> None:
        peers: list[socket.socket] = []
        while True:
            for peer in peers[:]:
                try:
                    ended = peer.recv(1 << 16) == b""
                except BlockingIOError:
                    ended = False
                except OSError:
                    ended = True
                if ended:
                    peers.remove(peer)
                    peer.close()
            with contextlib.suppress(OSError):
                while len(peers) < 300:
                    peers.append(connected(address, source))
                    peers[-1].setblocking(False)
                    peers[-1].send(begin(next(numbers)))
            time.sleep(0.01)

    threads = [
        threading.Thread(target=one, args=(f"127.0.0.{2 + host}", itertools.count(4 * host + i, 4 * hosts)))
        for host in range(hosts)
        for i in range(4)
    ]
    for thread in threads:
        thread.start()


def unread_results(address: Address) -> None:
    """Requests for pages of a large result, which are not read."""
    size = MIB
    spec = b'{"tensors":[{"name":"w","dtype":"DTYPE_FLOAT32","num_rows":%d}]}' % size

    def call(head: Callable[[int], bytes], body: bytes) -> None:
        with connected(address) as peer:
            peer.sendall(head(len(body)) + body)
            peer.recv(1 << 16)

    keys = b"".join(key.to_bytes(4, "little") for key in range(size // 4))
    chunk = b"/v1/rounds/big/chunks?client_id=h&submission_id=s&last=true&tensor=w&key_encoding=U32&key_bytes=%d"
    call(lambda n: post(b"/v1/rounds", JSON, n), b'{"roundId":"big","spec":' + spec + b"}")
    call(lambda n: post(chunk % len(keys), BYTES, n), keys + bytes(len(keys)))
    call(lambda n: post(b"/v1/rounds/big/submissions", JSON, n), b'{"clientId":"h","submissionId":"s"}')
    call(lambda n: post(b"/v1/rounds/big:close", JSON, n), b"")
    flood(address, endless(b"", get(b"/v1/rounds/big/result?max_page_bytes=%d" % size)), connections=100, reads=False)


OTHERS: dict[str, Callable[[Address], None]] = {
    # Heads that come byte by byte, and bodies of a MiB.
    "slow_headers": lambda address: drip(address, UNFINISHED_HEAD, b"x"),
    "slow_bodies": lambda address: drip(address, post(CHUNKS, BYTES, MIB), b"x"),
    **{attack.__name__: attack for attack in (connects, idle, half_closed, abandoned_polls, unread_results)},
    # On as many connections as an address gets: bodies and heads that never end, and calls that wait for a task.
    "crowded_bodies": lambda address: crowd(address, lambda _: UNFINISHED_BODY),
    "crowded_polls": lambda address: crowd(address, poll),
    "crowded_heads": lambda address: crowd(address, lambda _: UNFINISHED_HEAD),
    # From four addresses, which together may have more than all connections.
    "crowds_of_bodies": lambda address: crowd(address, lambda _: UNFINISHED_BODY, hosts=4),
    "crowds_of_polls": lambda address: crowd(address, poll, hosts=4),
}
ATTACKS = [*FLOODS, *OTHERS]


def command(name: str, address: str) -> list[str]:
    """The command line of an attack."""
    return [sys.executable, str(pathlib.Path(__file__)), name, address]


if __name__ == "__main__":
    host, _, port = sys.argv[2].rpartition(":")
    if sys.argv[1] in OTHERS:
        OTHERS[sys.argv[1]]((host, int(port)))
    else:
        make, connections, reads = FLOODS[sys.argv[1]]
        flood((host, int(port)), make(), connections, reads)
