"""Memory of whole arrays: that of their sums, whatever the number of nodes, unless updates may be left out."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from local_grid import LocalGrid
from sparseagg.flower import SparseFedAvg

NODES, ARRAYS, VALUES = 40, 10, 200_000


class Watching(SparseFedAvg):
    """Notes what the merge holds after each reply, and how many of its arrays wait for Python's search of cycles."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.held: list[int] = []
        self.waiting: list[Any] = []

    def incoming(self, reply: Message) -> Message | None:
        records = [record for record in reply.content.values() if isinstance(record, ArrayRecord)]
        arrays = [weakref.ref(array) for record in records for array in record.values()]
        del records
        seen = super().incoming(reply)
        self.waiting += [array for array in arrays if array() is not None]
        assert self._merge is not None
        assert self._merge._aggregator is not None
        self.held.append(self._merge._aggregator.memory_bytes)
        return seen


class LeavingOut(Watching):
    """Counts the replies of even partitions."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        even = [reply for reply in replies if not reply.content["metrics"]["partition"] % 2]  # type: ignore
        return super().aggregate_train(server_round, even)


def app_of_dense_models() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Any) -> Message:
        partition = int(context.node_config["partition-id"])
        arrays = {name: array.numpy() + partition for name, array in message.content["arrays"].items()}  # type: ignore
        metrics = MetricRecord({"num-examples": 1 + partition, "partition": partition})
        record = ArrayRecord({name: Array(array) for name, array in arrays.items()})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    return app


@pytest.mark.parametrize("base", [Watching, LeavingOut])
def test_memory_does_not_grow_with_nodes_unless_replies_may_be_left_out(
    base: type, request: pytest.FixtureRequest
) -> None:
    strategy, digests = base(fraction_evaluate=0.0), set()
    gc.disable()
    request.addfinalizer(gc.enable)
    initial = {f"layer-{i}": np.full(VALUES, 0.1 * i, np.float32) for i in range(ARRAYS)}
    for seed in range(2):
        record = ArrayRecord({name: Array(array) for name, array in initial.items()})
        result = strategy.start(LocalGrid(app_of_dense_models(), NODES, seed=seed), record, num_rounds=1)
        digests.add(b"".join(array.data for array in result.arrays.values()))
    assert not strategy.waiting
    assert len(digests) == 1
    counted = range(NODES) if base is Watching else range(0, NODES, 2)
    mean = sum(node * (1 + node) for node in counted) / sum(1 + node for node in counted)
    np.testing.assert_allclose(result.arrays["layer-3"].numpy(), initial["layer-3"] + mean, rtol=1e-6)
    sums, update = 17 * ARRAYS * VALUES, 4 * ARRAYS * VALUES
    if base is Watching:
        assert max(strategy.held) < sums + (64 << 20) + 2 * update
    else:
        assert max(strategy.held) > NODES * update
