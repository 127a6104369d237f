"""One hash for a round, whatever the numbers of servers and of ranges: that of ``sa.aggregate`` over all updates."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import importlib.util
import os

import numpy as np
import pytest
import reference
import sparseagg as sa
from cuda_plugins import plugin
from every_client import digest
from random_cuts import with_random_cuts
from random_rounds import as_reference, error_of, random_pools, random_spec, random_updates
from sparseagg.cluster import Cluster
from sparseagg.cluster.server_keeper import ray_session

SERVERS = (1, 2, 4, 8)
RANGES = (1, 3, 8)


NUM_SPECS = int(os.environ.get("SPARSEAGG_CLUSTER_SPECS", "48"))
NUM_OTHERS = int(os.environ.get("SPARSEAGG_CLUSTER_SPECS", "12"))  # of Ray and of the CUDA engine


@pytest.fixture(scope="module")
def addresses():
    with Cluster(max(SERVERS)) as cluster:
        yield cluster.addresses


@pytest.fixture(scope="module")
def clusters(addresses):
    """A cluster for each number of servers and of ranges, all of the same servers."""
    with contextlib.ExitStack() as stack:
        yield with_ranges(
            {servers: stack.enter_context(Cluster(addresses[:servers], reducers=2)) for servers in SERVERS}
        )


@pytest.fixture(scope="module")
def ray_clusters(addresses):
    """The same with Ray, which all of them share."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: make test-ray")
    with ray_session(num_cpus=2), contextlib.ExitStack() as stack:
        options = {"executor": "ray", "reducers": 1, "reducer_cpus": 0}
        yield with_ranges(
            {servers: stack.enter_context(Cluster(addresses[:servers], **options)) for servers in SERVERS}
        )


def with_ranges(clusters, **plan):
    """Copies of clusters that have other numbers of ranges, and the same connections and reducers."""
    found = {}
    for servers, cluster in clusters.items():
        for ranges in RANGES:
            found[servers, ranges] = copy.copy(cluster)
            found[servers, ranges]._plan = dataclasses.replace(cluster._plan, ranges=ranges, **plan)
    return found


@pytest.fixture
def cuda_clusters(clusters, monkeypatch):
    """The same with the CUDA engine, whose device is the host (the test plug-in)."""
    monkeypatch.setenv("SPARSEAGG_CUDA_PLUGIN", plugin("test_plugin"))
    return with_ranges({servers: clusters[servers, 1] for servers in SERVERS}, device="cuda")


def outcome(call):
    """Returns a result's hash, or "failed"."""
    try:
        return digest(call())
    except (sa.errors.FailedPreconditionError, sa.errors.OutOfRangeError):
        return "failed"


def check_bits(clusters, spec, updates, servers=SERVERS):
    expected = outcome(lambda: sa.aggregate(updates, spec))
    for number in servers:
        with clusters[number, 1].create_round(spec) as opened:
            for client_id, (update, weight) in updates.items():
                opened.submit(client_id, update, weight)
            found = {ranges: outcome(clusters[number, ranges].resume(opened.name).finish) for ranges in RANGES}
            stored = clusters[number, RANGES[number % len(RANGES)]].resume(opened.name)
            assert outcome(lambda stored=stored: (stored.start_merge(), stored.result())[1]) == expected, number
        assert found == dict.fromkeys(RANGES, expected), number


def accepted(spec, updates):
    return {
        client_id: (update, weight)
        for client_id, (update, weight) in updates.items()
        if error_of(functools.partial(reference.check_update, spec, as_reference(spec, update, weight))) is None
    }


@pytest.mark.parametrize("seed", range(NUM_SPECS))
def test_random_rounds(clusters, seed):
    check_random(clusters, seed)


@pytest.mark.parametrize("seed", range(NUM_OTHERS))
def test_random_rounds_with_ray(ray_clusters, seed):
    check_random(ray_clusters, seed)


@pytest.mark.parametrize("seed", range(NUM_OTHERS))
def test_random_rounds_with_cuda(cuda_clusters, seed):
    check_random(cuda_clusters, seed)


def check_random(clusters, seed):
    print("seed", seed)
    rng = np.random.default_rng([38, seed])
    spec = random_spec(rng)
    if rng.random() < 0.4:
        spec = with_random_cuts(rng, spec)
    print(spec)
    updates = random_updates(rng, spec, random_pools(rng, spec), int(rng.integers(0, 12)), int(rng.integers(0, 2)))
    check_bits(clusters, spec, accepted(spec, updates), SERVERS[seed % len(SERVERS) :][:1])


KEYS = 20_000  # of an update: large enough for servers to keep it in buckets


def uniform(rng, num_rows):
    return rng.permutation(np.arange(KEYS, dtype=np.uint64)) * np.uint64((num_rows or 1 << 64) // KEYS)


def crowded(rng, num_rows):
    return rng.permutation(np.arange(KEYS, dtype=np.uint64))  # all in one bucket, for all but small num_rows


def two_ends(rng, num_rows):
    """The ranges in between are empty."""
    keys = crowded(rng, num_rows)
    keys[::2] += np.uint64((num_rows or 1 << 64) - KEYS)
    return keys


def repeated(rng, num_rows):
    keys = uniform(rng, num_rows)
    keys[:140] = keys[140:280]
    return keys


@pytest.mark.parametrize("num_rows", [0, 1 << 40])
@pytest.mark.parametrize("width", [3])
@pytest.mark.parametrize("keys_of", [uniform, crowded, two_ends, repeated])
def test_large_updates_in_no_order(clusters, num_rows, width, keys_of):
    """Beside a dense tensor, and clients with one key and with none."""
    rng = np.random.default_rng(41)
    tensors = [
        sa.TensorSpec("s", "float32", num_rows=num_rows, row_width=width),
        sa.TensorSpec("d", "float32", num_rows=300, layout="dense"),
    ]
    updates = {}
    for client in range(7):
        keys = keys_of(rng, num_rows)[: 1 if client == 3 else KEYS]
        rows = rng.standard_normal((len(keys), width)).astype("f4")
        update = {"d": rng.standard_normal(300).astype("f4")}
        if client != 5:
            update["s"] = keys, rows if width > 1 else rows[:, 0]
        updates[f"c{client}"] = update, float(client)
    check_bits(clusters, sa.RoundSpec(tensors, op="mean", weighting="by_weight"), updates, (1, 4))
