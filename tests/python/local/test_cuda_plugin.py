"""The CUDA engine as a library that is loaded at run time: its way into this process, on a device that is the host."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import sparseagg as sa
from random_rounds import error_of, random_pools, random_spec, random_update, weight_for
from sparseagg._internal.local import cuda_plugin

# Of the build that has the server, too.
PLUGINS = pathlib.Path(__file__).resolve().parents[3] / "build" / "dev" / "tests" / "cuda"


def plugin(name: str) -> str:
    path = PLUGINS / f"libsparseagg_{name}.so"
    if not path.is_file():
        pytest.skip(f"{path} is not built")
    return str(path)


@pytest.fixture
def on_host(monkeypatch):
    monkeypatch.setenv("SPARSEAGG_CUDA_PLUGIN", plugin("test_plugin"))


def merged(spec: sa.RoundSpec, updates: dict[str, tuple[dict, float]], device: str) -> list:
    result = sa.aggregate(updates, spec, device=device)
    columns = [(r.keys, r.values, r.counts, r.weights) for r in (result[tensor.name] for tensor in spec.tensors)]
    return [None if column is None else column.tobytes() for part in columns for column in part]


@pytest.mark.parametrize("seed", range(40))
def test_random_round_has_the_bits_of_the_cpu_engine(on_host, seed):
    rng = np.random.default_rng(seed)
    spec = random_spec(rng)
    pools = random_pools(rng, spec)
    updates = {
        f"client-{i}": (random_update(rng, spec, pools), weight_for(spec, float(rng.integers(1, 8))))
        for i in range(rng.integers(1, 12))
    }
    error = error_of(lambda: merged(spec, updates, "cpu"))
    assert error_of(lambda: merged(spec, updates, "cuda")) == error
    if error is None:
        assert merged(spec, updates, "cuda") == merged(spec, updates, "cpu")


def test_large_round_whose_columns_go_both_ways_has_the_bits_of_the_cpu_engine(on_host):
    # Keys and results of megabytes are mapped memory, which only the store that made it can free.
    rng = np.random.default_rng(1)
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=1 << 22)], op="mean", return_counts=True)
    keys = [np.unique(rng.integers(0, 1 << 22, 1_500_000, np.uint32)) for _ in range(3)]
    updates = {str(i): ({"v": (some, rng.random(len(some), np.float32))}, 1.0) for i, some in enumerate(keys)}
    for _ in range(2):  # the second with the memory that the first one has freed
        assert merged(spec, updates, "cuda") == merged(spec, updates, "cpu")
    sa.release_memory()


def test_engine_is_that_of_the_plugin(on_host):
    aggregator = sa.Aggregator(sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=9)]), device="cuda")
    aggregator.add("a", {"v": ([1], np.ones(1, np.float32))})
    assert aggregator.finish().info.engine.startswith("cuda (kernels on the host")
    assert cuda_plugin.load().startswith("cuda (kernels on the host")
