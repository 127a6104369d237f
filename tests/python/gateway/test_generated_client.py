"""A client that openapi-python-client generates from the server's description does a round."""

from __future__ import annotations

import base64
import importlib
import io
import json
import subprocess
import sys

import numpy as np
import pytest
from http_calls import TIMEOUT_S, request

pytest.importorskip("openapi_python_client", reason="openapi-python-client needs Python 3.10")

KEYS, VALUES = np.array([3, 9], "<u4"), np.array([1.0, 2.0], "<f4")
PACKAGE = "generated_sparseagg_client"


@pytest.fixture
def address(server):
    return server.http_address


@pytest.fixture
def api(address, tmp_path, monkeypatch):
    """Returns what imports a module of the client by its name."""
    (tmp_path / "openapi.json").write_bytes(request(address, "GET", "/v1/openapi.json").body)
    (tmp_path / "config.json").write_text(json.dumps({"post_hooks": []}))  # which would format it
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--path", "openapi.json", "--meta", "none"]
    command += ["--output-path", PACKAGE, "--config", "config.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda name: importlib.import_module(f"{PACKAGE}.{name}")


def test_a_round(api, address):
    models = api("models")

    def call(name, *path, **arguments):
        answer = api(f"api.default.{name}").sync(*path, client=client, **arguments)
        return answer.to_dict()

    with api("client").Client(f"http://{address}") as client:
        spec = {"tensors": [{"name": "w", "dtype": "DTYPE_FLOAT32", "numRows": "10"}], "aggregation": {"op": "OP_SUM"}}
        create = models.CreateRoundRequest.from_dict({"roundId": "generated", "spec": spec})
        assert call("create_round", body=create)["state"] == "ROUND_STATE_OPEN"

        def put(client_id, values, tag):
            body = api("types").File(io.BytesIO(KEYS.tobytes() + values.tobytes()))
            of_upload = {"client_id": client_id, "submission_id": "one", "upload_tag": tag, "last": True}
            of_slice = {"tensor": "w", "key_encoding": models.PutChunkKeyEncoding.KEY_ENCODING_U32}
            return call("put_chunk", "generated", body=body, key_bytes=KEYS.nbytes, **of_upload, **of_slice)

        def commit(client_id, tag):
            ids = {"clientId": client_id, "submissionId": "one", "uploadTag": tag}
            return call("commit_submission", "generated", body=models.CommitSubmissionRequest.from_dict(ids))

        tag = base64.b64encode(b"\xfb\xff").decode()  # with "+" and "/"
        assert "+" in tag
        assert "/" in tag
        for client_id, factor in (("a", 1), ("b", 10)):
            assert put(client_id, VALUES * factor, tag)["complete"] is True
            assert commit(client_id, tag)["duplicate"] is False
        assert put("a", VALUES, tag)["committed"] is True
        assert put("a", VALUES * 2, tag)["committed"] is False  # the commit compares
        assert commit("a", tag)["code"] == "ALREADY_EXISTS"
        assert call("close_round", "generated")["state"] != "ROUND_STATE_OPEN"
        assert call("wait_round", "generated", timeout="30s")["state"] == "ROUND_STATE_DONE"
        page = call("get_result", "generated", tensor="w")
        assert np.frombuffer(base64.b64decode(page["slice"]["keys"]), "<u4").tolist() == [3, 9]
        assert np.frombuffer(base64.b64decode(page["slice"]["values"]), "<f4").tolist() == [11.0, 22.0]
        assert call("get_round", "nothing")["code"] == "NOT_FOUND"
