"""Rounds of order statistics on a server: over JSON and a restart."""

from __future__ import annotations

import numpy as np
import sparseagg as sa
from http_calls import LOCAL, request
from random_rounds import error_of


def test_json_names_the_options(start_server):
    address = start_server(*LOCAL).http_address
    tensors = [{"name": "v", "dtype": "DTYPE_FLOAT32", "numRows": 10}]
    aggregation = {"op": "OP_TRIMMED_MEAN", "trimFraction": 0.25, "absent": "ABSENT_POLICY_ZERO"}
    opened = request(address, "POST", "/v1/rounds", {"spec": {"tensors": tensors, "aggregation": aggregation}})
    assert opened.json["spec"]["aggregation"].items() >= aggregation.items()
    for refused, text in (
        ({"op": "OP_QUANTILE", "quantile": 2}, "quantile 2 is not in [0, 1]"),
        ({"op": "OP_MEDIAN", "absent": 9}, "absent 9 is unknown here"),
    ):
        answer = request(address, "POST", "/v1/rounds", {"spec": {"tensors": tensors, "aggregation": refused}})
        assert (answer.status, text in answer.json["detail"]) == (400, True)


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
