"""Strategies with a model on the server: against arithmetic in float64, whatever the clients read."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import jobs
import numpy as np
import pytest
import sparseagg as sa
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from local_grid import LocalGrid
from sparseagg.flower import SparseFedAdam, SparseFedAvg, SparseFedBuff, SparseFedMedian, SparseMultiKrum, sparse_mod
from sparseagg.optimizers import FedAdam

NODES, ROWS, WIDTH, ROUNDS = 6, 500, 4, 3
NAMES = (f"flower-{at}" for at in itertools.count())
INITIAL = {
    "table": np.random.default_rng(jobs.SEED).standard_normal((ROWS, WIDTH)).astype(np.float32),
    "head": np.linspace(-1, 1, 12).reshape(3, 4),
}


def rows_of(partition: int) -> np.ndarray:
    return np.random.default_rng([jobs.SEED, partition]).choice(ROWS, 20, replace=False)


def rows_for(context: Context) -> Mapping[str, Any]:
    return {"table": [*rows_of(int(context.node_config["partition-id"])), 3, 3]}


def moved(rows: np.ndarray, partition: int, version: int) -> np.ndarray:
    rng = np.random.default_rng([jobs.SEED, partition, version])
    return (0.8 * rows - 0.1 * rng.standard_normal(rows.shape)).astype(rows.dtype)


def make_app(tmp_path: Any, seen: list[int] | None = None, **options: Any) -> ClientApp:
    """Moves the client's rows, and the whole head; the function works on whole tables and on fetched rows."""
    app = ClientApp(mods=[sparse_mod(copies=tmp_path, **options)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        partition, version = int(context.node_config["partition-id"]), int(message.content["config"]["server-round"])
        arrays = {name: array.numpy().copy() for name, array in message.content["arrays"].items()}
        rows = np.sort(rows_of(partition))
        at = np.searchsorted(arrays["table:keys"], rows) if "table:keys" in arrays else rows
        if seen is not None:
            seen.append(len(arrays["table"]))
        arrays["table"][at] = moved(arrays["table"][at], partition, version)
        arrays["head"] = moved(arrays["head"], partition, version)
        record = ArrayRecord({name: Array(array) for name, array in arrays.items()})
        metrics = MetricRecord({"num-examples": partition + 1, "loss": 1.0})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        count = len(message.content["arrays"]["table"].numpy())
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1, "rows": count})}), reply_to=message)

    return app


def expected(
    rounds: int, failing: int | None = None, initial: Mapping[str, np.ndarray] = INITIAL
) -> dict[str, np.ndarray]:
    """FedAvg's model: differences, averaged by weight in float64 and rounded once, are added and rounded once."""
    model = {name: array.copy() for name, array in initial.items()}
    for version in range(1, rounds + 1):
        clients = [partition for partition in range(NODES) if partition != failing]
        total = sum(partition + 1 for partition in clients)
        sums = {name: np.zeros(array.shape) for name, array in model.items()}
        for partition in clients:
            rows = np.sort(rows_of(partition))
            change = moved(model["table"][rows], partition, version) - model["table"][rows]
            sums["table"][rows] += (partition + 1) * change.astype(np.float64)
            sums["head"] += (partition + 1) * (moved(model["head"], partition, version) - model["head"])
        for name, array in model.items():
            delta = (sums[name] / total).astype(array.dtype)
            model[name] = (array.astype(np.float64) + delta).astype(array.dtype)
    return model


