"""SparseKrum and SparseMultiKrum choose the replies that Flower's Krum and MultiKrum choose of whole arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jobs
import numpy as np
import pytest
import sparseagg as sa
from flwr.serverapp.strategy import Krum, MultiKrum
from local_grid import LocalGrid, changing, start
from sparseagg.flower import SparseFedAvg, SparseKrum, SparseMultiKrum, sparse_mod

NODES = 9
TOUCHED = 1700  # of 2000 rows, so that most rows are changed by most nodes
SPARSE = ["embedding.weight"]


def attack(arrays: jobs.Arrays, partition: int) -> None:
    """Moves the arrays of two nodes away: of one far, of the other all to the same side."""
    for array in arrays.values():
        if partition == 3:
            array[...] = 1000
        if partition == 5 and array.dtype.kind == "f":
            array += np.asarray(0.5, array.dtype)


def grid(mods: list[Any], **options: Any) -> LocalGrid:
    return LocalGrid(jobs.make_client_app([*mods, changing(attack)], TOUCHED), NODES, **options)


def assert_same_model(got: jobs.Arrays, wanted: jobs.Arrays) -> None:
    """Rows are differences from the model of the round before; integers are rounded in each round."""
    for name, array in jobs.initial_model().items():
        assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape)
        atol = 1.0 if array.dtype.kind == "i" else 1e-5
        np.testing.assert_allclose(got[name], wanted[name], rtol=3e-7, atol=atol, err_msg=name)


@pytest.mark.parametrize("use_mod", [True, False])
@pytest.mark.parametrize(
    ("ours", "flowers"),
    [
        (lambda: SparseKrum(sparse=SPARSE, num_malicious_nodes=2), lambda: Krum(num_malicious_nodes=2)),
        (
            lambda: SparseMultiKrum(sparse=SPARSE, num_malicious_nodes=2, num_nodes_to_select=4),
            lambda: MultiKrum(num_malicious_nodes=2, num_nodes_to_select=4),
        ),
    ],
)
def test_model_is_that_of_flowers(
    tmp_path: Any, use_mod: bool, ours: Callable[[], SparseMultiKrum], flowers: Callable[[], MultiKrum]
) -> None:
    wanted, wanted_result = start(flowers(), grid([]))
    got, result = start(ours(), grid([sparse_mod(copies=tmp_path)] if use_mod else []))
    assert_same_model(got, wanted)
    initial = jobs.initial_model()
    assert (got["embedding.weight"] != initial["embedding.weight"]).any(axis=1).sum() > 1000
    for round_number, metrics in wanted_result.train_metrics_clientapp.items():  # of the same chosen replies
        assert result.train_metrics_clientapp[round_number]["loss"] == pytest.approx(metrics["loss"], rel=1e-6)


def test_server_and_order_of_arrival_change_no_bit(tmp_path: Any) -> None:
    def model_of(seed: int, server: Any) -> jobs.Arrays:
        strategy = SparseMultiKrum(sparse=SPARSE, num_malicious_nodes=2, num_nodes_to_select=3, server=server)
        return start(strategy, grid([sparse_mod(copies=tmp_path / str(seed))], seed=seed))[0]

    with sa.Client(":local:") as client:
        models = [model_of(seed, server) for seed, server in enumerate((None, None, client))]
    for model in models[1:]:
        assert all(model[name].tobytes() == array.tobytes() for name, array in models[0].items())


def test_attackers_move_a_mean_and_not_krum(tmp_path: Any) -> None:
    robust, _ = start(SparseKrum(sparse=SPARSE, num_malicious_nodes=2), grid([sparse_mod(copies=tmp_path / "krum")]))
    mean, _ = start(SparseFedAvg(sparse=SPARSE), grid([sparse_mod(copies=tmp_path / "mean")]))
    moved = [np.abs(model["embedding.weight"] - jobs.initial_model()["embedding.weight"]) for model in (robust, mean)]
    assert moved[0].max() < 10
    assert moved[1].max() > 50


def test_too_few_replies_leave_the_model(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    strategy = SparseKrum(sparse=SPARSE, num_malicious_nodes=4)
    _, result = start(strategy, grid([sparse_mod(copies=tmp_path)]), rounds=1)
    assert not result.train_metrics_clientapp
    assert "multi_krum with f=4 needs 2·f + 3 = 11 submissions or more, got 9" in caplog.text


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(sa.InvalidArgumentError, match="num_malicious_nodes must be 0 or more, got -1"):
        SparseKrum(num_malicious_nodes=-1)
    with pytest.raises(sa.InvalidArgumentError, match="num_nodes_to_select must be 1 or more, got 0"):
        SparseMultiKrum(num_nodes_to_select=0)
