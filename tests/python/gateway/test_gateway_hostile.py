"""Hostile peers, credentials and pages of other origins at the HTTP gateway; it serves honest ones in its memory."""

from __future__ import annotations

import contextlib
import hashlib
import pathlib
import re
import socket

import numpy as np
import pytest
from http_calls import LOCAL, raw, read_all, request

LIMIT_MIB = 256
FLAGS = (*LOCAL, "--memory-limit", f"{LIMIT_MIB}MiB", "--upload-timeout", "2s")
SPEC = {"tensors": [{"name": "w", "dtype": "DTYPE_FLOAT32", "num_rows": 1 << 20}]}


def peak_mib(pid: int) -> float:
    return int(re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1)) / 1024


def header(path: str, size: int) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n" \
           f"Content-Length: {size}\r\n\r\n".encode()  # fmt: skip


def test_slow_header_is_ended_and_does_not_hinder_others(start_server):
    server = start_server(*FLAGS)
    slow = [raw(server.http_address, b"GET / HTTP/1.1\r\nHost: loc") for _ in range(50)]
    assert request(server.http_address, "GET", "/v1/info").status == 200
    assert all(read_all(connection).startswith(b"HTTP/1.1 408 ") for connection in slow)
    for connection in slow:
        connection.close()


def test_flood_of_unfinished_bodies_stays_within_memory(start_server):
    server = start_server(*FLAGS)
    address = server.http_address
    assert request(address, "POST", "/v1/rounds", {"roundId": "r", "spec": SPEC}).status == 200
    path = "/v1/rounds/r/chunks?client_id={}&submission_id=s&last=true&tensor=w&key_encoding=U32&key_bytes=2097152"
    # Together one and a half times the limit, each without its last byte.
    body = bytes(4 << 20)
    hostile = []
    for i in range(100):
        # Two hosts, because one gets half of the connections.
        connection = raw(address, header(path.format(f"h{i}"), len(body)), f"127.0.0.{2 + i % 2}")
        connection.setblocking(False)
        hostile.append(connection)
        with contextlib.suppress(BlockingIOError):
            connection.send(body[:-1])
    keys = np.arange(1000, dtype="<u4").tobytes()
    honest = path.format("honest").replace("2097152", f"{len(keys)}")
    attempts = 0
    while True:  # the server asks for another attempt while the slow ones hold the memory
        answer = request(address, "POST", honest, keys + bytes(4000), content_type="application/octet-stream")
        attempts += 1
        if answer.status == 200:
            break
        assert answer.status == 429
        assert attempts < 30
    assert peak_mib(server.process.pid) < 1.1 * LIMIT_MIB
    for connection in hostile:
        connection.close()


def test_pipelined_requests_are_answered_in_order(start_server):
    server = start_server(*FLAGS)
    one = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = b"GET /v1/nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    connection = raw(server.http_address, one * 500 + last)
    answers = re.findall(rb"HTTP/1.1 (\d+) ", read_all(connection))
    connection.close()
    assert answers == [b"200"] * 500 + [b"404"]


def test_garbage_is_refused(start_server):
    server = start_server(*FLAGS)
    rng = np.random.default_rng(1)
    for data in (b"\x16\x03\x01\x02\x00\x01", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", rng.bytes(1000), b"\r\n" * 9999,
                 b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
                 b"POST /v1/rounds HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999999\r\n\r\n",
                 b"POST /v1/rounds HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n"):  # fmt: skip
        connection = raw(server.http_address, data)
        connection.shutdown(socket.SHUT_WR)
        assert re.match(rb"(HTTP/1.1 4\d\d .*)?$", read_all(connection), re.DOTALL), data
        connection.close()
    assert request(server.http_address, "GET", "/v1/info").status == 200


def test_connections_of_one_address_are_limited(start_server):
    server = start_server(*LOCAL, "--max-http-connections-per-address", "3")
    held = [raw(server.http_address, b"") for _ in range(3)]
    for connection in held:
        connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    assert ask_on_new(server.http_address) == b""
    held.pop().close()
    while not (answer := ask_on_new(server.http_address)):  # until the server has noticed
        pass
    assert answer.startswith(b"HTTP/1.1 200")
    for connection in held:
        connection.close()


