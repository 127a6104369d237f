"""Random specs and updates against the reference, bit for bit and refusal for refusal, in random chunks and orders."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import reference
import sparseagg as sa
from random_rounds import as_reference, error_of, random_pools, random_spec, random_update, weight_for
from reference import differences


@pytest.mark.parametrize("seed", range(60))
def test_round_random_updates_equal_the_reference(server, seed):
    print("seed", seed)
    rng = np.random.default_rng([20261121, seed])
    spec = random_spec(rng)
    print(spec)
    names = [f"client-{i}" for i in range(rng.integers(0, 12))]
    pools = random_pools(rng, spec)
    updates = {name: random_update(rng, spec, pools) for name in names}
    light = rng.random() < 0.1
    drawn = {name: float(rng.choice([0, 0, 0, 1]) if light else rng.integers(1, 8)) for name in names}
    weights = {name: weight_for(spec, weight) for name, weight in drawn.items()}
    expected = {name: as_reference(spec, updates[name], weights[name]) for name in names}
    refusals = {name: error_of(functools.partial(reference.check_update, spec, expected[name])) for name in names}
    accepted = {name: update for name, update in expected.items() if refusals[name] is None}
    failure = error_of(lambda: reference.merge(spec, accepted))

    rng.shuffle(names)
    with sa.Client(server.address, chunk_bytes=int(rng.integers(100, 2000))) as client:
        opened = client.create_round(spec)
        for name in names:
            resumable = bool(rng.random() < 0.5)
            refused = error_of(lambda: opened.submit(name, updates[name], weights[name], resumable=resumable))  # noqa: B023
            if len(spec.tensors) == 1:
                assert refused == refusals[name], name
            else:  # with more, it is open which of two flaws is met first
                assert (refused is None) == (refusals[name] is None), name
        rng.shuffle(names)
        at_once = {name: (updates[name], weights[name]) for name in names if name in accepted}
        if failure is not None:
            assert error_of(opened.finish) is sa.RoundFailedError
            assert error_of(lambda: client.aggregate(at_once, spec)) is failure
            return
        for result in (opened.finish(), client.aggregate(at_once, spec)):
            assert differences(spec, accepted, result) == []
