"""SparseFedMedian and SparseFedTrimmedAvg compute of rows what Flower's compute of whole arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jobs
import numpy as np
import pytest
import sparseagg as sa
from flwr.serverapp.strategy import FedMedian, FedTrimmedAvg
from local_grid import LocalGrid, changing, start
from sparseagg.flower import SparseFedAvg, SparseFedMedian, SparseFedTrimmedAvg, sparse_mod

NODES = 7
TOUCHED = 1700  # of 2000 rows, so that most rows are changed by most nodes
SPARSE = ["embedding.weight"]


@pytest.fixture(scope="module")
def client() -> Iterator[sa.Client]:
    with sa.Client(":local:") as client:
        yield client


def grid(mods: list[Any], nodes: int = NODES, **options: Any) -> LocalGrid:
    return LocalGrid(jobs.make_client_app(mods, TOUCHED), nodes, **options)


def assert_like_flower(got: jobs.Arrays, wanted: jobs.Arrays) -> None:
    """Rows are sums of rounded medians of differences; integers are rounded in each of the two rounds."""
    for name, array in jobs.initial_model().items():
        assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape)
        atol = 1.0 if array.dtype.kind == "i" else 1e-6
        np.testing.assert_allclose(got[name], wanted[name], rtol=3e-7, atol=atol, err_msg=name)


@pytest.mark.parametrize("nodes", [2, 6, 7])
@pytest.mark.parametrize("use_mod", [True, False])
def test_model_is_that_of_flowers_median(tmp_path: Any, nodes: int, use_mod: bool) -> None:
    mods = [sparse_mod(copies=tmp_path)] if use_mod else []
    wanted, _ = start(FedMedian(), grid([], nodes))
    got, result = start(SparseFedMedian(sparse=SPARSE), grid(mods, nodes))
    assert_like_flower(got, wanted)
    assert set(result.train_metrics_clientapp[2]) == {"loss"}
    assert (got["embedding.weight"] != jobs.initial_model()["embedding.weight"]).any(axis=1).sum() > 1000


@pytest.mark.parametrize(("nodes", "beta"), [(6, 0.2), (7, 0.3), (10, 0.3), (5, 0.0)])
def test_model_is_that_of_flowers_trimmed_mean(tmp_path: Any, nodes: int, beta: float) -> None:
    wanted, _ = start(FedTrimmedAvg(beta=beta), grid([], nodes))
    got, _ = start(SparseFedTrimmedAvg(sparse=SPARSE, beta=beta), grid([sparse_mod(copies=tmp_path)], nodes))
    assert_like_flower(got, wanted)


def test_default_beta_is_flowers() -> None:
    assert SparseFedTrimmedAvg().beta == FedTrimmedAvg().beta


@pytest.mark.parametrize("strategy", [SparseFedMedian, SparseFedTrimmedAvg])
def test_attackers_do_not_leave_the_range_of_the_others(tmp_path: Any, strategy: Any) -> None:
    def attack(arrays: jobs.Arrays, partition: int) -> None:
        if partition == 3:
            for array in arrays.values():
                array[...] = 100_000  # in the range of all dtypes

    def model_of(strategy: Any, folder: str, mods: list[Any]) -> jobs.Arrays:
        return start(strategy, grid([sparse_mod(copies=tmp_path / folder), *mods]), rounds=1)[0]

    before = jobs.initial_model()
    honest = [jobs.train_arrays(before, node, 1, TOUCHED)[0] for node in range(NODES) if node != 3]
    got = model_of(strategy(sparse=SPARSE), "robust", [changing(attack)])
    for name, array in got.items():
        if array.size:
            stack = np.stack([arrays[name].astype(np.float64) for arrays in honest])
            assert (array >= stack.min(axis=0) - 1e-5).all(), name
            assert (array <= stack.max(axis=0) + 1e-5).all(), name
    assert model_of(SparseFedAvg(sparse=SPARSE), "mean", [changing(attack)])["embedding.weight"].max() > 1000


def test_rows_of_few_nodes_stay_unless_the_others_do_not_vote(tmp_path: Any) -> None:
    def few(arrays: jobs.Arrays, partition: int) -> None:
        model = jobs.initial_model()["embedding.weight"]
        arrays["embedding.weight"][...] = model
        arrays["embedding.weight"][5 : 5 + partition] = model[5 : 5 + partition] + np.float32(partition)

    def changed_by(**options: Any) -> np.ndarray:
        mods = [sparse_mod(copies=tmp_path / str(len(options))), changing(few)]
        model, _ = start(SparseFedMedian(sparse=SPARSE, **options), grid(mods), rounds=1)
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


@pytest.mark.parametrize("strategy", [SparseFedMedian, SparseFedTrimmedAvg])
def test_server_and_order_of_arrival_change_no_bit(client: sa.Client, tmp_path: Any, strategy: Any) -> None:
    models = [
        start(strategy(sparse=SPARSE, server=server), grid([sparse_mod(copies=tmp_path / str(seed))], seed=seed))[0]
        for seed, server in enumerate((None, None, client))
    ]
    for model in models[1:]:
        assert all(model[name].tobytes() == array.tobytes() for name, array in models[0].items())


def test_bad_arguments_are_refused() -> None:
    for beta in (-0.1, 0.5, float("nan"), "much"):
        with pytest.raises(sa.InvalidArgumentError, match=r"beta must be a number in \[0, 0.5\)"):
            SparseFedTrimmedAvg(beta=beta)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="op"):
        SparseFedMedian(op="mean")
