"""The HTTP gateway: the same rounds as over gRPC, in JSON, Protocol Buffers, bulk bytes and gRPC-Web."""

from __future__ import annotations

import base64
import json
import os
import re
import struct

import grpc
import numpy as np
import pytest
import sparseagg as sa
from google.rpc import error_details_pb2, status_pb2
from guarded_server import make_token
from http_calls import LOCAL, raw, read_all, request
from real_server import REPOSITORY
from sparseagg.v1 import aggregation_pb2 as pb

SPEC = {"tensors": [{"name": "w", "dtype": "DTYPE_FLOAT32", "numRows": 1000, "rowWidth": 2}]}
KEYS = np.array([3, 9], "<u4")
ROWS = np.array([[1, 2], [3, 4]], "<f4")


@pytest.fixture
def address(server) -> str:
    return server.http_address


@pytest.fixture
def round_path(address: str, request: pytest.FixtureRequest) -> str:
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    assert call(address, "POST", "/v1/rounds", {"roundId": name, "spec": SPEC})["state"] == "ROUND_STATE_OPEN"
    return f"/v1/rounds/{name}"


def call(address: str, method: str, path: str, body=None, **headers):
    answer = request(address, method, path, body, **headers)
    assert answer.status == 200, answer.body
    return answer.json


def put(address: str, path: str, client: str, *, weight: str = "") -> None:
    query = f"client_id={client}&submission_id=s&sequence=0&last=true&tensor=w&key_encoding=U32&key_bytes=8{weight}"
    call(
        address,
        "POST",
        f"{path}/chunks?{query}",
        KEYS.tobytes() + ROWS.tobytes(),
        content_type="application/octet-stream",
    )
    call(address, "POST", f"{path}/submissions", {"clientId": client, "submissionId": "s"})


