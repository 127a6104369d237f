"""The end of a server's life: readiness and exit status, whatever its peers say or do not say."""

from __future__ import annotations

import contextlib
import http.client
import queue
import signal
import socket
import threading

import grpc
import numpy as np
import pytest
import sparseagg as sa
from real_server import START_TIMEOUT_S, ServerProcess
from sparseagg._internal.client.channels import make_stub
from sparseagg.v1 import aggregation_pb2 as pb

SPEC = sa.RoundSpec([sa.TensorSpec("v", dtype="float32", num_rows=10)])
METRICS = ("--metrics-address", "127.0.0.1:0")


def status(server, path: str) -> int:
    connection = http.client.HTTPConnection(server.metrics_address, timeout=START_TIMEOUT_S)
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


class OpenUpload:
    """A stream with one chunk of two: a call that is under way until somebody ends it."""

    def __init__(self, server, channel: grpc.Channel, round_name: str) -> None:
        stub = make_stub(channel)
        self._chunks: queue.Queue[pb.UpdateChunk | None] = queue.Queue()
        self.call = stub.SubmitUpdate.future(iter(self._chunks.get, None))
        part = pb.TensorSlice(
            tensor="v",
            num_keys=1,
            key_encoding=pb.KEY_ENCODING_U32,
            keys=np.array([1], "<u4").tobytes(),
            value_encoding=pb.VALUE_ENCODING_FLOAT32,
            values=np.array([1], "<f4").tobytes(),
        )
        self._chunks.put(pb.UpdateChunk(round=round_name, client_id="a", submission_id="a-1", slices=[part]))
        server.wait_until(lambda: stub.GetRound(pb.GetRoundRequest(round=round_name)).num_uploads == 1)

    def abandon(self) -> None:
        self._chunks.put(None)


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_ends_at_once_what_the_first_one_lets_finish(start_server, second) -> None:
    server = start_server(*METRICS, "--shutdown-deadline", "1h")
    with sa.Client(server.address) as client, grpc.insecure_channel(server.address) as channel:
        upload = OpenUpload(server, channel, client.create_round(SPEC).name)
        assert status(server, "/readyz") == 200
        server.process.send_signal(signal.SIGTERM)
        server.wait_until(lambda: status(server, "/readyz") == 503)
        assert status(server, "/healthz") == 200
        assert not upload.call.done()
        assert server.process.poll() is None
        server.process.send_signal(second)
        assert server.process.wait(timeout=START_TIMEOUT_S) == 128 + second
        assert upload.call.code() == grpc.StatusCode.UNAVAILABLE
        upload.abandon()


def test_drain_delay_serves_on_but_is_not_ready(start_server) -> None:
    server = start_server(*METRICS, "--drain-delay", "1h")
    with sa.Client(server.address) as client, grpc.insecure_channel(server.address) as channel:
        health = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert health(b"") == b"\x08\x01"  # HealthCheckResponse{status = SERVING}
        server.process.send_signal(signal.SIGTERM)
        server.wait_until(lambda: status(server, "/readyz") == 503)
        server.wait_until(lambda: health(b"") == b"\x08\x02")  # NOT_SERVING
        client.create_round(SPEC).finish()
        assert status(server, "/metrics") == 200
    assert server.process.poll() is None


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
HALF_HEAD = b"GET /v1/info HTTP/1.1\r\nHost: loc"
HALF_BODY = (
    b"POST /v1/rounds/none/chunks?client_id=h&submission_id=s&tensor=w HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n"
)
WHOLE = b"GET /v1/info HTTP/1.1\r\nHost: localhost\r\n\r\n"

# Where the peer connects, and what it sends.
PEERS = {
    "silent": ("grpc", b""),
    "half a preface": ("grpc", PREFACE[:12]),
    "a preface": ("grpc", PREFACE),
    "idle HTTP/2": ("grpc", PREFACE + SETTINGS),
    "silent, HTTP": ("http", b""),
    "half a head": ("http", HALF_HEAD),
    "half a head after a request": ("http", WHOLE + HALF_HEAD),
    "half a small body": ("http", HALF_BODY % 1000 + bytes(500)),
    "half a body": ("http", HALF_BODY % 1_000_000 + bytes(1000)),
    "responses that nobody reads": ("http", WHOLE.replace(b"/v1/info", b"/v1/openapi.json") * 2000),
    "silent, metrics": ("metrics", b""),
    "half a head, metrics": ("metrics", HALF_HEAD),
}


@pytest.fixture
def patient_server(start_server) -> ServerProcess:
    """A server that gives calls more time than `stop` has."""
    local = "127.0.0.1:0"
    return start_server("--http-address", local, "--metrics-address", local, "--shutdown-deadline", "1h")


@pytest.mark.parametrize("peer", PEERS)
def test_silent_peer_does_not_hold_up_the_stop(peer: str, patient_server: ServerProcess) -> None:
    where, data = PEERS[peer]
    address = {
        "grpc": patient_server.address,
        "http": patient_server.http_address,
        "metrics": patient_server.metrics_address,
    }[where]
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.setblocking(False)
        connection.send(data)
        assert patient_server.stop() == 0


# Streams of gRPC's own services, which end when their clients do.
@pytest.mark.parametrize(
    "method", ["grpc.health.v1.Health/Watch", "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"]
)
def test_watch_does_not_hold_up_the_stop(method: str, patient_server: ServerProcess) -> None:
    with grpc.insecure_channel(patient_server.address) as channel:
        asked, ended = threading.Event(), threading.Event()

        def requests():
            yield b"" if "Health" in method else b"\x3a\x00"  # the list of services
            asked.set()
            ended.wait()

        watch = channel.stream_stream(f"/{method}")(requests())
        next(watch)
        assert asked.wait(timeout=60)
        assert patient_server.stop() == 0
        ended.set()


def test_call_that_goes_on_is_finished(patient_server: ServerProcess) -> None:
    with grpc.insecure_channel(patient_server.address) as channel:
        stub = make_stub(channel)
        spec = pb.RoundSpec(tensors=[pb.TensorSpec(name="t", dtype=pb.DTYPE_FLOAT32, num_rows=9)])
        stub.CreateRound(pb.CreateRoundRequest(round_id="r", spec=spec))
        host, _, port = patient_server.address.rpartition(":")

        def chunks():
            yield pb.UpdateChunk(round="rounds/r", client_id="c", submission_id="s")
            # A call that no handler has yet is cancelled by gRPC itself, and tried again by the clients.
            patient_server.wait_until(lambda: stub.GetRound(pb.GetRoundRequest(round="rounds/r")).num_uploads == 1)
            patient_server.process.terminate()
            # A peer without calls is ended: by then, one with a call would have been, too.
            with contextlib.suppress(ConnectionResetError):
                while silent.recv(4096):
                    pass
            yield pb.UpdateChunk(round="rounds/r", client_id="c", submission_id="s", sequence=1, last=True)

        with socket.create_connection((host, int(port)), timeout=60) as silent:
            assert stub.SubmitUpdate(chunks()).num_tuples == 0
    assert patient_server.process.wait(timeout=60) == 0
