"""Flower's simulation, with Ray, and 50 clients."""

from __future__ import annotations

import hashlib
from typing import Any

import jobs
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from sparseagg.flower import SparseFedAvg, sparse_mod

NODES = 50
REPETITIONS = 3


def test_fifty_clients_and_repeated_runs(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The same job, again and again: in one simulation, since Ray takes long to start."""
    caplog.set_level("INFO", "flwr")
    app, results = ServerApp(), []

    @app.main()
    def main(grid: Any, context: Any) -> None:
        for _ in range(REPETITIONS):
            record = ArrayRecord({name: Array(array) for name, array in jobs.initial_model().items()})
            strategy = SparseFedAvg(sparse=["embedding.weight"], min_train_nodes=NODES, min_evaluate_nodes=NODES)
            results.append(strategy.start(grid, record, num_rounds=2, timeout=300))

    client = jobs.make_client_app([sparse_mod(copies=tmp_path)])
    run_simulation(app, client, NODES, backend_config={"client_resources": {"num_cpus": 1}})

    assert len(results) == REPETITIONS
    model = jobs.initial_model()
    for server_round in (1, 2):
        trained = [jobs.train_arrays(model, client, server_round) for client in range(NODES)]
        model = jobs.rounded(model, jobs.average(model, trained))
    hashes = set()
    for result in results:
        got = {name: array.numpy() for name, array in result.arrays.items()}
        np.testing.assert_allclose(got["embedding.weight"], model["embedding.weight"], rtol=0, atol=5e-7)
        jobs.assert_rounded_once(got, model, set(model) - {"embedding.weight"})
        checksum = sum(float(array.astype(np.float64).sum()) for array in got.values())
        assert abs(result.evaluate_metrics_clientapp[2]["checksum"] - checksum) < 1e-9 * abs(checksum)
        hashes.add(hashlib.sha256(b"".join(array.tobytes() for array in got.values())).hexdigest())
    assert len(hashes) == 1
    assert caplog.text.count(f"aggregate_train: Received {NODES} results and 0 failures") == 2 * REPETITIONS
    assert "Traceback" not in caplog.text