def test_withdraw_cancel_and_delete(address, round_path):
    put(address, round_path, "a")
    assert call(address, "DELETE", f"{round_path}/submissions?client_id=a") == {"withdrawn": True}
    assert call(address, "POST", f"{round_path}:cancel", {"reason": "why not"})["stateReason"] == "why not"
    assert call(address, "DELETE", round_path) == {}
    assert request(address, "GET", round_path).status == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "code", "text"),
    [
        ("GET", "/v1/nothing", None, {}, 404, "NOT_FOUND", "openapi.json"),
        ("PUT", "/v1/rounds", None, {}, 405, "UNIMPLEMENTED", "POST, GET"),
        ("GET", "/v1/rounds/none", None, {}, 404, "NOT_FOUND", "no round 'none'"),
        ("GET", "/v1/rounds/a%zz", None, {}, 400, "INVALID_ARGUMENT", "%-escape"),
        ("GET", "/v1/rounds?page_size=-1", None, {}, 400, "INVALID_ARGUMENT", "page_size -1"),
        ("GET", "/v1/rounds?page_size=x", None, {}, 400, "INVALID_ARGUMENT", "page_size"),
        ("GET", "/v1/rounds?nothing=1", None, {}, 400, "INVALID_ARGUMENT", "known are page_size, page_token"),
        ("GET", "/v1/rounds?" + "page_token=&" * 65, None, {}, 400, "INVALID_ARGUMENT", "64 parameters"),
        ("POST", "/v1/rounds", b"{", {"content_type": "application/json"}, 400, "INVALID_ARGUMENT", "not the JSON"),
        ("POST", "/v1/rounds", {"spek": 1}, {}, 400, "INVALID_ARGUMENT", "spek"),
        ("POST", "/v1/rounds", {"roundId": "a b", "spec": SPEC}, {}, 400, "INVALID_ARGUMENT", "a b"),
        ("POST", "/v1/rounds", {"roundId": "..", "spec": SPEC}, {}, 400, "INVALID_ARGUMENT", "round_id '..' is not"),
        ("POST", "/v1/rounds", {"spec": {**SPEC, "clip": {"l2": -1}}}, {}, 400, "INVALID_ARGUMENT",
         "clip.l2 -1 is not in [2^-500, 2^500]"),
        ("POST", "/v1/rounds", {"spec": {**SPEC, "clip": {"l2": 1, "onClip": "HALVE"}}}, {}, 400, "INVALID_ARGUMENT",
         "HALVE"),
        ("GET", "/v1/rounds/%2e%2e", None, {}, 400, "INVALID_ARGUMENT", "round_id '..' is not"),
        ("GET", "/v1/rounds/%ff", None, {}, 400, "INVALID_ARGUMENT", "'round' is not UTF-8"),
        ("GET", "/v1/tasks/%2e", None, {}, 400, "INVALID_ARGUMENT", "task_id '.' is not"),
        ("POST", "/v1/rounds", {"roundId": "a", "round_id": "b", "spec": SPEC}, {}, 400, "INVALID_ARGUMENT",
         "round_id is given twice"),
        ("POST", "/v1/rounds/r:close", {"onlyClientIds": [None]}, {}, 400, "INVALID_ARGUMENT", "only_client_ids[0]"),
        ("POST", "/v1/rounds", b"[" * 1000, {"content_type": "application/json"}, 400, "INVALID_ARGUMENT", "an object"),
        ("GET", "/v1/info", None, {"sparseagg_tenant": "red"}, 400, "INVALID_ARGUMENT", "has no tenants"),
        ("POST", "/v1/rounds", b"x", {"content_type": "text/plain"}, 415, "INVALID_ARGUMENT", "text/plain"),
        ("POST", "/v1/rounds", b"x", {"content_encoding": "gzip"}, 415, "INVALID_ARGUMENT", "Content-Encoding"),
        ("GET", "/v1/info", None, {"origin": "http://evil.example"}, 403, "PERMISSION_DENIED", "evil.example"),
        ("GET", "/v1/info", None, {"host": "evil.example"}, 403, "PERMISSION_DENIED", "evil.example"),
        ("GET", "/v1/info", None, {"expect": "tea"}, 417, "INVALID_ARGUMENT", "100-continue"),
        ("GET", "/v1/info?" + "a" * 9000, None, {}, 414, "RESOURCE_EXHAUSTED", "8192"),
        ("GET", "/v1/info", None, {"x": "a" * 17000}, 431, "RESOURCE_EXHAUSTED", "16384"),
        ("POST", "/v1/rounds", b"x" * (6 << 20), {"content_type": "application/json"}, 413, "RESOURCE_EXHAUSTED",
         "max_message_bytes 4194304"),
    ],
)  # fmt: skip
def test_error(address, method, path, body, headers, status, code, text):
    answer = request(address, method, path, body, **headers)
    assert (answer.status, answer.json["code"]) == (status, code), answer.body
    assert text in answer.json["detail"]
    assert answer.headers["content-type"] == "application/problem+json"


# Two clients, whose ids both became U+FFFD, were one: the second submission was taken for the first, and never counted.
def test_client_ids_that_are_not_utf8_are_refused_and_not_made_one(address, round_path):
    for client in ("%ff", "%fe", "%c0%80", "%ed%a0%80", "%f5%80%80%80"):
        query = f"client_id={client}&submission_id=s"
        for path in (f"chunks?{query}&last=true", f"submissions?{query}"):
            answer = request(address, "POST", f"{round_path}/{path}", b"", content_type="application/json")
            assert answer.status == 400
            assert answer.json["detail"] == "'client_id' is not UTF-8"
    assert call(address, "GET", f"{round_path}/submissions")["submissions"] == []


