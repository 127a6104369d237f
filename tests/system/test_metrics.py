"""What Prometheus reads from a running server."""

from __future__ import annotations

import email.utils
import http.client
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
import sparseagg as sa
from real_server import REPOSITORY

SPEC = sa.RoundSpec([sa.TensorSpec("v", dtype="float32", num_rows=10)])


def read(address: str, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        return answer.read().decode()


def value(text: str, series: str) -> float:
    (line,) = re.findall(rf"^{re.escape(series)} (\S+)$", text, re.MULTILINE)
    return float(line)


@pytest.fixture
def metered(start_server, tmp_path):
    return start_server(
        *("--metrics-address", "127.0.0.1:0", "--max-tuples-per-submission", "5", "--memory-limit", "1GiB"),
        *("--data-dir", str(tmp_path / "data")),
    )


def test_metrics_count_what_became_of_submissions(metered) -> None:
    with sa.Client(metered.address) as client:
        round_ = client.create_round(SPEC, round_id="with-a-name")
        client.create_round(SPEC)
        client.create_round(SPEC, round_id="deleted").delete()  # ends without a close, and so without a finish
        round_.submit("client-name", {"v": (np.array([1, 2]), np.ones(2, np.float32))})
        round_.submit("client-name", {"v": (np.array([1, 2]), np.ones(2, np.float32))})
        with pytest.raises(sa.SparseaggError):
            round_.submit("b", {"v": (np.arange(6), np.ones(6, np.float32))})
        round_.finish()
        text = read(metered.metrics_address)
    assert value(text, 'sparseagg_submissions_total{result="accepted"}') == 1
    assert value(text, 'sparseagg_submissions_total{result="duplicate"}') == 1
    assert value(text, 'sparseagg_submissions_total{result="shed"}') == 1
    assert value(text, 'sparseagg_rejected_total{reason="resource_exhausted"}') == 1
    assert value(text, "sparseagg_update_tuples_total") == 2
    assert value(text, 'sparseagg_rounds{state="done"}') == 1
    assert value(text, 'sparseagg_rounds{state="open"}') == 1
    assert value(text, 'sparseagg_stage_seconds_count{stage="merge"}') == 2  # the submission and the result
    assert value(text, "sparseagg_round_finish_seconds_count") == 1
    assert 0 < value(text, "sparseagg_kept_bytes") <= value(text, "sparseagg_memory_limit_bytes")
    assert value(text, "sparseagg_memory_limit_bytes") < value(text, "sparseagg_process_memory_limit_bytes") == 1 << 30
    assert 1 << 20 < value(text, "process_resident_memory_bytes") < 1 << 30
    # A series for every round or client would grow for ever.
    assert "with-a-name" not in text
    assert "client-name" not in text


def test_metrics_count_commits_and_cuts_of_streams(metered) -> None:
    update = {"v": (np.array([1]), np.ones(1, np.float32))}
    with sa.Client(metered.address) as client:
        stream = client.create_stream(SPEC, buffer=2, staleness=[1.0, 0.5, 0.25], stream_id="with-a-name")
        client.create_stream(SPEC, buffer=9)
        for base_version in (0, 0, 1, 0, 0):  # of staleness 0, 0, 0, 1 and 2
            stream.submit("client-name", update, base_version=base_version)
        text = read(metered.metrics_address)
        assert value(text, "sparseagg_streams") == 2
        assert value(text, "sparseagg_stream_buffered_commits") == 1
        assert value(text, 'sparseagg_stream_cuts_total{cause="full"}') == 2
        stream.cut()
        with pytest.raises(sa.errors.FailedPreconditionError, match="stale by 3"):
            stream.submit("client-name", update, base_version=0)
        stream.delete()
        text = read(metered.metrics_address)
    assert value(text, "sparseagg_streams") == 1
    assert value(text, "sparseagg_stream_buffered_commits") == 0
    assert value(text, 'sparseagg_stream_cuts_total{cause="call"}') == 1
    assert value(text, "sparseagg_stream_staleness_count") == 5
    assert value(text, "sparseagg_stream_staleness_sum") == 3
    assert value(text, 'sparseagg_submissions_total{result="accepted"}') == 5
    assert "with-a-name" not in text


def http_requests(text: str) -> dict[tuple[str, str, str], float]:
    found = re.findall(r"^sparseagg_http_requests_total\{(.*)\} (\S+)$", text, re.MULTILINE)
    labels = [dict(re.findall(r'(\w+)="([^"]*)"', each)) for each, _ in found]
    return {(each["method"], each["route"], each["status"]): float(n) for each, (_, n) in zip(labels, found)}


def test_metrics_count_http_by_route_and_status(start_server) -> None:
    server = start_server("--http-address", "127.0.0.1:0", "--metrics-address", "127.0.0.1:0")
    keep = http.client.HTTPConnection(server.http_address, timeout=30)

    def call(method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        keep.request(method, path, body, {"content-type": "application/json"} if body else {})
        answer = keep.getresponse()
        return answer.status, answer.read()

    spec = b'{"roundId": "with-a-name", "spec": {"tensors": [{"name": "v", "dtype": "DTYPE_FLOAT32", "num_rows": 9}]}}'
    sent = sum(len(body) for _, body in [call("POST", "/v1/rounds", spec), call("GET", "/v1/rounds/with-a-name"),
                                         call("GET", "/v1/rounds/another"), call("GET", "/unknown/with-a-name"),
                                         call("BREW", "/coffee"), call("GET", "/health/live")])  # fmt: skip
    with socket.create_connection(server.http_address.split(":"), timeout=30) as gone:
        gone.sendall(b"GET /v1/rounds/with-a-name:wait HTTP/1.1\r\nHost: localhost\r\n\r\n")
    text = read(server.metrics_address)
    while (
        ("GET", "/v1/rounds/{round}:wait", "gone") not in http_requests(text)
        or value(text, "sparseagg_http_connections") != 1  # a connection ends after its last request is counted
    ):
        text = read(server.metrics_address)
    assert http_requests(text) == {
        ("POST", "/v1/rounds", "2xx"): 1,
        ("GET", "/v1/rounds/{round}", "2xx"): 1,
        ("GET", "/v1/rounds/{round}", "4xx"): 1,
        ("GET", "none", "4xx"): 1,
        ("other", "none", "4xx"): 1,
        ("GET", "/health/live", "2xx"): 1,
        ("GET", "/v1/rounds/{round}:wait", "gone"): 1,
    }
    assert value(text, 'sparseagg_http_request_seconds_count{route="/v1/rounds/{round}"}') == 2
    assert value(text, "sparseagg_http_received_body_bytes_total") == len(spec)
    assert value(text, "sparseagg_http_sent_body_bytes_total") == sent
    assert value(text, "sparseagg_http_connections") == 1
    assert value(text, "sparseagg_connections") == 1
    assert "with-a-name" not in text
    keep.close()


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_head_is_get_without_the_page(metered, path) -> None:
    with urllib.request.urlopen(f"http://{metered.metrics_address}{path}", timeout=30) as answer:
        got = answer.headers
    request = urllib.request.Request(f"http://{metered.metrics_address}{path}", method="HEAD")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"] == got["Content-Type"]
        assert int(answer.headers["Content-Length"]) > 0
        assert answer.read() == b""


def test_reference_documents_every_metric(start_server) -> None:
    server = start_server("--http-address", "127.0.0.1:0", "--metrics-address", "127.0.0.1:0")
    page = (REPOSITORY / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    offered: set[str] = set()
    # The metrics of requests appear with the first one, which is counted once its answer is on its way.
    deadline = time.monotonic() + 30
    while "sparseagg_http_requests_total" not in offered and time.monotonic() < deadline:
        read(server.http_address, "/health/live")
        offered = set(re.findall(r"^# TYPE (\w+)", read(server.metrics_address), re.MULTILINE))
    assert "sparseagg_http_requests_total" in offered
    assert offered - set(re.findall(r"\w+", page)) == set()


def test_metrics_tell_of_credentials(start_server, tmp_path) -> None:
    tokens, tls = tmp_path / "tokens", tmp_path / "tls"
    tokens.write_text("")
    flags = ("--tokens-file", str(tokens), "--dev-tls", str(tls), "--tls-client-ca", str(tls / "ca.pem"))
    server = start_server(*flags, "--metrics-address", "127.0.0.1:0")
    text = read(server.metrics_address)
    for flag, file in (("tls-certificate", "server.pem"), ("tls-client-ca", "ca.pem")):
        shown = subprocess.run(
            ["openssl", "x509", "-noout", "-enddate", "-in", str(tls / file)],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        end = email.utils.parsedate_to_datetime(
            re.sub(r"notAfter=(\w+) +(\d+) (\S+) (\d+) GMT", r"\2 \1 \4 \3 +0000", shown)
        )
        assert value(text, f'sparseagg_certificate_end_timestamp_seconds{{flag="{flag}"}}') == end.timestamp()
    read_at = value(text, 'sparseagg_credentials_read_timestamp_seconds{flag="tokens-file"}')
    assert abs(read_at - time.time()) < 3600

    def failed() -> float:
        return value(read(server.metrics_address), 'sparseagg_credentials_reloads_failed{flag="tokens-file"}')

    assert failed() == 0
    for number in (1, 2):
        tokens.write_text("no token\n" * number)
        server.wait_until(lambda number=number: failed() == number)
    tokens.write_text("# none\n\n")
    server.wait_until(lambda: failed() == 0)
    text = read(server.metrics_address)
    assert value(text, 'sparseagg_credentials_reloads_failed{flag="tls-certificate"}') == 0
    assert "jwt-key" not in text
