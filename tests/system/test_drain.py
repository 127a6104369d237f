"""The end of a server's life as the system that stops it sees it: readiness over HTTP, health, exit status."""

from __future__ import annotations

import http.client
import queue
import signal

import grpc
import numpy as np
import pytest
import sparseagg as sa
from real_server import START_TIMEOUT_S
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
        server.wait_until(lambda: stub.GetRound(pb.GetRoundRequest(name=round_name)).num_uploads == 1)

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