def test_field_of_a_newer_client_is_refused_in_every_form(address):
    spec = pb.CreateRoundRequest(
        round_id="newer", spec=sa.RoundSpec([sa.TensorSpec("w", "float32", num_rows=9)])._to_proto()
    )
    unknown = b"\xd8\x06\x01"  # field 107, a varint
    spec.spec.tensors[0].aggregation.MergeFromString(unknown)
    reason = "this server is older than the client"
    place = "unknown field 107 in spec.tensors[0].aggregation of CreateRoundRequest"
    message = spec.SerializeToString()
    answer = request(address, "POST", "/v1/rounds", message, content_type="application/x-protobuf")
    assert (answer.status, answer.json["detail"]) == (400, f"{place}: {reason}")
    trailers = grpc_web(address, "CreateRound", message)[1]
    assert trailers == f"grpc-status: 3\r\ngrpc-message: {place}: {reason}\r\n"
    tensor = {"name": "w", "dtype": "DTYPE_FLOAT32", "numRows": 9, "aggregation": {"newer": 1}}
    answer = request(address, "POST", "/v1/rounds", {"spec": {"tensors": [tensor]}})
    assert answer.status == 400
    assert 'unknown field "newer" in spec.tensors[0].aggregation' in answer.json["detail"]
    assert reason in answer.json["detail"]
    assert request(address, "GET", "/v1/rounds/newer").status == 404
    # What only reads may be asked in a newer way.
    assert grpc_web(address, "GetServerInfo", unknown)[1] == "grpc-status: 0\r\n"


def test_chunked_body_is_refused(address):
    answer = request(address, "POST", "/v1/rounds", b"0\r\n\r\n", transfer_encoding="chunked")
    assert answer.status == 411
    assert "Content-Length" in answer.json["detail"]


def grpc_web(address: str, method: str, message: bytes, flags: int = 0, **headers: str) -> tuple[bytes, str]:
    body = struct.pack(">BI", flags, len(message)) + message
    headers["content_type"] = "application/grpc-web+proto"
    answer = request(address, "POST", f"/sparseagg.v1.Aggregation/{method}", body, **headers)
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/grpc-web+proto"
    frames, rest = {}, answer.body
    while rest:
        flag, size = struct.unpack_from(">BI", rest)
        frames[flag], rest = rest[5 : 5 + size], rest[5 + size :]
    return frames.get(0, b""), frames[0x80].decode()


def test_grpc_web(address, round_path):
    name = round_path.removeprefix("/v1/")
    message, trailers = grpc_web(address, "GetRound", pb.GetRoundRequest(round=name).SerializeToString())
    assert pb.Round.FromString(message).name == name
    assert trailers == "grpc-status: 0\r\n"
    chunk = pb.UpdateChunk(round=name, client_id="web", submission_id="s", last=True).SerializeToString()
    assert pb.UploadStatus.FromString(grpc_web(address, "PutChunk", chunk)[0]).complete
    assert grpc_web(address, "GetRound", b"\x0a\x04none")[1].startswith("grpc-status: 3\r\ngrpc-message: ")
    assert grpc_web(address, "GetRound", b"", flags=1)[1].startswith("grpc-status: 12")
    assert grpc_web(address, "StreamResult", b"")[1].startswith("grpc-status: 12")


# The call, the same over HTTP, the code, and the ErrorInfo; None: there is none.
NOT_DONE = ("GetResult", pb.GetResultRequest(round="rounds/r"), "GET", "/v1/rounds/r/result", None)
TOO_SOON = ("PutChunk", pb.UpdateChunk(round="rounds/r", client_id="b", submission_id="b", last=True),
            "POST", "/v1/rounds/r/chunks", {"clientId": "b", "submissionId": "b", "last": True})  # fmt: skip
TOO_LARGE = ("CreateRound", pb.CreateRoundRequest(spec=pb.RoundSpec(tensors=[pb.TensorSpec(name="w")] * 2)),
             "POST", "/v1/rounds", {"spec": {"tensors": [{"name": "w"}, {"name": "w"}]}})  # fmt: skip


