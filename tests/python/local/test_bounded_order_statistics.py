"""Order statistics of bounded submissions."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import reference
import sparseagg as sa
from order_rounds import random_order_round
from random_rounds import error_of
from reference import differences
from sparseagg import errors


@pytest.mark.parametrize("batch", range(8))
def test_random_round_has_the_bits_of_the_reference(batch):
    compared = 0
    for seed in range(25 * batch, 25 * batch + 25):
        print("seed", seed)
        rng = np.random.default_rng([20261128, seed])
        spec, updates, expected = random_order_round(rng)
        (tensor,) = spec.tensors
        if "float" not in tensor.dtype or spec.aggregation_of(tensor).on_nonfinite == "propagate":
            continue
        keys = {"max_keys": int(rng.choice([1, 2, 5]))} if tensor.layout == "sparse" else {}
        clip = sa.ClipSpec(linf=float(rng.choice([0.01, 0.5, 2.0])), **keys)
        spec = dataclasses.replace(spec, clip=clip)
        error = error_of(lambda: reference.merge(spec, expected))  # noqa: B023
        if error is not None:
            with pytest.raises(error):
                sa.aggregate(updates, spec)
            continue
        assert differences(spec, expected, sa.aggregate(updates, spec)) == []
        compared += 1
    assert compared > 0


def test_a_factor_is_refused_and_a_refusal_is_not():
    tensors = [sa.TensorSpec("v", "float32", num_rows=9)]
    with pytest.raises(errors.InvalidArgumentError, match=r"clip\.l2 multiplies values, and order statistics choose"):
        sa.Aggregator(sa.RoundSpec(tensors, op="median", clip=sa.ClipSpec(l2=1.0)))
    aggregator = sa.Aggregator(sa.RoundSpec(tensors, op="median", clip=sa.ClipSpec(l2=1.0, on_clip="reject")))
    aggregator.add("a", {"v": ([1], np.array([0.5], np.float32))})
    with pytest.raises(errors.InvalidArgumentError, match="norm"):
        aggregator.add("b", {"v": ([1], np.array([1.5], np.float32))})
    assert aggregator.finish()["v"].values.tolist() == [0.5]
