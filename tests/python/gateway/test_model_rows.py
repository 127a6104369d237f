"""Models over HTTP: the paths, pages of rows as JSON and as bytes, and the refusals."""

from __future__ import annotations

import base64
import json
import uuid

import numpy as np
import pytest
import sparseagg as sa
from http_calls import request

SPEC = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=100, row_width=2)], op="sum")
TENSOR = {"name": "v", "dtype": "float32", "numRows": "100", "rowWidth": 2}


def keys_of(*keys: int) -> dict[str, str]:
    return {"keyEncoding": "U32", "keys": base64.b64encode(np.array(keys, np.uint32).tobytes()).decode()}


@pytest.fixture
def model(server) -> str:
    """The path of a model at version 1, which has rows 3 and 7."""
    name = f"m-{uuid.uuid4().hex}"
    created = call(server, "POST", "/v1/models", {"modelId": name, "spec": {"tensors": [TENSOR]}})
    assert created["version"] == "0"
    with sa.Client(server.address) as client:
        round_ = client.create_round(SPEC, round_id=name)
        round_.submit("a", {"v": (np.array([3, 7]), np.array([[1, 2], [3, 4]], np.float32))})
        round_.finish()
    made = call(server, "POST", f"/v1/models/{name}:apply", {"round": f"rounds/{name}"})
    assert (made["version"], made["numRows"]) == ("1", "2")
    return f"/v1/models/{name}"


def call(server, method: str, path: str, body=None, **headers: str):
    answer = request(server.http_address, method, path, body, **headers)
    assert answer.status == 200, answer.body
    return answer.json


def test_rows_come_as_json_and_as_bytes(server, model):
    body = {"keys": keys_of(7, 5, 3)}
    page = call(server, "POST", f"{model}/rows", body)
    rows = np.frombuffer(base64.b64decode(page["slice"]["values"]), np.float32)
    assert rows.tolist() == [3, 4, 1, 2]
    assert base64.b64decode(page["untouched"]) == b"\x02"
    answer = request(server.http_address, "POST", f"{model}/rows", body, accept="application/octet-stream")
    size = int.from_bytes(answer.body[:4], "little")
    head = json.loads(answer.body[4 : 4 + size])
    assert (4 + size) % 8 == 0
    assert head["sections"] == [0, 16]
    assert head["page"]["untouched"] == page["untouched"]
    assert np.frombuffer(answer.body[4 + size :], np.float32).tolist() == [3, 4, 1, 2]
    everything = call(server, "POST", f"{model}/rows", {})
    assert np.frombuffer(base64.b64decode(everything["slice"]["keys"]), np.uint32).tolist() == [3, 7]


def test_models_are_listed_waited_for_and_deleted(server, model):
    assert call(server, "GET", f"{model}?after_version=0")["version"] == "1"
    assert call(server, "GET", f"{model}?after_version=1&timeout=0s")["version"] == "1"
    name = model.removeprefix("/v1/")
    assert name in [each["name"] for each in call(server, "GET", "/v1/models")["models"]]
    call(server, "DELETE", model)
    assert request(server.http_address, "GET", model).status == 404


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/rows", {"keys": keys_of(100)}, 400, "tensor 'v': key 100 is not below num_rows 100"),
        ("/rows", {"keys": keys_of(3), "version": "9"}, 400, "version 9 does not exist yet; the newest is 1"),
        ("/rows", {"keys": keys_of(3), "tensor": "w"}, 400, "'w'"),
        ("/rows", {"keys": keys_of(*range(100)) | {"keys": "AAAAAAA="}}, 400, "bytes are not"),
        ("/rows", {"keys": {"keyEncoding": "IMPLICIT", "numKeys": "10000000"}}, 429, "10000000 keys; at most 16384"),
        (":apply", {"round": "rounds/none", "baseVersion": "1"}, 404, "rounds/none"),
        (":apply", {"round": "rounds/none"}, 400, "not of rounds/none"),
        (":apply", {"baseVersion": "1", "learningRate": -1}, 400, "learning_rate -1"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(server, model, path, body, status, text):
    before = call(server, "GET", model)
    answer = request(server.http_address, "POST", model + path, body)
    assert (answer.status, text in answer.json["detail"]) == (status, True), answer.body
    assert call(server, "GET", model) == before