@pytest.mark.parametrize(
    ("call", "code", "reason", "metadata", "pushback"),
    [
        (NOT_DONE, grpc.StatusCode.FAILED_PRECONDITION, "WRONG_ROUND_STATE", {"state": "OPEN"}, None),
        (TOO_SOON, grpc.StatusCode.RESOURCE_EXHAUSTED, "TRY_LATER", {"retry_delay_ms": "500"}, "500"),
        (TOO_LARGE, grpc.StatusCode.RESOURCE_EXHAUSTED, None, {}, "-1"),
    ],
)
def test_errors_tell_programs_the_same_over_grpc_web_and_json(start_server, call, code, reason, metadata, pushback):
    method, message, verb, path, body = call
    server = start_server(*LOCAL, "--max-submissions-per-second-per-tenant", "1", "--max-tensors", "1")
    request(server.http_address, "POST", "/v1/rounds", {"roundId": "r", "spec": SPEC})
    with grpc.insecure_channel(server.address) as channel:
        send = channel.unary_unary(f"/sparseagg.v1.Aggregation/{method}")
        if call is TOO_SOON:
            send(pb.UpdateChunk(round="rounds/r", client_id="a", submission_id="a", last=True).SerializeToString())
        with pytest.raises(grpc.RpcError) as raised:
            send(message.SerializeToString())
    assert raised.value.code() is code
    of_grpc = dict(raised.value.trailing_metadata())
    lines = grpc_web(server.http_address, method, message.SerializeToString())[1].splitlines()
    of_web = dict(line.split(": ", 1) for line in lines)
    problem = request(server.http_address, verb, path, body).json
    assert of_grpc.get("grpc-retry-pushback-ms") == of_web.get("grpc-retry-pushback-ms") == pushback
    assert (problem.get("reason"), problem.get("metadata", {})) == (reason, metadata)
    if reason is None:
        assert "grpc-status-details-bin" not in of_grpc | of_web
        return
    status = status_pb2.Status.FromString(of_grpc["grpc-status-details-bin"])
    assert (status.code, status.message) == (code.value[0], raised.value.details())
    assert status_pb2.Status.FromString(base64.b64decode(of_web["grpc-status-details-bin"])) == status
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.domain, info.reason, dict(info.metadata)) == ("sparseagg", reason, metadata)
    assert problem["detail"] == status.message


def test_header_that_comes_twice_is_refused(address):
    for first, second in (
        ("Host: localhost", "Host: localhost"),
        ("Content-Type: application/json", "content-type: application/x-protobuf"),
        ("sparseagg-tenant: a", "sparseagg-tenant: b"),
        ("Origin: http://localhost", "Origin: http://localhost"),
    ):
        head = f"GET /v1/info HTTP/1.1\r\n{first}\r\n{second}\r\n"
        head += "" if first.startswith("Host") else "Host: localhost\r\n"
        answer = read_all(raw(address, head.encode() + b"\r\n"))
        assert answer.startswith(b"HTTP/1.1 400 "), head
        assert first.partition(":")[0].lower().encode() + b"' comes 2 times" in answer
    assert b"'host' is missing" in read_all(raw(address, b"GET /v1/info HTTP/1.1\r\n\r\n"))
    old = read_all(raw(address, b"GET /health/live HTTP/1.0\r\nHost: localhost\r\n\r\n"))
    assert old.startswith(b"HTTP/1.1 200")


