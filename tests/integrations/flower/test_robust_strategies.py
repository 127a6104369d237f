"""SparseFedMedian, SparseFedTrimmedAvg, SparseKrum and SparseMultiKrum make of rows what Flower's make of arrays."""

from __future__ import annotations

from typing import Any

import jobs
import numpy as np
import pytest
import sparseagg as sa
from flwr.serverapp.strategy import FedMedian, FedTrimmedAvg, Krum, MultiKrum
from local_grid import LocalGrid, changing, start
from sparseagg.flower import (
    SparseFedMedian,
    SparseFedTrimmedAvg,
    SparseKrum,
    SparseMultiKrum,
    sparse_mod,
)

NODES = 9
TOUCHED = 1700  # of 2000 rows, so that most rows are changed by most nodes
SPARSE = ["embedding.weight"]
# Flower's strategy, ours, and their options.
STRATEGIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "median": (FedMedian, SparseFedMedian, {}),
    "trimmed mean": (FedTrimmedAvg, SparseFedTrimmedAvg, {"beta": 0.3}),
    "default trimmed mean": (FedTrimmedAvg, SparseFedTrimmedAvg, {}),
    "no trim": (FedTrimmedAvg, SparseFedTrimmedAvg, {"beta": 0.0}),
    "krum": (Krum, SparseKrum, {"num_malicious_nodes": 2}),
    "multi krum": (MultiKrum, SparseMultiKrum, {"num_malicious_nodes": 2, "num_nodes_to_select": 4}),
}


def attack(arrays: jobs.Arrays, partition: int) -> None:
    """Moves the arrays of two nodes away: of one far, of the other all to the same side."""
    for array in arrays.values():
        if partition == 3:
            array[...] = 1000
        if partition == 5 and array.dtype.kind == "f":
            array += np.asarray(0.5, array.dtype)


def grid(mods: list[Any], nodes: int = NODES, **options: Any) -> LocalGrid:
    return LocalGrid(jobs.make_client_app([*mods, changing(attack)], TOUCHED), nodes, **options)


@pytest.mark.parametrize(("nodes", "use_mod"), [(8, True), (9, True), (9, False)])
@pytest.mark.parametrize("name", STRATEGIES)
def test_model_is_that_of_flowers(tmp_path: Any, name: str, nodes: int, use_mod: bool) -> None:
    """Rows are sums of rounded differences; integers are rounded in each of the two rounds."""
    flowers, ours, options = STRATEGIES[name]
    wanted, wanted_result = start(flowers(**options), grid([], nodes))
    got, result = start(ours(sparse=SPARSE, **options), grid([sparse_mod(copies=tmp_path)] if use_mod else [], nodes))
    initial = jobs.initial_model()
    for tensor, array in initial.items():
        assert (got[tensor].dtype, got[tensor].shape) == (array.dtype, array.shape)
        atol = 1.5 if array.dtype.kind == "i" else 1e-5
        np.testing.assert_allclose(got[tensor], wanted[tensor], rtol=3e-7, atol=atol, err_msg=tensor)
    assert (got["embedding.weight"] != initial["embedding.weight"]).any(axis=1).sum() > 1000
    assert set(result.train_metrics_clientapp[2]) == {"loss"}
    if "krum" in name:  # of the same chosen replies
        for round_number, metrics in wanted_result.train_metrics_clientapp.items():
            assert result.train_metrics_clientapp[round_number]["loss"] == pytest.approx(metrics["loss"], rel=1e-6)


@pytest.mark.parametrize("name", ["median", "trimmed mean", "multi krum"])
def test_server_and_order_of_arrival_change_no_bit(tmp_path: Any, name: str) -> None:
    _, ours, options = STRATEGIES[name]
    with sa.Client(":local:") as client:
        models = [
            start(
                ours(sparse=SPARSE, server=server, **options),
                grid([sparse_mod(copies=tmp_path / str(seed))], seed=seed),
            )[0]
            for seed, server in enumerate((None, None, client))
        ]
    for model in models[1:]:
        assert all(model[tensor].tobytes() == array.tobytes() for tensor, array in models[0].items())


def test_rows_of_few_nodes_stay_unless_the_others_do_not_vote(tmp_path: Any) -> None:
    def few(arrays: jobs.Arrays, partition: int) -> None:
        model = jobs.initial_model()["embedding.weight"]
        arrays["embedding.weight"][...] = model
        arrays["embedding.weight"][5 : 5 + partition] = model[5 : 5 + partition] + np.float32(partition)

    def changed_by(**options: Any) -> np.ndarray:
        mods = [sparse_mod(copies=tmp_path / str(len(options))), changing(few)]
        strategy = SparseFedMedian(sparse=SPARSE, **options)
        model, _ = start(strategy, LocalGrid(jobs.make_client_app(mods, TOUCHED), 7), rounds=1)
        return model["embedding.weight"] - jobs.initial_model()["embedding.weight"]

    # Row 5 + i is changed, by their numbers, by nodes i + 1, …, 6; node 0 changes none.
    zero = changed_by()
    np.testing.assert_allclose(zero[5:12, 0], [3, 3, 3, 0, 0, 0, 0], atol=1e-6)
    skip = changed_by(absent="skip")
    np.testing.assert_allclose(skip[5:12, 0], [3.5, 4, 4.5, 5, 5.5, 6, 0], atol=1e-6)
    three = changed_by(absent="skip", options={"min_contributors": 3})
    np.testing.assert_allclose(three[5:12, 0], [3.5, 4, 4.5, 5, 0, 0, 0], atol=1e-6)


def test_rows_that_stay_are_not_sent(tmp_path: Any) -> None:
    """Each row is changed by few of the nodes, so that all medians are 0, and nothing of the table goes down."""
    sparse_grid = LocalGrid(jobs.make_client_app([sparse_mod(copies=tmp_path)]), NODES)
    got, _ = start(SparseFedMedian(sparse=SPARSE, fraction_evaluate=0.0), sparse_grid, rounds=3)
    np.testing.assert_array_equal(got["embedding.weight"], jobs.initial_model()["embedding.weight"])
    assert all(max(sizes[1:]) < 5000 for sizes in sparse_grid.sent.values())


def test_too_few_replies_leave_the_model(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    strategy = SparseKrum(sparse=SPARSE, num_malicious_nodes=4)
    _, result = start(strategy, grid([sparse_mod(copies=tmp_path)]), rounds=1)
    assert not result.train_metrics_clientapp
    assert "multi_krum with f=4 needs 2·f + 3 = 11 submissions or more, got 9" in caplog.text


def test_bad_arguments_are_refused() -> None:
    for beta in (-0.1, 0.5, float("nan"), "much"):
        with pytest.raises(sa.InvalidArgumentError, match=r"beta must be a number in \[0, 0.5\)"):
            SparseFedTrimmedAvg(beta=beta)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="op"):
        SparseFedMedian(op="mean")
    with pytest.raises(sa.InvalidArgumentError, match="num_malicious_nodes must be 0 or more, got -1"):
        SparseKrum(num_malicious_nodes=-1)
    with pytest.raises(sa.InvalidArgumentError, match="num_nodes_to_select must be 1 or more, got 0"):
        SparseMultiKrum(num_nodes_to_select=0)