def check(model: sa.Model, wanted: Mapping[str, np.ndarray]) -> None:
    for name, array in zip(wanted, model.read(dict.fromkeys(wanted, ...))):
        np.testing.assert_allclose(array, wanted[name], rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("rows_down", ["changed", "used"])
def test_clients_read_and_upload_at_the_server(server: sa.Client, tmp_path: Any, rows_down: str) -> None:
    bits = set()
    for seed in range(2):
        model, seen = server.model(next(NAMES), tensors=INITIAL), []
        grid = LocalGrid(make_app(tmp_path, seen, rows_for=rows_for), NODES, seed=seed)
        strategy = SparseFedAvg(model=model, rows_down=rows_down)
        result = strategy.start(grid, ArrayRecord({"head": Array(INITIAL["head"])}), num_rounds=ROUNDS)
        assert model.refresh().version == ROUNDS
        check(model, expected(ROUNDS))
        bits.add(b"".join(array.tobytes() for array in model.read(dict.fromkeys(INITIAL, ...))))
        used = {len(set(rows_for(context)["table"])) for context in grid.contexts.values()}
        assert set(seen) == ({ROWS} if rows_down == "changed" else used)
        assert max(max(sizes) for sizes in [*grid.sent.values(), *grid.received.values()]) < 2000
        assert result.train_metrics_clientapp[ROUNDS]["loss"] == pytest.approx(1.0)
        assert result.evaluate_metrics_clientapp[ROUNDS]["rows"] >= 20
    assert len(bits) == 1
    assert not list(server.list_rounds())


def test_model_that_is_made_again_is_another_one(server: sa.Client, tmp_path: Any) -> None:
    name = next(NAMES)
    for initial in (INITIAL, {each: array + 1 for each, array in INITIAL.items()}):
        model = server.model(name, tensors=initial)
        SparseFedAvg(model=model, fraction_evaluate=0.0).start(
            LocalGrid(make_app(tmp_path), NODES), ArrayRecord(), num_rounds=1
        )
        check(model, expected(1, initial=initial))  # nobody has trained on copies of the model before
        model.delete()


def test_client_that_fails_does_not_count_and_others_do(server: sa.Client, tmp_path: Any) -> None:
    model = server.model(next(NAMES), tensors=INITIAL)
    inner = make_app(tmp_path)

    def app(message: Message, context: Any) -> Message:
        reply = inner(message, context)
        if context.node_config["partition-id"] == 2:
            raise ConnectionError("the client is gone")  # after its upload
        return reply

    grid = LocalGrid(app, NODES)  # type: ignore[arg-type]
    SparseFedAvg(model=model, fraction_evaluate=0.0).start(grid, ArrayRecord(), num_rounds=2)
    check(model, expected(2, failing=2))


def test_fedbuff_leaves_the_steps_to_the_server(
    server: sa.Client, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = sa.RoundSpec(
        [
            sa.TensorSpec("table", "float32", shape=(ROWS, WIDTH)),
            sa.TensorSpec("head", "float64", shape=(3, 4)),
        ],
        op="mean",
    )
    name = next(NAMES)
    stream = server.create_stream(spec, buffer=3, staleness=sa.staleness.polynomial(0.5), stream_id=name)
    model = server.model(name, tensors=INITIAL, stream=stream, optimizer=FedAdam(learning_rate=0.1))
    grid = LocalGrid(make_app(tmp_path, rows_for=rows_for), NODES)
    strategy = SparseFedBuff(model=model, rows_down="used", concurrency=4, seed=1)
    applied: list[tuple[int, int]] = []
    awaited, wait = [], sa.Model.wait
    monkeypatch.setattr(sa.Model, "wait", lambda self, after: awaited.append(after) or wait(self, after))

    def evaluate(version: int, arrays: ArrayRecord) -> MetricRecord | None:
        applied.append((version, model.refresh().version))
        return None

    result = strategy.start(grid, ArrayRecord(), num_versions=5, evaluate_fn=evaluate)
    assert applied == [(version, version) for version in range(6)]
    assert awaited == list(range(5))  # a version that has ended may not be applied yet
    counts = np.array(stream.refresh().staleness_counts)
    assert counts @ np.arange(len(counts)) <= counts.sum()  # about four of three updates a version are under way
    assert sorted(result.train_metrics_clientapp) == [1, 2, 3, 4, 5]
    (table,) = model.read({"table": ...})
    touched = np.unique(np.concatenate([rows_of(partition) for partition in range(NODES)]))
    changed = np.flatnonzero((table != INITIAL["table"]).any(axis=1))
    assert len(changed) > 20
    assert np.isin(changed, touched).all()
    strategy.start(grid, ArrayRecord(), num_versions=7)  # another run goes on
    assert model.refresh().version == 7
    assert stream.refresh().version == 8  # the stream stays


def test_what_does_not_go_with_a_model_is_refused(server: sa.Client, tmp_path: Any) -> None:
    model = server.model(next(NAMES), tensors=INITIAL)
    with pytest.raises(sa.InvalidArgumentError, match="rows_down must be"):
        SparseFedAvg(model=model, rows_down="some")
    with pytest.raises(sa.InvalidArgumentError, match="rows_down must be"):
        SparseFedAvg(sparse=["table"], rows_down="used")
    for make in (
        lambda: SparseFedAvg(model=model, sparse=["table"]),
        lambda: SparseFedAvg(model=model, server=server),
        lambda: SparseFedAdam(model=model),
        lambda: SparseFedMedian(model=model),
        lambda: SparseMultiKrum(model=model),
    ):
        with pytest.raises(sa.InvalidArgumentError, match="strategies that aggregate as FedAvg does"):
            make()
    with pytest.raises(sa.InvalidArgumentError, match="needs a model with a stream"):
        SparseFedBuff(model=model, concurrency=1)
    grid = LocalGrid(make_app(tmp_path), NODES)
    with pytest.raises(sa.InvalidArgumentError, match="array 'other' is no tensor of models/"):
        SparseFedAvg(model=model).start(grid, ArrayRecord({"other": Array(np.zeros(2))}), num_rounds=1)
    SparseFedAvg(model=model, rows_down="used").start(grid, ArrayRecord(), num_rounds=1)
    assert model.refresh().version == 0
    assert all("needs sparse_mod(rows_for=…)" in str(reply.error.reason) for reply in grid.replies)
