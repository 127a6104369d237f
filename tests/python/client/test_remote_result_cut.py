"""Cuts of results and moments on a server: over gRPC, JSON, in pages and after a restart."""

from __future__ import annotations

import base64

import numpy as np
import sparseagg as sa
from http_calls import LOCAL, request

ROWS = 400


def cut_spec() -> sa.RoundSpec:
    tensor = sa.TensorSpec("v", "float32", num_rows=ROWS, row_width=2)
    return sa.RoundSpec([tensor], op="mean", result_top_k=60, return_counts=True, return_moments=True)


def cut_updates() -> dict[str, dict]:
    rng = np.random.default_rng(4)
    return {f"client {i}": {"v": (rng.choice(ROWS, 90, False), rng.standard_normal((90, 2)))} for i in range(9)}


def test_ranges_and_pages_are_of_the_cut_result(server):
    spec, updates = cut_spec(), cut_updates()
    with sa.Client(server.address) as client:
        opened = client.create_round(spec)
        for name, update in updates.items():
            opened.submit(name, update)
        whole = opened.finish()["v"]
        parts = [opened.result(keys=(begin, begin + 50))["v"] for begin in range(0, ROWS, 50)]
        assert np.concatenate([part.keys for part in parts]).tolist() == whole.keys.tolist()
        assert np.concatenate([part.moments for part in parts]).tobytes() == whole.moments.tobytes()
        rounded = opened.result(value_encoding="float16")["v"]
        assert rounded.moments.tobytes() == whole.moments.tobytes()


def test_published_model_catches_up_with_cut_versions(server):
    with sa.Client(server.address) as client:
        arrays = {"v": np.zeros((6, 2), np.float32)}
        mine = {"v": np.zeros((6, 2), np.float32)}
        model = client.model("cut")
        model.publish(0, arrays, whole=True)
        opened = client.create_round(sa.RoundSpec([sa.TensorSpec("v", "float32", shape=(6, 2))], result_top_k=1))
        opened.submit("a", {"v": ([0, 3], [[1.0, 1.0], [2.0, 2.0]])})
        merged = opened.finish()
        merged.add_to(arrays)
        model.publish(1, {"v": (merged["v"].keys, arrays["v"][merged["v"].indices])})
        assert model.catch_up(mine, since=0) == 1
        assert mine["v"].tolist() == arrays["v"].tolist() == [[0, 0]] * 3 + [[2, 2]] + [[0, 0]] * 2


def test_json_has_options_counts_and_moments(start_server):
    server = start_server(*LOCAL)

    def call(path: str, body: dict | None = None) -> dict:
        return request(server.http_address, "GET" if body is None else "POST", path, body).json

    tensors = [{"name": "v", "dtype": "DTYPE_FLOAT32", "numRows": 10}]
    aggregation = {"resultTopK": "1", "resultMinNorm": 0.5, "returnMoments": True}
    opened = call("/v1/rounds", {"roundId": "json", "spec": {"tensors": tensors, "aggregation": aggregation}})
    assert opened["spec"]["aggregation"].items() >= aggregation.items()
    with sa.Client(server.address) as client:
        named = client.get_round("json")
        named.submit("a", ([1, 2, 3], [1.0, -3.0, 2.0]))
        named.finish()
        assert "AggregationSpec.result_top_k" in client.server_info().features
    (summary,) = call("/v1/rounds/json")["results"]
    assert (summary["numKeys"], summary["numCutKeys"], summary["hasMoments"]) == ("1", "2", True)
    page = call("/v1/rounds/json/result")
    assert np.frombuffer(base64.b64decode(page["moments"])).tolist() == [9.0]
