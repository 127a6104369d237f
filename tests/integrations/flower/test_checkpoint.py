"""Runs that go on with a saved state: to the bits of a run without a break, with what clients and overrides see."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable
from typing import Any

import jobs
import numpy as np
import pytest
import sparseagg as sa
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdam as DenseFedAdam
from local_grid import LocalGrid
from sparseagg.flower import (
    SparseFedAdagrad,
    SparseFedAdam,
    SparseFedAvg,
    SparseFedAvgM,
    SparseFedBuff,
    SparseFedYogi,
    SparseMixin,
    sparse_mod,
)
from sparseagg.optimizers import FedAdam

NODES, ROUNDS, BROKEN = 4, 5, 2
SPARSE = ["embedding.weight"]


class Skipping(SparseFedAdam):
    """Leaves out a node that the number of the round chooses."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        config["failing"] = [server_round % NODES]
        return super().configure_train(server_round, arrays, config, grid)


STRATEGIES = {
    "FedAvg": lambda: SparseFedAvg(sparse=SPARSE),
    "FedAvgM": lambda: SparseFedAvgM(sparse=SPARSE, server_momentum=0.8),
    "FedAdagrad": lambda: SparseFedAdagrad(sparse=SPARSE),
    "FedAdam": lambda: SparseFedAdam(sparse=SPARSE),
    "FedAdam, dense": lambda: SparseFedAdam(sparse=SPARSE, dense=True),
    "FedAdam, an override": lambda: Skipping(sparse=SPARSE),
    "FedYogi": lambda: SparseFedYogi(sparse=SPARSE),
}


def initial() -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in jobs.initial_model().items()})


def run(strategy: Any, folder: Any, file: pathlib.Path | None, until: int = ROUNDS, **options: Any) -> Any:
    """Runs until there are so many rounds; returns the bits of each model by number, and Flower's result."""
    models: dict[int, dict[str, bytes]] = {}

    def keep(number: int, arrays: ArrayRecord) -> MetricRecord:
        models[number] = {name: array.numpy().tobytes() for name, array in arrays.items()}
        if file is not None:
            strategy.save(file)
        return MetricRecord({"number": number})

    grid = LocalGrid(jobs.make_client_app([sparse_mod(copies=folder)]), NODES)
    return models, strategy.start(grid, options.pop("arrays", initial()), until, evaluate_fn=keep, **options)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_resumed_run_has_the_bits_of_one_without_a_break(tmp_path: pathlib.Path, name: str) -> None:
    whole, _ = run(STRATEGIES[name](), tmp_path, None)
    file = tmp_path / "job.npz"
    run(STRATEGIES[name](), tmp_path, file, BROKEN)
    strategy = STRATEGIES[name]()
    strategy.load(file)
    resumed, result = run(strategy, tmp_path, file)
    assert resumed == {number: bits for number, bits in whole.items() if number >= BROKEN}
    assert {number: record["number"] for number, record in result.evaluate_metrics_serverapp.items()} == {
        number: number for number in range(BROKEN, ROUNDS + 1)
    }
    assert list(result.train_metrics_clientapp) == list(result.evaluate_metrics_clientapp) == [3, 4, 5]
    strategy.load(file)
    again, result = run(strategy, tmp_path, None)  # nothing is left to do
    assert again == {ROUNDS: whole[ROUNDS]}
    assert {name: array.numpy().tobytes() for name, array in result.arrays.items()} == whole[ROUNDS]
    assert run(STRATEGIES[name](), tmp_path, None)[0] == whole


def test_a_resumed_stream_has_the_versions_that_it_had(tmp_path: pathlib.Path) -> None:
    def make() -> SparseFedBuff:
        return SparseFedBuff(
            sparse=SPARSE,
            concurrency=3,
            buffer=2,
            server=client,
            stream_id="kept",
            optimizer=FedAdam(learning_rate=0.1),
            options={"result_ttl": 600},
        )

    with sa.Client(":memory:") as client:
        file = tmp_path / "job.npz"
        run(make(), tmp_path, file, BROKEN)
        saved = file.read_bytes()
        strategy = make()
        strategy.load(file)
        first, _ = run(strategy, tmp_path, file)
        file.write_bytes(saved)  # as if the run had been killed before it could save
        strategy = make()
        strategy.load(file)
        second, _ = run(strategy, tmp_path, None)
        assert list(first) == list(range(BROKEN, ROUNDS + 1))
        assert second == first


def test_what_cannot_be_saved_or_loaded_is_refused(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "job.npz"
    strategy = SparseFedAdam(sparse=SPARSE)
    with pytest.raises(sa.InvalidArgumentError, match="there is no model yet"):
        strategy.save(file)
    assert not file.exists()
    run(strategy, tmp_path, file, 1)
    with pytest.raises(sa.InvalidArgumentError, match="of FedAdam, and cannot be loaded into FedYogi"):
        SparseFedYogi().load(file)
    with pytest.raises(sa.InvalidArgumentError, match=r"with optimizer NoneType cannot go on .* has 'round'"):
        SparseFedAvg().load(file)
    strategy.load(file)
    arrays = ArrayRecord({**initial(), "scale": Array(np.zeros(2, np.float32))})
    with pytest.raises(sa.InvalidArgumentError, match=r"'scale' is \('float32', \(2,\)\), and \('float32', \(\)\)"):
        run(strategy, tmp_path, None, arrays=arrays)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(sa.InvalidArgumentError, match=r"job\.npz: it cannot be read as a checkpoint"):
        strategy.load(file)
    np.savez(file, round=np.array([None]))
    with pytest.raises(sa.InvalidArgumentError, match=r"cannot be read .*allow_pickle=False"):
        strategy.load(file)

    class WithStep(SparseMixin, DenseFedAdam):
        """Flower's own step, which has a state."""

    with pytest.raises(sa.InvalidArgumentError, match="WithStep takes a step of its own"):
        run(WithStep(sparse=SPARSE), tmp_path, file, 1)
