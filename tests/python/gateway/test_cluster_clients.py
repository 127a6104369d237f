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
from sparseagg._internal.client.retry import info_of
from sparseagg._internal.spec.bounds import home_of
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
    info = info_of(raised.value)
    assert (info.reason, info.metadata) == ("HOME_ELSEWHERE", {"address": servers[1].address, "http_url": home})


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


TABLES = sa.RoundSpec(
    [
        sa.TensorSpec("single", "float32", num_rows=1000, return_counts=True, return_weights=True),
        sa.TensorSpec("odd", "bfloat16", num_rows=1000, row_width=3, result_layout="dense"),
        sa.TensorSpec("wide", "float16", num_rows=0, row_width=2, return_moments=True),
        sa.TensorSpec("whole", "int64", num_rows=1000, op="sum"),
        sa.TensorSpec("listed", "float32", num_rows=1000, op="union"),
        sa.TensorSpec("empty", "float64", num_rows=1000),
    ],
    op="mean",
)


def tables_of(client_id):
    rng = np.random.default_rng([38, CLIENTS.index(client_id)])

    def keys(most):
        return np.unique(rng.integers(0, most, 30).astype(np.uint64))

    update = {}
    for tensor in TABLES.tensors[:-1]:
        listed = keys(tensor.num_rows or 1 << 50)
        rows = rng.integers(-9, 9, (len(listed), tensor.row_width))
        update[tensor.name] = (listed, None if tensor.name == "listed" else rows)
    return update


@pytest.fixture
def tables(servers):
    """A round of several tensors with all submissions, which is not closed; and what its result must be."""
    urls = [f"http://{each.http_address}" for each in servers]
    updates = {each: tables_of(each) for each in CLIENTS}
    with (
        Cluster([each.address for each in servers], http_urls=urls, ranges=4) as cluster,
        cluster.create_round(TABLES) as made,
    ):
        for client_id, update in updates.items():
            made.submit(client_id, update)
        yield made, sa.aggregate(updates, TABLES)


def columns_of(expected, name):
    """The columns of the rows with a submission, as lists of bytes; keys as numbers."""
    found = expected[name]
    listed = {key for each in CLIENTS for key in tables_of(each).get(name, [()])[0]}
    kept = np.isin(found.keys, np.array(sorted(listed), np.uint64))
    columns = {"keys": found.keys[kept].tolist()}
    for column in ("values", "counts", "weights", "moments"):
        array = getattr(found, column)
        if array is None:
            columns[column] = None
            continue
        array = np.asarray(array)[kept]
        if column == "values" and found.dtype == "bfloat16":
            array = (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        columns[column] = list(array.tobytes())
    return columns


@pytest.mark.skipif(browser.programs() is None, reason="no chromium and chromium-driver here")
def test_pages_read_the_result_from_any_server(driver, origin, tables, servers):
    opened, expected = tables
    page = driver.open(f"{origin}/examples/browser_client/")
    script = """
      const { Client } = await import('/js/sparseagg.js');
      const octets = (array) => array && Array.from(new Uint8Array(array.buffer, array.byteOffset, array.byteLength));
      const [url, round, options] = args;
      const shown = {};
      try {
        for (const [name, { keys, ...columns }] of Object.entries(await new Client(url).result(round, options))) {
          shown[name] = { keys: Array.from(keys, Number) };
          for (const each of ['values', 'counts', 'weights', 'moments']) shown[name][each] = octets(columns[each]);
        }
      } catch (error) {
        return error.code;
      }
      return shown;
    """
    urls = [f"http://{each.http_address}" for each in servers]
    opened.seal()
    assert page.evaluate(script, urls[0], opened.name, {}) == "FAILED_PRECONDITION"
    opened.start_merge()
    wanted = {tensor.name: columns_of(expected, tensor.name) for tensor in TABLES.tensors[:-1]}
    for url in urls:
        found = page.evaluate(script, url, opened.name, {})
        assert found.pop("empty")["keys"] == []
        assert found == wanted
    part = page.evaluate(script, urls[1], opened.name, {"tensors": ["whole"], "begin": 200, "end": 700})["whole"]
    kept = [key for key in wanted["whole"]["keys"] if 200 <= key < 700]
    assert part["keys"] == kept
    assert len(part["values"]) == 8 * len(kept)
    assert page.evaluate(script, urls[1], opened.name, {"tensors": ["none"]}) == "INVALID_ARGUMENT"
