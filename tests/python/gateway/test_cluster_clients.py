"""Clients that know nothing of clusters take part in a cluster's round: curl, a page in Chromium, a raw gRPC call."""

from __future__ import annotations

import json
import shutil
import subprocess

import browser
import grpc
import numpy as np
import pytest
import sparseagg as sa
from every_client import digest
from http_calls import LOCAL, TIMEOUT_S, request
from sparseagg._internal.spec.cluster_spec import home_of
from sparseagg.cluster import Cluster
from sparseagg.v1 import aggregation_pb2 as pb

SPEC = sa.RoundSpec([sa.TensorSpec("w", "float32", num_rows=1000)], op="mean", return_counts=True)
KEYS, VALUES = np.array([3, 9, 500], np.uint32), np.array([1.5, -2.0, 0.25], np.float32)
CLIENTS = [f"client-{i}" for i in range(8)]


@pytest.fixture
def servers(start_server, origin):
    return [start_server(*LOCAL, "--http-origins", origin) for _ in range(3)]


@pytest.fixture
def opened(servers):
    urls = [f"http://{each.http_address}" for each in servers]
    with Cluster([each.address for each in servers], http_urls=urls) as cluster, cluster.create_round(SPEC) as made:
        yield made


def check_result(opened, clients=CLIENTS):
    assert [each.client_id for each in opened.submissions()] == sorted(clients)
    expected = sa.aggregate({each: {"w": (KEYS, VALUES)} for each in clients}, SPEC)
    assert digest(opened.finish()) == digest(expected)


def path_of(opened, client_id, what="chunks"):
    query = f"client_id={client_id}&submission_id=one&last=true&tensor=w&key_encoding=U32&key_bytes={KEYS.nbytes}"
    return f"/v1/{opened.name}/{what}?{query}"


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
def test_curl_follows_to_the_home(opened, servers):
    def curl(path, data, kind):
        url = f"http://{servers[0].http_address}{path}"
        command = ["curl", "-L", "--fail-with-body", "-sS", "-H", f"content-type: {kind}", "--data-binary", "@-", url]
        done = subprocess.run(command, input=data, capture_output=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    for client_id in CLIENTS:
        status = curl(path_of(opened, client_id), KEYS.tobytes() + VALUES.tobytes(), "application/octet-stream")
        assert status["complete"]
        body = json.dumps({"clientId": client_id, "submissionId": "one"}).encode()
        assert curl(f"/v1/{opened.name}/submissions", body, "application/json")["clientId"] == client_id
    check_result(opened)


def test_the_answer_of_a_wrong_server_names_the_home_alone(opened, servers):
    client_id = next(each for each in CLIENTS if home_of(each, 3) == 1)
    home = f"http://{servers[1].http_address}"
    path = path_of(opened, client_id)
    body = KEYS.tobytes() + VALUES.tobytes()
    headers = {"content_type": "application/octet-stream"}
    answer = request(servers[0].http_address, "POST", path, body, **headers)
    assert (answer.status, answer.headers["location"]) == (307, home + path)
    assert answer.json["code"] == "FAILED_PRECONDITION"
    # Nothing of the request is an address to go to.
    for name, value in (
        ("host", "127.0.0.1:1"),
        ("x_forwarded_host", "evil.example"),
        ("forwarded", "host=evil.example"),
    ):
        again = request(servers[0].http_address, "POST", path, body, **{**headers, name: value})
        assert again.headers["location"] == home + path
    for what in (f"submissions?client_id={client_id}", f"receipt?client_id={client_id}"):
        method = "DELETE" if what.startswith("submissions") else "GET"
        gone = request(servers[2].http_address, method, f"/v1/{opened.name}/{what}")
        assert (gone.status, gone.headers["location"]) == (307, f"{home}/v1/{opened.name}/{what}")
    assert request(servers[0].http_address, "GET", f"/v1/{opened.name}").json["numRefused"] == "0"

    with grpc.insecure_channel(servers[0].address) as channel:
        call = channel.unary_unary(
            "/sparseagg.v1.Aggregation/CommitSubmission", pb.CommitSubmissionRequest.SerializeToString
        )
        with pytest.raises(grpc.RpcError) as raised:
            call(pb.CommitSubmissionRequest(round=opened.name, client_id=client_id, submission_id="one"))
    assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    metadata = dict(raised.value.trailing_metadata())
    assert metadata["sparseagg-home"] == servers[1].address
    assert metadata["sparseagg-home-url"] == home


def test_a_home_without_http_is_an_error(servers):
    with Cluster([each.address for each in servers]) as cluster, cluster.create_round(SPEC) as opened:
        client_id = next(each for each in CLIENTS if home_of(each, 3) == 1)
        answer = request(servers[0].http_address, "DELETE", f"/v1/{opened.name}/submissions?client_id={client_id}")
        assert answer.status == 400
        assert servers[1].address in answer.json["detail"]
        assert "location" not in answer.headers


@pytest.mark.skipif(browser.programs() is None, reason="no chromium and chromium-driver here")
def test_pages_submit_to_the_home(driver, origin, opened, servers):
    page = driver.open(f"{origin}/examples/browser_client/")
    script = (
        "const { Client } = await import('/js/sparseagg.js'); const client = new Client(args[0]); const ids = [];"
        "for (const id of args[2]) ids.push((await client.submit(args[1], id, { w: { keys: new Uint32Array(args[3]), "
        "values: new Float32Array(args[4]) } })).clientId); return ids;"
    )
    url = f"http://{servers[0].http_address}"
    assert page.evaluate(script, url, opened.name, CLIENTS, KEYS.tolist(), VALUES.tolist()) == CLIENTS
    check_result(opened)


def test_older_clients_are_told_where_to_go(opened, servers, monkeypatch):
    """A wheel from before clusters follows nothing; it can be given the home's address."""
    connection = sa.Client(servers[0].address)._connection
    monkeypatch.setattr(type(connection), "_at", lambda *_: None)
    for client_id in CLIENTS:
        index = home_of(client_id, 3)
        home = pytest.raises(sa.errors.FailedPreconditionError, match=servers[index].address)
        with sa.Client(servers[(index + 1) % 3].address) as wrong, home:
            wrong.get_round(opened.name).submit(client_id, {"w": (KEYS, VALUES)})
        with sa.Client(opened.home(client_id)) as right:
            right.get_round(opened.name).submit(client_id, {"w": (KEYS, VALUES)})
    check_result(opened)
