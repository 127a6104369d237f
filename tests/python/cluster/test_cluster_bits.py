"""One hash for a round, whatever the numbers of servers and of ranges: that of ``sa.aggregate`` over all updates."""

from __future__ import annotations

import contextlib
import functools

import numpy as np
import pytest
import reference
import sparseagg as sa
from every_client import digest
from golden_cases import cases
from order_rounds import random_order_round
from random_cuts import with_random_cuts
from random_rounds import as_reference, error_of, is_weighted, random_pools, random_spec, random_updates
from sparseagg.cluster import Cluster

SERVERS = (1, 2, 4)
RANGES = (1, 3, 8)
# Privacy and scaling bounds are not for clusters.
GOLDEN = [case for case in cases() if case.clients and case.spec.privacy is None and case.spec.clip is None]


@pytest.fixture(scope="module")
def clusters():
    """A cluster for each number of servers and of ranges, all of the same servers."""
    with contextlib.ExitStack() as stack:
        addresses = stack.enter_context(Cluster(max(SERVERS))).addresses
        yield {
            (servers, ranges): stack.enter_context(Cluster(addresses[:servers], ranges=ranges, reducers=2))
            for servers in SERVERS
            for ranges in RANGES
        }


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
            assert outcome(lambda stored=stored: (stored.close(), stored.result())[1]) == expected, number
        assert found == dict.fromkeys(RANGES, expected), number


def accepted(spec, updates):
    return {
        client_id: (update, weight)
        for client_id, (update, weight) in updates.items()
        if error_of(functools.partial(reference.check_update, spec, as_reference(spec, update, weight))) is None
    }


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case.name)
def test_golden_rounds(clusters, case):
    used = is_weighted(case.spec.tensors, case.spec.weighting)
    updates = {
        client.id: (client.tensors, client.weight if used else None)
        for client in case.clients
        if client.id != case.refused
    }
    if any(tensor.clip is not None for tensor in case.spec.tensors):
        pytest.skip("bounds of a tensor")
    check_bits(clusters, case.spec, updates)


@pytest.mark.parametrize("seed", range(48))
def test_random_rounds(clusters, seed):
    print("seed", seed)
    rng = np.random.default_rng([38, seed])
    spec = random_spec(rng)
    if rng.random() < 0.4:
        spec = with_random_cuts(rng, spec)
    print(spec)
    updates = random_updates(rng, spec, random_pools(rng, spec), int(rng.integers(0, 12)), int(rng.integers(0, 2)))
    check_bits(clusters, spec, accepted(spec, updates), SERVERS[seed % 3 :][:1])


@pytest.mark.parametrize("seed", range(12))
def test_random_order_statistics(clusters, seed):
    print("seed", seed)
    spec, updates, _ = random_order_round(np.random.default_rng([39, seed]))
    print(spec)
    check_bits(clusters, spec, accepted(spec, dict(list(updates.items())[:70])), SERVERS[seed % 3 :][:1])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int32", "int64"])
@pytest.mark.parametrize("layout", ["dense", "auto"])
def test_rows_without_submissions_are_filled(clusters, dtype, layout):
    rng = np.random.default_rng(4)
    fill = 7.0 if "int" in dtype else 0.1
    options = {"return_counts": True, "return_weights": True, "min_contributors": 2}
    if "float" in dtype:
        options["return_moments"] = True
    if layout == "auto":
        options["dense_threshold"] = 0.01
    tensor = sa.TensorSpec("v", dtype, num_rows=200, row_width=2, result_layout=layout, fill=fill)
    spec = sa.RoundSpec([tensor], op="sum", **options)
    updates = {f"c{i}": ((rng.integers(0, 200, 40), rng.integers(-9, 9, (40, 2))), None) for i in range(6)}
    assert sa.aggregate({each: update for each, (update, _) in updates.items()}, spec)["v"].layout == "dense"
    check_bits(clusters, spec, updates)
