"""Whole jobs of eight sites in NVFlare's simulator, stock and ours. Tests share the runs of a job."""

import functools
import os
import re

import numpy as np
import pytest
import torch
from embedding_model import EMBEDDING, Recommender, train
from jobs import SITES, make_job, make_recipe, make_scatter_and_gather, simulate
from nvflare.client.config import TransferType
from sparseagg.nvflare import SparseAggregator, SparseFedBuff, add_sparse_filters

# How often the same job runs to count its hashes.
RUNS = int(os.environ.get("SPARSEAGG_NVFLARE_RUNS", "2"))


def sparse_recipe(num_rounds, **options):
    """One changed line of the server, two of the client."""
    aggregator = SparseAggregator(sparse=[EMBEDDING])
    return make_recipe("client_sparse.py", num_rounds=num_rounds, aggregator=aggregator, **options)


def filtered_recipe(num_rounds):
    """The client's script for NVFlare's own FedAvg, and filters."""
    aggregator = SparseAggregator(sparse=[EMBEDDING])
    recipe = make_recipe(num_rounds=num_rounds, aggregator=aggregator, params_transfer_type=TransferType.DIFF)
    add_sparse_filters(recipe, sparse=[EMBEDDING])
    return recipe


JOBS = {
    "stock": lambda: make_recipe(num_rounds=1),
    "dense": lambda: make_recipe(num_rounds=1, aggregator=SparseAggregator()),
    "sparse": lambda: sparse_recipe(2),
    "first of two": lambda: sparse_recipe(1),
    "filtered": lambda: filtered_recipe(2),
    "scatter and gather": lambda: make_scatter_and_gather("client_sparse.py", SparseAggregator(sparse=[EMBEDDING]), 2),
    "buffered": lambda: make_job("client_sparse.py", SparseFedBuff(num_versions=4, buffer=3, sparse=[EMBEDDING])),
}


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
    """A function from a job's name, and the number of the run, to what that run has left."""

    @functools.lru_cache
    def run(name, number=0):
        folder = tmp_path_factory.mktemp("job")
        before = os.getcwd()
        os.chdir(folder)  # where the simulator also writes
        try:
            return simulate(JOBS[name], folder)
        finally:
            os.chdir(before)

    return run


def in_float64():
    """FedAvg of all sites from the initial model, in float64, in the order of their names; rounded once."""
    sums, total = {}, 0.0
    for site in sorted(SITES):
        model = Recommender()
        steps, _ = train(model, site, 0)
        total += steps
        for name, tensor in model.state_dict().items():
            sums[name] = sums.get(name, 0.0) + float(steps) * tensor.numpy().astype(np.float64)
    dtypes = {name: tensor.numpy().dtype for name, tensor in Recommender().state_dict().items()}
    means = {name: value / total for name, value in sums.items()}
    return {n: (np.rint(v) if dtypes[n].kind == "i" else v).astype(dtypes[n]) for n, v in means.items()}


def num_different(run, wanted):
    return sum(int((run.weights[name] != array).sum()) for name, array in wanted.items())


def test_dense_parameters_are_those_of_float64(run_of):
    wanted, ours, stock = in_float64(), run_of("dense", 0), run_of("stock", 0)
    values = sum(array.size for array in wanted.values())
    counts = num_different(ours, wanted), num_different(stock, wanted)
    print(f"of {values} values, {counts[0]} of ours and {counts[1]} of NVFlare's are not those of float64")
    assert counts[0] == 0
    for name, array in wanted.items():
        # NVFlare leaves the mean of integers, such as torch's num_batches_tracked, with its fraction.
        theirs = np.rint(stock.weights[name]) if array.dtype.kind == "i" else stock.weights[name]
        np.testing.assert_allclose(theirs, array, rtol=1e-5, atol=1e-6, err_msg=name)


def test_runs_of_one_job_have_one_hash(run_of):
    ours, stock = ([run_of(name, number).digest for number in range(RUNS)] for name in ("dense", "stock"))
    print(f"{RUNS} runs: {len(set(ours))} hashes of ours, {len(set(stock))} of NVFlare's: {ours} {stock}")
    assert len(set(ours)) == 1


def test_sparse_both_ways_gives_the_bits_of_sparse_up(run_of):
    up, both = run_of("sparse"), run_of("filtered")
    assert both.digest == up.digest
    changed = (up.weights[EMBEDDING] != Recommender().state_dict()[EMBEDDING].numpy()).any(axis=1)
    assert 40 < changed.sum() < len(changed)
    for log in (up.log, both.log):
        assert "Aggregated 8/8 results" in log
        assert "Traceback" not in log


def test_later_job_goes_on_where_the_first_ended(run_of, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole, first = run_of("sparse"), run_of("first of two")
    second = functools.partial(sparse_recipe, 1, first_round=1, initial_ckpt=str(first.checkpoint))
    assert simulate(second, tmp_path).digest == whole.digest
    assert first.digest != whole.digest


def test_scatter_and_gather_gives_the_bits_of_fed_avg(run_of):
    scattered = run_of("scatter and gather")
    assert "ACCEPTED by the aggregator" in scattered.log
    assert scattered.digest == run_of("sparse").digest


def test_buffered_versions_are_those_of_the_results_in_the_log(run_of):
    run = run_of("buffered")
    found = re.findall(r"a result of (site-\d+), trained on version (\d+): StreamPlace\(version=(\d+)", run.log)
    places = [(site, int(base), int(version)) for site, base, version in found if int(version) <= 4]
    models = [{name: tensor.numpy() for name, tensor in Recommender().state_dict().items()}]
    for version in range(1, 5):
        parts = [(site, base) for site, base, of in places if of == version]
        assert len(parts) == 3
        sums = {name: np.zeros(array.shape) for name, array in models[0].items()}
        for site, base in parts:
            model = Recommender()
            model.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in models[base].items()})
            train(model, site, base)
            for name, tensor in model.state_dict().items():
                change = tensor.numpy().astype(np.float64) - models[base][name]
                sums[name] += (version - base) ** -0.5 * change
        means = {
            name: np.rint(each / 3) if models[0][name].dtype.kind == "i" else each / 3 for name, each in sums.items()
        }
        models.append({name: (array + means[name]).astype(array.dtype) for name, array in models[-1].items()})
    print("staleness of the results:", [version - 1 - base for _, base, version in places])
    for name, array in models[-1].items():
        np.testing.assert_allclose(run.weights[name], array, rtol=1e-5, atol=1e-6, err_msg=name)
