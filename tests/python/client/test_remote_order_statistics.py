"""Rounds of order statistics on a server: over JSON and a restart."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import numpy as np
import pytest
import sparseagg as sa
from random_rounds import error_of


def test_restart_before_the_close_keeps_the_submissions(start_server, tmp_path):
    flags = ["--data-dir", str(tmp_path / "data")]
    tensor = sa.TensorSpec("v", "float32", num_rows=50, row_width=2)
    spec = sa.RoundSpec([tensor], op="trimmed_mean", trim_fraction=0.2, weighting="by_weight", absent="zero")
    rng = np.random.default_rng(4)
    updates = {
        f"client {i}": ({"v": (rng.choice(50, 20, False), rng.standard_normal((20, 2)))}, 1.0 + i) for i in range(9)
    }
    first = start_server(*flags)
    with sa.Client(first.address) as client:
        opened = client.create_round(spec, round_id="kept")
        for client_id, (update, weight) in list(updates.items())[:6]:
            opened.submit(client_id, update, weight)
    first.kill()
    second = start_server(*flags)
    with sa.Client(second.address) as client:
        opened = client.get_round("kept")
        assert opened.spec == spec
        for client_id, (update, weight) in list(updates.items())[6:]:
            opened.submit(client_id, update, weight)
        result = opened.finish()["v"]
    expected = sa.aggregate(updates, spec)["v"]
    assert (result.keys.tobytes(), result.values.tobytes()) == (expected.keys.tobytes(), expected.values.tobytes())


def test_json_names_the_options(start_server):
    server = start_server("--http-address", "127.0.0.1:0")

    def post(path: str, body: dict) -> dict:
        request = urllib.request.Request(
            f"http://{server.http_address}{path}", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    tensors = [{"name": "v", "dtype": "DTYPE_FLOAT32", "numRows": 10}]
    aggregation = {"op": "OP_TRIMMED_MEAN", "trimFraction": 0.25, "absent": "ABSENT_POLICY_ZERO"}
    opened = post("/v1/rounds", {"roundId": "json", "spec": {"tensors": tensors, "aggregation": aggregation}})
    assert opened["spec"]["aggregation"].items() >= aggregation.items()
    for refused, text in (
        ({"op": "OP_QUANTILE", "quantile": 2}, "quantile 2 is not in [0, 1]"),
        ({"op": "OP_MEDIAN", "numerics": "NUMERICS_FIXED_POINT"}, "fixed_point merges submissions as they arrive"),
        ({"op": "OP_MEDIAN", "trimFraction": 0.1}, "trim_fraction is for the op trimmed_mean"),
        ({"op": "OP_MEDIAN", "quantile": 0.1}, "quantile is for the op quantile"),
        ({"op": "OP_SUM", "absent": "ABSENT_POLICY_SKIP"}, "absent is for the ops median, trimmed_mean and quantile"),
        ({"op": "OP_MEDIAN", "absent": 9}, "absent 9 is unknown here"),
    ):
        with pytest.raises(urllib.error.HTTPError) as caught:
            post("/v1/rounds", {"roundId": "refused", "spec": {"tensors": tensors, "aggregation": refused}})
        assert text in caught.value.read().decode()


def test_server_that_keeps_submissions_refuses_those_beyond_its_memory(start_server):
    server = start_server("--memory-limit", "256MiB")
    rows = 4_000_000
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=rows, layout="dense")], op="median")
    with sa.Client(server.address) as client:
        opened = client.create_round(spec)
        accepted = 0

        def submit_next() -> None:
            opened.submit(f"client {accepted}", {"v": np.full(rows, accepted, np.float32)})

        while accepted < 20 and error_of(submit_next) is None:
            accepted += 1
        assert 0 < accepted < 20
        assert error_of(submit_next) is sa.errors.ResourceExhaustedError
        assert opened.finish()["v"].values[0] == (accepted - 1) / 2
