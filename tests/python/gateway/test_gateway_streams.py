"""Streams over HTTP alone."""

from __future__ import annotations

import numpy as np
import pytest
from http_calls import request

SPEC = {
    "round": {"tensors": [{"name": "w", "dtype": "DTYPE_FLOAT32", "numRows": 1000, "rowWidth": 2}]},
    "buffer": 2,
    "stalenessWeights": [1, 0.5],
}
KEYS = np.array([3, 9], "<u4")
ROWS = np.array([[1, 2], [3, 4]], "<f4")


@pytest.fixture
def call(server):
    def of(method: str, path: str, body=None, status: int = 200, **headers):
        answer = request(server.http_address, method, path, body, **headers)
        assert answer.status == status, answer.body
        return answer.json if answer.body else None

    return of


def test_a_stream_of_bulk_and_json_requests(call):
    stream = call("POST", "/v1/streams", {"streamId": "s", "spec": SPEC})
    assert (stream["name"], stream["version"]) == ("streams/s", "1")
    for client, base in (("a", 0), ("b", 0), ("a", 0), ("c", 1)):
        submission = f"{client}{base}{call('GET', '/v1/streams/s').get('numCommits', 0)}"
        query = (
            f"client_id={client}&submission_id={submission}&sequence=0&last=true&tensor=w&key_encoding=U32&key_bytes=8"
        )
        data = KEYS.tobytes() + ROWS.tobytes()
        kind = {"content_type": "application/octet-stream"}
        call("POST", f"/v1/rounds/s/chunks?{query}&base_version={base}", data, **kind)
        commit = call("POST", "/v1/rounds/s/submissions", {"clientId": client, "submissionId": submission})
        assert commit["streamCommit"]["baseVersion" if base else "position"]
    watched = call("GET", "/v1/streams/s:watch?after_version=0&timeout=60s")["versions"]
    assert watched[0]["round"] == "rounds/s.v1"
    watched = call("GET", "/v1/streams/s:watch?after_version=1&timeout=60s")["versions"]
    assert watched == [dict(watched[0], version="2", cause="CUT_CAUSE_FULL", numSubmissions="2")]
    submissions = call("GET", "/v1/rounds/s.v2/submissions")["submissions"]
    assert [each["streamCommit"]["stalenessWeight"] for each in submissions] == [0.5, 1]
    assert call("GET", "/v1/streams")["streams"][0]["name"] == "streams/s"
    assert "streams" not in str(call("GET", "/v1/rounds"))
    call("POST", "/v1/streams/s:cut", {})
    call("DELETE", "/v1/streams/s")
    call("GET", "/v1/streams/s", status=404)
    call("GET", "/v1/rounds/s.v2", status=404)


def test_errors_name_the_field(call):
    refused = call("POST", "/v1/streams", {"spec": {**SPEC, "buffer": 0}}, status=400)
    assert "buffer" in str(refused)
    refused = call("POST", "/v1/streams", {"spec": {**SPEC, "stalenessWeights": [1, 2]}}, status=400)
    assert "staleness_weights[1]" in str(refused)