LIVE = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


def ask(connection: socket.socket, data: bytes = LIVE) -> bytes:
    """Sends a request; returns the beginning of the answer, or nothing if the connection was closed or reset."""
    try:
        connection.sendall(data)
        return connection.recv(4096)
    except ConnectionError:
        return b""


def ask_on_new(address: str, source: str = "127.0.0.1") -> bytes:
    """The same on a connection of its own, from the address ``source``."""
    try:
        connection = raw(address, b"", source)
    except ConnectionError:
        return b""
    try:
        return ask(connection)
    finally:
        connection.close()


def hosts(*numbers: int) -> list[str]:
    """Addresses of the loopback, each a host of its own for the server."""
    return [f"127.0.0.{number}" for number in numbers]


def test_long_poll_ends_with_its_peer(start_server):
    server = start_server(*LOCAL, "--threads", "1")
    address = server.http_address
    assert request(address, "POST", "/v1/rounds", {"roundId": "r", "spec": SPEC}).status == 200
    waiting = [
        raw(address, b"GET /v1/rounds/r:wait HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(20)
    ]  # fmt: skip
    for connection in waiting[10:]:
        connection.close()
    assert request(address, "POST", "/v1/rounds/r:close").status == 200
    for connection in waiting[:10]:
        assert connection.recv(64).startswith(b"HTTP/1.1 200")
        connection.close()
    assert server.stop() == 0


TOKENS = {"coordinator": "c" * 43, "client": "w" * 43}


@pytest.fixture
def tokens_file(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "tokens"
    rows = [f"{hashlib.sha256(token.encode()).hexdigest()} {role} default {role}-1" for role, token in TOKENS.items()]
    path.write_text("\n".join(rows) + "\n")
    return str(path)


def test_tokens_and_roles_are_those_of_grpc(start_server, tokens_file):
    address = start_server(*LOCAL, "--tokens-file", tokens_file).http_address
    spec = {"tensors": [{"name": "w", "dtype": "DTYPE_FLOAT32", "num_rows": 9}]}

    def status(role: str | None, method: str, path: str, body=None) -> tuple[int, str]:
        headers = {} if role is None else {"authorization": f"Bearer {TOKENS.get(role, role)}"}
        answer = request(address, method, path, body, **headers)
        return answer.status, answer.json.get("detail", "")

    assert status(None, "GET", "/v1/info")[0] == 401
    assert status("x" * 43, "GET", "/v1/info")[0] == 401
    assert request(address, "GET", "/").status == 200  # the page, which asks for a token
    assert status("client", "POST", "/v1/rounds", {"roundId": "r", "spec": spec})[0] == 403
    assert status("coordinator", "POST", "/v1/rounds", {"roundId": "r", "spec": spec})[0] == 200
    chunk = "/v1/rounds/r/chunks?client_id={}&submission_id=s&last=true"
    code, detail = status("client", "POST", chunk.format("other"))
    assert code == 403
    assert "client-1" in detail
    assert status("client", "POST", chunk.format(""))[0] == 200


def test_cors_by_allow_list(start_server):
    page = "https://app.example.org"
    address = start_server(*LOCAL, "--http-origins", f"{page}, http://other.example").http_address
    preflight = request(address, "OPTIONS", "/v1/rounds", origin=page, access_control_request_method="POST")
    assert preflight.status == 204
    assert preflight.headers.get_all("access-control-allow-origin") == [page]  # once, as browsers want it
    assert "authorization" in preflight.headers["access-control-allow-headers"]
    assert request(address, "GET", "/v1/info", origin=page).headers["access-control-allow-origin"] == page
    refused = request(address, "OPTIONS", "/v1/rounds", origin="https://evil", access_control_request_method="POST")
    assert refused.status == 403
    assert refused.headers["access-control-allow-origin"] is None
    own = request(address, "GET", "/v1/info", origin=f"http://{address}")
    assert own.status == 200
    assert own.headers["access-control-allow-origin"] is None
