"""Flower's simulation and a cluster of sparseagg in one Ray.

    python examples/flower_cluster.py [--clients N] [--rounds N] [--servers N]

Needs flwr[simulation]. The clients are actors of Flower's simulation, the servers and the reducers are actors of the
cluster, and all of them are of the Ray that this process starts: on a cluster of machines, ``ray.init(address="auto")``
in its place. A client uploads to its home server; Flower's replies have metrics alone. The model is a table of 20 000
rows, of which each client changes some. The last line compares the model with that of Flower's replies without servers.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import tempfile
from typing import Any

import numpy as np
import ray
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from sparseagg.cluster import Cluster
from sparseagg.flower import SparseFedAvg, sparse_mod

ROWS, WIDTH, ROWS_OF_CLIENT = 20_000, 16, 500


def make_client_app(copies: str) -> ClientApp:
    """Returns clients that move some rows of the table, others in each partition, and count as many examples."""
    app = ClientApp(mods=[sparse_mod(copies=copies)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        partition = int(context.node_config["partition-id"])
        table = message.content["arrays"]["table"].numpy().copy()
        rng = np.random.default_rng(partition)
        rows = rng.choice(ROWS, ROWS_OF_CLIENT, replace=False)
        table[rows] += rng.standard_normal((ROWS_OF_CLIENT, WIDTH)).astype(np.float32)
        metrics = MetricRecord({"num-examples": partition + 1, "moved": float(ROWS_OF_CLIENT)})
        arrays = ArrayRecord({"table": Array(table)})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def trained(options: argparse.Namespace, make_server: Any) -> str:
    """Runs the simulation, and returns the hash of the model. At its end, Flower ends Ray, and with it the cluster."""
    found = []
    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Context) -> None:
        nodes = {"min_train_nodes": options.clients, "min_available_nodes": options.clients}
        initial = ArrayRecord({"table": Array(np.zeros((ROWS, WIDTH), np.float32))})
        with make_server() as server:
            strategy = SparseFedAvg(sparse=["table"], server=server, fraction_evaluate=0.0, **nodes)
            result = strategy.start(grid, initial, num_rounds=options.rounds)
        found.append(hashlib.sha256(result.arrays["table"].numpy().tobytes()).hexdigest())

    with tempfile.TemporaryDirectory() as copies:
        run_simulation(
            app, make_client_app(copies), options.clients, backend_config={"client_resources": {"num_cpus": 1}}
        )
    return found[0]


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--servers", type=int, default=2)
    options = parser.parse_args()

    def cluster() -> Cluster:
        # No share of the CPUs: Flower counts all of them as its clients'.
        return Cluster(options.servers, executor="ray", reducers=2, server_cpus=0, reducer_cpus=0)

    ray.init(num_cpus=2, include_dashboard=False)
    models = [trained(options, cluster), trained(options, contextlib.nullcontext)]
    print(f"{options.clients} clients, {options.servers} servers and 2 reducers in one Ray")
    print("one model:", models[0] == models[1])


if __name__ == "__main__":
    main()
