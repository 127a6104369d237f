"""What a server shows on its pages: rounds, tasks and errors."""

from __future__ import annotations

import base64
import http.server
import json

import numpy as np
import pytest
import sparseagg as sa
from http_calls import request

ALPHABET = " abcdefghijklmnopqrstuvwxyz.,"
SIZE = len(ALPHABET)
PLAN = {"kind": "next-character", "alphabet": ALPHABET, "tensor": "logits", "epochs": 3, "learningRate": 0.5}
SPEC = sa.RoundSpec(
    [sa.TensorSpec("logits", dtype="float32", num_rows=SIZE * SIZE, row_width=SIZE)],
    op="mean",
    weighting="by_weight",
    return_counts=True,
)


class QuietFiles(http.server.SimpleHTTPRequestHandler):
    """Files, without a log."""

    def log_message(self, *_: object) -> None:
        pass


def client_page(origin: str, server) -> str:
    """The address of the page that is a client of the server."""
    return f"{origin}/examples/browser_client/?server=http://{server.http_address}"


def create_tasks(address: str, round_id: str, labels: list[str]) -> list[str]:
    payload = json.dumps(PLAN).encode()
    tasks = [
        {"taskId": f"{round_id}-{i}", "spec": {
            "payload": base64.b64encode(payload).decode(), "labels": [label], "round": f"rounds/{round_id}"}}
        for i, label in enumerate(labels)
    ]  # fmt: skip
    return request(address, "POST", "/v1/tasks", {"tasks": tasks}).json["names"]


def submit_some(round_: sa.Round, rng: np.random.Generator, clients: range) -> None:
    for i in clients:
        keys = np.sort(rng.choice(100_000, 4000, replace=False))
        rows = rng.standard_normal((4000, 16)).astype(np.float32)
        round_.submit(f"phone-{i}", {"embedding": (keys, rows)}, weight=1 + i)


def fill_status(server) -> None:
    rng = np.random.default_rng(3)
    with sa.Client(server.address) as client:
        spec = sa.RoundSpec(
            [sa.TensorSpec("embedding", "float32", num_rows=100_000, row_width=16)], op="mean", weighting="by_weight"
        )
        for name, clients in (("news-41", 24), ("news-42", 9)):
            round_ = client.create_round(spec, round_id=name)
            submit_some(round_, rng, range(clients))
            if name == "news-41":
                round_.finish()
        failed = client.create_round(
            sa.RoundSpec([sa.TensorSpec("bias", "float32", num_rows=10)], min_submissions=5), round_id="too-few"
        )
        with pytest.raises(sa.SparseaggError):
            failed.submit("phone-1", {"bias": (np.array([1]), np.array([np.nan], np.float32))})
        with pytest.raises(sa.SparseaggError):
            failed.finish()
        stream = client.create_stream(spec, buffer=3, staleness=[1, 0.5], stream_id="clicks")
        for base_version in (0, 0, 0, 0):  # the last one is stale by 1
            keys = rng.choice(100_000, 50, replace=False)
            update = {"embedding": (keys, rng.standard_normal((50, 16)).astype(np.float32))}
            stream.submit("phone-1", update, 1.0, base_version=base_version)
    tensors = [{"name": "embedding", "dtype": "float32", "numRows": 100_000, "rowWidth": 16}]
    model = {"modelId": "news", "spec": {"tensors": tensors, "optimizer": {"kind": "FEDADAM"}}}
    assert request(server.http_address, "POST", "/v1/models", model).status == 200
    applied = request(server.http_address, "POST", "/v1/models/news:apply", {"round": "rounds/news-41"})
    assert applied.status == 200, applied.json
    create_tasks(server.http_address, "news-42", ["phone"] * 4)
    lease = {"clientId": "phone-7", "labels": ["phone"], "timeout": "1s"}
    request(server.http_address, "POST", "/v1/tasks:lease", lease)
