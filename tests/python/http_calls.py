"""Requests of the tests to the HTTP gateway, with nothing but the standard library."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any

TIMEOUT_S = 60
LOCAL = ("--http-address", "127.0.0.1:0")


class Answer:
    """A response: its status, headers and body."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def request(address: str, method: str, path: str, body: bytes | dict | None = None, **headers: str) -> Answer:
    """Sends a request on a connection of its own. Dashes in the names of headers are underscores here."""
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    if isinstance(body, dict):
        body = json.dumps(body).encode()
        fields.setdefault("content-type", "application/json")
    try:
        connection.request(method, path, body, fields)
        return Answer(connection.getresponse())
    finally:
        connection.close()


def raw(address: str, data: bytes, source: str = "127.0.0.1") -> socket.socket:
    """Opens a connection from the address ``source`` and sends bytes that need not be HTTP."""
    host, port = address.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), timeout=TIMEOUT_S, source_address=(source, 0))
    connection.sendall(data)
    return connection


def read_all(connection: socket.socket) -> bytes:
    """Reads until the server closes the connection."""
    received = b""
    try:
        while piece := connection.recv(65536):
            received += piece
    except ConnectionResetError:
        pass
    return received
