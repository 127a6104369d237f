"""Credentials, TLS and pages of other origins at the HTTP gateway."""

from __future__ import annotations

import hashlib
import http.client
import json
import pathlib
import ssl

import pytest
from http_calls import LOCAL, TIMEOUT_S, request
from real_server import ServerProcess

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


def test_tls_with_the_certificates_of_grpc(start_server, self_signed):
    key, certificate = self_signed
    server = start_server(*LOCAL, "--tls-certificate", str(certificate), "--tls-key", str(key))
    context = ssl.create_default_context(cafile=str(certificate))
    port = int(server.http_address.rsplit(":", 1)[1])
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=TIMEOUT_S, context=context)
    try:
        for _ in range(2):  # the connection stays open
            connection.request("GET", "/v1/info")
            assert json.loads(connection.getresponse().read())["apiVersions"] == ["sparseagg.v1"]
    finally:
        connection.close()
    plain = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    plain.request("GET", "/v1/info")
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        plain.getresponse()
    plain.close()


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


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--http-address", "0.0.0.0:0"), "no TLS"),
        (("--http-address", "unix:/tmp/x"), "HOST:PORT"),
        (("--http-address", "nonsense"), "--http-address"),
        ((*LOCAL, "--http-origins", "nonsense"), "--http-origins"),
        ((*LOCAL, "--http-origins", "https://*.example.org"), "a pattern, which matches nothing"),
    ],
)
def test_bad_settings_stop_the_start(tmp_path, flags, text):
    with pytest.raises(AssertionError) as error:
        ServerProcess(tmp_path / "log", *flags)
    assert text in str(error.value)
