"""Attacks on the HTTP gateway: memory, an honest client, recovery and the stop of the server under each."""

from __future__ import annotations

import base64
import contextlib
import http.client
import itertools
import json
import re
import socket
import subprocess
import time

import http_attacks
import numpy as np
import pytest
from siege import LIMIT, check_siege

CLIENTS = 20
TUPLES = 1000
SPEC = {"tensors": [{"name": "t", "dtype": "DTYPE_FLOAT32", "num_rows": 100_000}]}
# Times as long as without an attack: some attacks hold places until the server's timers take them away.
ROUND_TIMES = 250


class HonestClient:
    """One that keeps its connection, opens another where it was closed, and repeats what it is asked to repeat."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._connection = http.client.HTTPConnection(address, timeout=60)

    def call(self, method: str, path: str, body: bytes | dict | None = None) -> bytes:
        """Returns the content of the answer; raises LookupError if what the path names is not there."""
        headers = {}
        if isinstance(body, dict):
            body, headers = json.dumps(body).encode(), {"content-type": "application/json"}
        elif body is not None:
            headers = {"content-type": "application/octet-stream"}
        while True:
            try:
                self._connection.request(method, path, body, headers)
                answer = self._connection.getresponse()
                content = answer.read()
            except (OSError, http.client.HTTPException):
                self._connection.close()
            else:
                if answer.status not in (429, 503):
                    if answer.status == 404:
                        raise LookupError(path, content)
                    assert answer.status == 200, (path, answer.status, content)
                    return content
            time.sleep(0.02)

    def submit(self, path: str, client: str, keys: np.ndarray) -> None:
        query = f"client_id={client}&submission_id=s&last=true&tensor=t&key_encoding=U32&key_bytes={keys.nbytes}"
        while True:
            self.call("POST", f"{path}/chunks?{query}", keys.tobytes() + np.ones(TUPLES, "<f4").tobytes())
            with contextlib.suppress(LookupError):  # the upload was dropped after --upload-timeout
                self.call("POST", f"{path}/submissions", {"clientId": client, "submissionId": "s"})
                return

    def close(self) -> None:
        self._connection.close()


def honest_round(address: str, name: str) -> float:
    """One round of clients that have just come; returns its seconds."""
    begun = time.monotonic()
    coordinator = HonestClient(address)
    path = f"/v1/rounds/{name}"
    coordinator.call("POST", "/v1/rounds", {"roundId": name, "spec": SPEC})
    for i in range(CLIENTS):
        client = HonestClient(address)
        client.submit(path, f"{i}", np.arange(i, 50_000 + i, 50, dtype="<u4"))
        client.close()
    coordinator.call("POST", f"{path}:close", {})
    assert json.loads(coordinator.call("GET", f"{path}:wait"))["state"] == "ROUND_STATE_DONE"
    total, token = 0.0, ""
    while True:
        page = json.loads(coordinator.call("GET", f"{path}/result?page_token={token}"))
        total += np.frombuffer(base64.b64decode(page["slice"]["values"]), "<f4").sum()
        token = page["nextPageToken"]
        if not token:
            break
    assert total == CLIENTS * TUPLES
    with contextlib.suppress(LookupError):  # deleted by the call before, whose answer was lost
        coordinator.call("DELETE", path)
    coordinator.close()
    return time.monotonic() - begun


LIVE = b"GET /v1/info HTTP/1.1\r\nHost: localhost\r\n\r\n"
NEWCOMERS = 200
# At 256 MiB an eighth of the process share holds 121 connections, of which one address gets half.
MOST, MOST_OF_ADDRESS = 121, 60


def is_answered(connection: socket.socket) -> bool:
    """Whether the server answers a request on the connection."""
    try:
        connection.sendall(LIVE)
        return connection.recv(4096).startswith(b"HTTP/1.1 200")
    except ConnectionError:
        return False


def is_newcomer_answered(address: tuple[str, int]) -> bool:
    """Whether a newcomer is answered within seconds: a connection gives way to it when it has waited for one."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        with contextlib.suppress(ConnectionError), socket.create_connection(address, timeout=60) as connection:
            if is_answered(connection):
                return True
    return False


def open_connections(metrics_address: str) -> int:
    connection = http.client.HTTPConnection(metrics_address, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return int(re.search(r"^sparseagg_http_connections (\d+)", text, re.MULTILINE).group(1))


@pytest.mark.parametrize("name", [name for name in http_attacks.ATTACKS if name.startswith("crowd")])
def test_crowd_shuts_nobody_out(name: str, start_server) -> None:
    server = start_server(
        "--memory-limit", str(LIMIT), "--http-address", "127.0.0.1:0", "--metrics-address", "127.0.0.1:0"
    )
    host, _, port = server.http_address.rpartition(":")
    address = (host, int(port))
    with socket.create_connection(address, timeout=60) as idle:
        assert is_answered(idle)
        attacker = subprocess.Popen(http_attacks.command(name, server.http_address))
        try:
            # The listener counts them before their first bytes have come.
            most = MOST if name.startswith("crowds") else MOST_OF_ADDRESS + 1
            while open_connections(server.metrics_address) < most:
                assert attacker.poll() is None
            # On a busy machine fewer come, since the server itself ends a connection that was idle for 60 s.
            end = time.monotonic() + 10
            newcomers = itertools.takewhile(lambda _: time.monotonic() < end, range(NEWCOMERS))
            answered = [is_newcomer_answered(address) for _ in newcomers]
            assert attacker.poll() is None
            assert all(answered)
            assert is_answered(idle)
        finally:
            attacker.kill()
            attacker.wait()
    assert server.stop() == 0


@pytest.mark.parametrize("name", http_attacks.ATTACKS)
def test_http_flood_server_goes_on(name: str, start_server) -> None:
    server = start_server("--memory-limit", str(LIMIT), "--http-address", "127.0.0.1:0", "--upload-timeout", "2s")
    numbers = itertools.count()

    def one_round() -> float:
        return honest_round(server.http_address, f"round-{next(numbers)}")

    one_round()
    check_siege(name, server, http_attacks.command(name, server.http_address), one_round, ROUND_TIMES)
