"""Bounds on submissions, against the reference bit for bit: in this process, on the CPU and on the CUDA engine."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import reference
import sparseagg as sa
from random_clips import with_random_clips
from random_rounds import check_in_process, random_spec


def summary_of(clipped: list[reference.Clipped]) -> sa.types.ClipSummary:
    factors = [0] * 16
    for each in clipped:
        if each.factor < 1:
            factors[min(15, next(b for b in range(2000) if each.factor >= 2.0 ** -(b + 1)))] += 1
    return sa.types.ClipSummary(
        num_clipped=sum(each.factor < 1 or each.linf or each.max_keys for each in clipped),
        num_l2=sum(each.factor < 1 for each in clipped),
        num_linf=sum(each.linf for each in clipped),
        num_max_keys=sum(each.max_keys for each in clipped),
        factors=tuple(factors),
    )


@pytest.mark.parametrize("batch", range(10))
def test_clip_random_rounds_equal_the_reference(on_host, batch):
    met: collections.Counter[str] = collections.Counter()
    for seed in range(30 * batch, 30 * batch + 30):
        check_round(seed, met)
    assert all(met[bound] > 0 for bound in ("l2", "linf", "max_keys", "refused")), met


def check_round(seed: int, met: collections.Counter[str]) -> None:
    print("seed", seed)
    rng = np.random.default_rng([20261127, seed])
    spec = None
    while spec is None:
        spec = with_random_clips(rng, random_spec(rng))
    for device in ("cpu", "cuda"):
        accepted, num_refused, result = check_in_process(rng, spec, device)
        met["refused"] += num_refused
        if result is None:
            continue
        counts = result.info.clip or summary_of([])  # None where all bounds are infinite
        assert counts == summary_of([reference.clip(spec, update) for update in accepted.values()])
        met.update({"l2": counts.num_l2, "linf": counts.num_linf, "max_keys": counts.num_max_keys})


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_clip_with_weights_rounds_the_factor_before_the_weight(on_host, device):
    # 5·(1/5) is 1 before it is weighted; 0.3·(1/5)·3 depends on the order of the products.
    spec = sa.RoundSpec([sa.TensorSpec("v", "float64", num_rows=9)], weighting="by_weight", clip=sa.ClipSpec(l2=1.0))
    rows = np.array([3.0, 4.0])
    result = sa.aggregate({"a": ({"v": ([1, 2], rows)}, 0.7)}, spec, device=device)
    assert result["v"].values.tolist() == [0.7 * (3.0 * 0.2), 0.7 * (4.0 * 0.2)]
    assert 0.7 * (3.0 * 0.2) != (0.7 * 0.2) * 3.0


def test_clip_refuses_arrays_on_a_device(library):
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=9)], clip=sa.ClipSpec(l2=1.0))
    aggregator = sa.Aggregator(spec, device="cuda")
    update = {"v": (library.array(np.array([1], np.int64)), library.array(np.array([1], np.float32)))}
    with pytest.raises(sa.errors.UnimplementedError, match="copy it to the host first"):
        aggregator.add("a", update)


def test_clip_merged_aggregators_add_their_counts():
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=9)], clip=sa.ClipSpec(l2=1.0, linf=3.0))
    one, other = sa.Aggregator(spec), sa.Aggregator(spec)
    one.add("a", {"v": ([1], np.array([4], np.float32))})
    other.add("b", {"v": ([1], np.array([0.5], np.float32))})
    other.add("c", {"v": ([1], np.array([2], np.float32))})
    assert other.withdraw("b")
    one.merge(other)
    result = one.finish()
    assert result["v"].values.tolist() == [2.0]
    assert (result.info.clip.num_clipped, result.info.clip.num_l2, result.info.clip.num_linf) == (2, 2, 1)