def test_openapi_has_every_field_of_the_proto(address):
    description = call(address, "GET", "/v1/openapi.json")
    kept = REPOSITORY / "docs/openapi.json"  # which the site shows; SPARSEAGG_UPDATE_DOCS=1 writes it
    if os.environ.get("SPARSEAGG_UPDATE_DOCS"):
        kept.write_bytes(request(address, "GET", "/v1/openapi.json").body)
    assert json.loads(kept.read_text(encoding="utf-8")) == description
    operations = {
        operation["operationId"]: operation for path in description["paths"].values() for operation in path.values()
    }
    from sparseagg.v1 import models_pb2, tasks_pb2

    services = [
        pb.DESCRIPTOR.services_by_name["Aggregation"],
        models_pb2.DESCRIPTOR.services_by_name["Models"],
        tasks_pb2.DESCRIPTOR.services_by_name["Tasks"],
    ]
    methods = {method.name: method for service in services for method in service.methods}
    assert methods.keys() - operations.keys() == {
        "SubmitUpdate",
        "StreamResult",
        "Aggregate",
        "ExportSubmissions",
        "ExportPartial",
    }  # streams
    schemas = description["components"]["schemas"]
    in_path = [each for each in operations["GetRound"]["parameters"] if each["in"] == "path"]
    assert re.fullmatch(in_path[0]["schema"]["pattern"], "a.b")
    assert not re.fullmatch(in_path[0]["schema"]["pattern"], "..")

    described: dict[str, bool] = {}

    def check(message) -> None:
        if message.file.package == "google.protobuf":
            return
        properties = schemas[message.name]["properties"]
        assert properties.keys() == {field.json_name for field in message.fields}
        described.update({f"{message.name}.{name}": "description" in each for name, each in properties.items()})
        for field in message.fields:
            if field.message_type is not None and not field.message_type.GetOptions().map_entry:
                check(field.message_type)

    for name, operation in operations.items():
        check(methods[name].output_type) if methods[name].output_type.name != "Empty" else None
        if "requestBody" in operation:
            check(methods[name].input_type)
        else:
            names = {parameter["name"].split(".")[0] for parameter in operation["parameters"]}
            fields = {field.name for field in methods[name].input_type.fields}
            assert names <= fields | {"numbers"}
            assert fields - names <= {"name", "parent"}
    # From the proto's comments. A field without one says all with its name.
    assert sum(described.values()) > 0.5 * len(described), sorted(name for name in described if not described[name])
    assert "description" in operations["CreateRound"]
    references = json.dumps(description).split('"#/components/schemas/')[1:]
    assert {reference.split('"')[0] for reference in references} <= schemas.keys()


def test_health_and_head(address):
    assert request(address, "GET", "/health/live").body == b"ok\n"
    assert request(address, "GET", "/health/ready").body == b"ready\n"
    head = request(address, "HEAD", "/")
    assert (head.status, head.body) == (200, b"")
    assert int(head.headers["content-length"]) > 1000


def test_batch_in_json_counts_each_submission(address, round_path):
    def column(array: np.ndarray) -> str:
        return base64.b64encode(array.tobytes()).decode()

    tuples = {"tensor": "w", "keyEncoding": "KEY_ENCODING_U32", "keys": column(KEYS), "values": column(ROWS)}
    batch = {"clientIds": "a\nb\nc", "submissionId": "s", "numKeys": column(np.uint32([1, 0, 1])), "slices": [tuples]}
    answer = call(address, "POST", f"{round_path}/batches", batch)
    assert base64.b64decode(answer["codes"]) == bytes(3)
    assert (answer["numTuples"], answer["numDuplicates"], answer["refusals"]) == ("2", "0", [])
    assert call(address, "POST", f"{round_path}/batches", batch)["numDuplicates"] == "3"
    assert call(address, "GET", round_path)["numSubmissions"] == "3"


def test_pipelined_requests_are_answered_in_order(address):
    one = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = b"GET /v1/nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    connection = raw(address, one * 500 + last)
    answers = re.findall(rb"HTTP/1.1 (\d+) ", read_all(connection))
    connection.close()
    assert answers == [b"200"] * 500 + [b"404"]


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


# ---- credentials, and pages of other origins


def test_tokens_and_roles_are_those_of_grpc(start_server, tmp_path):
    table = tmp_path / "tokens"
    tokens = {role: make_token(table, role, "--name", f"{role}-1") for role in ("coordinator", "client")}
    address = start_server(*LOCAL, "--tokens-file", str(table)).http_address
    spec = {"tensors": [{"name": "w", "dtype": "DTYPE_FLOAT32", "num_rows": 9}]}

    def status(role: str | None, method: str, path: str, body=None) -> tuple[int, str]:
        headers = {} if role is None else {"authorization": f"Bearer {tokens.get(role, role)}"}
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
