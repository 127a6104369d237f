"""The job that the tests run: an embedding of which each client changes a few rows, and dense parameters.

Training is arithmetic that depends on the partition, the round and the model alone. So the model after a round can be
computed in float64 here, from the same functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

SEED = 26
VOCABULARY, WIDTH, TOUCHED = 2000, 8, 40

Arrays = dict[str, np.ndarray]


def initial_model(vocabulary: int = VOCABULARY, width: int = WIDTH) -> Arrays:
    """An embedding, dense parameters of several shapes, a count as torch's batch norms have, and an empty array."""
    rng = np.random.default_rng(SEED)
    return {
        "embedding.weight": rng.standard_normal((vocabulary, width)).astype(np.float32),
        "dense.weight": rng.standard_normal((width, 3)).astype(np.float32),
        "dense.bias": rng.standard_normal((10, 1)),
        "scale": np.array(1.5, np.float32),
        "norm.batches": np.array(0, np.int64),
        "nothing": np.zeros((0, 3), np.float32),
    }


def assert_rounded_once(got: Arrays, wanted: Arrays, names: Iterable[str]) -> None:
    """Arrays are equal, but for the last bits of float64: those of other sums than ``average``'s."""
    for name in names:
        rtol = 1e-14 if wanted[name].dtype == np.float64 else 0
        np.testing.assert_allclose(got[name], wanted[name], rtol=rtol, atol=0, err_msg=name)


def train_arrays(arrays: Arrays, partition: int, server_round: int, touched: int = TOUCHED) -> tuple[Arrays, int]:
    """What a client makes of a model, and its number of examples."""
    rng = np.random.default_rng([SEED, partition, server_round])
    after = {name: array.copy() for name, array in arrays.items()}
    rows = rng.choice(len(after["embedding.weight"]), touched, replace=False)
    after["embedding.weight"][rows] -= np.float32(0.1) * (
        after["embedding.weight"][rows]
        + rng.standard_normal((touched, after["embedding.weight"].shape[1])).astype(np.float32)
    )
    for name in ("dense.weight", "dense.bias", "scale"):
        step = rng.standard_normal(after[name].shape).astype(after[name].dtype)
        after[name] = np.asarray(after[name] - after[name].dtype.type(0.1) * step)
    after["norm.batches"] = after["norm.batches"] + partition
    return after, int(rng.integers(1, 1000))


def make_client_app(mods: list[Any], touched: int = TOUCHED) -> ClientApp:
    """The user's app. Its functions are the same with and without the mod."""
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        config = message.content["config"]
        partition = int(context.node_config["partition-id"])
        arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
        if partition in config.get("failing", []):
            raise RuntimeError(f"client {partition} fails")
        after, examples = train_arrays(arrays, partition, config["server-round"], touched)
        if partition in config.get("nonfinite", []):
            after["embedding.weight"][7, 0] = np.nan
        metrics = MetricRecord({"num-examples": examples, "loss": 1.0 / examples})
        record = ArrayRecord({name: Array(np.asarray(array)) for name, array in after.items()})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
        checksum = float(sum(array.astype(np.float64).sum() for array in arrays.values()))
        metrics = MetricRecord({"num-examples": 1, "checksum": checksum})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def average(before: Arrays, trained: list[tuple[Arrays, int]]) -> Arrays:
    """FedAvg in float64, without a rounding."""
    total = float(sum(examples for _, examples in trained))
    return {
        name: sum((arrays[name].astype(np.float64) * examples for arrays, examples in trained), np.zeros(array.shape))
        / total
        for name, array in before.items()
    }


def rounded(before: Arrays, averaged: Arrays) -> Arrays:
    """The next model: each value rounded once to the dtype that it had."""
    return {
        name: (np.rint(averaged[name]) if array.dtype.kind == "i" else averaged[name]).astype(array.dtype)
        for name, array in before.items()
    }
