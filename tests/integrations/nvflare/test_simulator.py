"""Whole jobs of eight sites in NVFlare's simulator, stock and ours."""

import difflib
import os

import numpy as np
import pytest
from embedding_model import EMBEDDING, Recommender, train
from jobs import HERE, SITES, make_recipe, make_scatter_and_gather, simulate
from nvflare.client.config import TransferType
from sparseagg.nvflare import SparseAggregator, add_sparse_filters

RUNS = int(os.environ.get("SPARSEAGG_NVFLARE_RUNS", "3"))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the simulator writes into the working directory, too


def sparse_recipe(**options):
    return make_recipe("client_sparse.py", aggregator=SparseAggregator(sparse=[EMBEDDING]), **options)


def filtered_recipe(**options):
    aggregator = SparseAggregator(sparse=[EMBEDDING])
    recipe = make_recipe(aggregator=aggregator, params_transfer_type=TransferType.DIFF, **options)
    add_sparse_filters(recipe, sparse=[EMBEDDING])
    return recipe


def trained_by_all():
    """Weights, by site, after a round from the initial model, and the weights of their mean."""
    found = {}
    for site in sorted(SITES):
        model = Recommender()
        steps, _ = train(model, site, 0)
        found[site] = steps, {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}
    return found


def in_float64(sites):
    """FedAvg of all sites, in float64, in the order of their names; rounded once to each array's dtype."""
    total = float(sum(steps for steps, _ in sites.values()))
    mean = {}
    for name, first in sites["site-1"][1].items():
        folded = np.zeros(first.shape)
        for steps, weights in sites.values():
            folded = folded + float(steps) * weights[name].astype(np.float64)
        exact = folded / total
        mean[name] = (np.rint(exact) if first.dtype.kind == "i" else exact).astype(first.dtype)
    return mean


def num_different(run, wanted):
    return sum(int((run.weights[name] != array).sum()) for name, array in wanted.items())


def test_dense_parameters_are_those_of_float64(tmp_path):
    wanted = in_float64(trained_by_all())
    ours = simulate(make_recipe(num_rounds=1, aggregator=SparseAggregator()), tmp_path / "ours")
    stock = simulate(make_recipe(num_rounds=1), tmp_path / "stock")
    values = sum(array.size for array in wanted.values())
    print(
        f"of {values} values, {num_different(ours, wanted)} of ours and {num_different(stock, wanted)} of NVFlare's differ"
    )
    assert num_different(ours, wanted) == 0
    for name, array in wanted.items():
        np.testing.assert_allclose(stock.weights[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


def test_sparse_both_ways_gives_the_bits_of_sparse_up(tmp_path):
    up = simulate(sparse_recipe(num_rounds=3), tmp_path / "up")
    both = simulate(filtered_recipe(num_rounds=3), tmp_path / "both")
    assert up.digest == both.digest
    initial = Recommender().state_dict()[EMBEDDING].numpy()
    changed = (up.weights[EMBEDDING] != initial).any(axis=1)
    assert 40 < changed.sum() < len(changed)
    assert "Aggregated 8/8 results" in both.log
    assert "Traceback" not in up.log + both.log


def test_later_job_goes_on_where_the_first_ended(tmp_path):
    whole = simulate(sparse_recipe(num_rounds=2), tmp_path / "whole")
    first = simulate(sparse_recipe(num_rounds=1), tmp_path / "first")
    second = sparse_recipe(num_rounds=1, first_round=1, initial_ckpt=str(first.checkpoint))
    assert simulate(second, tmp_path / "second").digest == whole.digest
    assert first.digest != whole.digest


def test_scatter_and_gather_gives_the_bits_of_fed_avg(tmp_path):
    aggregator = SparseAggregator(sparse=[EMBEDDING])
    job = make_scatter_and_gather("client_sparse.py", aggregator, num_rounds=2)
    scattered = simulate(job, tmp_path / "scattered")
    assert scattered.digest == simulate(sparse_recipe(num_rounds=2), tmp_path / "fed_avg").digest
    assert "ACCEPTED by the aggregator" in scattered.log


def test_runs_of_one_job_have_one_hash(tmp_path):
    """SPARSEAGG_NVFLARE_RUNS=10 makes the table of the documentation."""
    ours = [simulate(make_recipe(aggregator=SparseAggregator()), tmp_path / f"ours{n}").digest for n in range(RUNS)]
    stock = [simulate(make_recipe(), tmp_path / f"stock{n}").digest for n in range(RUNS)]
    print(f"{RUNS} runs: {len(set(ours))} hashes of ours, {len(set(stock))} of NVFlare's: {ours} {stock}")
    assert len(set(ours)) == 1


def test_user_changes_one_line_of_the_server_and_two_of_the_client():
    before, after = ((HERE / name).read_text().splitlines()[1:] for name in ("client_dense.py", "client_sparse.py"))
    changed = [line for line in difflib.ndiff(before, after) if line.startswith("- ")]
    added = [line for line in difflib.ndiff(before, after) if line.startswith("+ ")]
    assert len(changed) == 2
    assert [line for line in added if line.strip("+ ")][0].startswith("+ from sparseagg.nvflare import")
    assert len([line for line in added if line.strip("+ ")]) == 3  # the import among them
