"""Order statistics of the engine in this process, held to the reference, to NumPy and to what they promise."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import reference
import sparseagg as sa
from every_client import digest, one
from reference import differences
from sparseagg import errors


def at_one_key(values: list[float], weights: list[float] | None = None, **options: Any) -> Any:
    """The statistic of values that clients, in this order, send for one key."""
    spec = one(options.pop("dtype", "float64"), weighting="by_weight" if weights else "uniform", **options)
    updates = [({"v": ([3], [value])}, 1.0 if weights is None else weights[i]) for i, value in enumerate(values)]
    return sa.aggregate(updates, spec)["v"].values.ravel()[0].item()


def test_median_of_an_even_number_is_half_and_half():
    assert at_one_key([4, 1, 3, 2], op="median") == 2.5
    assert at_one_key([1.5e308, 1.7e308], op="median") == 1.6e308  # the sum is infinite
    assert at_one_key([5e-324, 5e-324], op="median") == 5e-324  # half of it is 0
    assert at_one_key([3, 4], op="median", dtype="int64") == 4  # 3.5, to even
    assert at_one_key([4, 5], op="median", dtype="int64") == 4
    assert at_one_key([2**63 - 1, 2**63 - 3], op="median", dtype="int64") == 2**63 - 2
    assert at_one_key([3, 4], op="median", dtype="int32", result_dtype="float32") == 3.5


def test_weighted_quantile_is_half_and_half_on_equality():
    assert at_one_key([1, 2, 9], [1, 1, 2], op="median") == 5.5
    assert at_one_key([1, 2, 9], [1, 1, 3], op="median") == 9
    assert at_one_key([9, 1, 5], [2, 2, 0], op="median") == 5.0  # half of 1 and 9: no weight, no vote
    assert at_one_key([1, 2, 3, 4], [1, 1, 1, 1], op="quantile", quantile=0.25) == 1.5
    assert at_one_key([1, 2, 3, 4], None, op="quantile", quantile=0.25) == 1.0


def test_keys_of_too_few_values_are_hidden_before_their_nan_counts():
    def keys_and_values(n: int, **options: Any) -> Any:
        spec = one("float64", op="trimmed_mean", on_nonfinite="propagate", **options)
        result = sa.aggregate([{"v": ([3, 5], [[np.nan], [i]])} for i in range(n)], spec)["v"]
        return result.keys.tolist(), result.values.ravel().tolist()

    for absent in ("skip", "zero"):
        options = {"trim_fraction": 0.4, "min_contributors": 5, "absent": absent}
        assert keys_and_values(4, **options) == ([], [])
        keys, values = keys_and_values(5, **options)
        assert keys == [3, 5]
        assert np.isnan(values[0])
        assert values[1] == 2


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("num_clients", [1, 2, 8, 31, 65])
def test_dense_tensors_equal_numpy(dtype, num_clients):
    rng = np.random.default_rng([3, num_clients])
    stacked = rng.standard_normal((num_clients, 40, 3)).astype(dtype)
    updates = [{"v": part} for part in stacked]
    wide = stacked.astype(np.float64)
    for options, expected in [
        ({"op": "median"}, np.median(wide, axis=0)),
        ({"op": "quantile", "quantile": 0.3}, np.quantile(wide, 0.3, axis=0, method="inverted_cdf")),
    ]:
        result = sa.aggregate(updates, one(dtype, 40, 3, layout="dense", **options))["v"]
        np.testing.assert_array_equal(result.values, expected.astype(dtype).reshape(result.values.shape))


REFUSED = {
    "fixed_point": (
        {"op": "median", "numerics": "fixed_point", "max_submissions": 9},
        "tensor 'v': fixed_point merges submissions as they arrive, but median needs all values of a key at once",
    ),
    "no trim": ({"op": "trimmed_mean"}, "tensor 'v': trimmed_mean needs a trim_fraction, in [0, 0.5)"),
    "half": ({"op": "trimmed_mean", "trim_fraction": 0.5}, "trim_fraction 0.5 is not in [0, 0.5)"),
    "negative": ({"op": "trimmed_mean", "trim_fraction": -0.1}, "trim_fraction -0.1 is not in [0, 0.5)"),
    "NaN": ({"op": "trimmed_mean", "trim_fraction": float("nan")}, "trim_fraction nan is not in [0, 0.5)"),
    "no quantile": ({"op": "quantile"}, "the op quantile needs the option quantile, in [0, 1]"),
    "beyond 1": ({"op": "quantile", "quantile": 1.5}, "quantile 1.5 is not in [0, 1]"),
    "modular": ({"dtype": "uint32", "modular": True, "op": "median"}, "modular tensors take the ops sum and union"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_spec_without_a_meaning_is_refused(name):
    options, text = REFUSED[name]
    with pytest.raises(sa.InvalidArgumentError, match=re.escape(text)):
        sa.aggregate([], one(**options))


def test_memory_limit_cannot_be_kept_by_a_fold():
    update = {"v": (np.arange(10_000), np.ones(10_000, np.float32))}
    with pytest.raises(errors.ResourceExhaustedError, match="median needs all values of a key at once"):
        sa.aggregate([update] * 100, one(num_rows=10_000, op="median"), memory_limit=1 << 20)
    sa.aggregate([update] * 100, one(num_rows=10_000), memory_limit=1 << 20)


@pytest.mark.parametrize("num_rows", [15_000, 2**32, 2**40, 0])
@pytest.mark.parametrize(
    "options", [{"op": "median"}, {"op": "trimmed_mean", "trim_fraction": 0.2}], ids=["median", "trim"]
)
def test_large_unsorted_updates_have_the_bits_of_sorted_ones(num_rows, options):
    rng = np.random.default_rng([9, num_rows % 1009])
    pool = np.unique(rng.integers(0, num_rows - 1 if num_rows else 2**64 - 1, 14_000, np.uint64, True))
    spec = one("float32", num_rows, **options)
    sorted_ones, unsorted_ones, expected = {}, {}, {}
    for client in range(9):
        keys = rng.choice(pool, 9_000, replace=False)  # enough for a coarse order of the unsorted ones
        values = rng.standard_normal(9_000).astype(np.float32)
        order = np.argsort(keys)
        unsorted_ones[str(client)] = {"v": (keys, values)}
        sorted_ones[str(client)] = {"v": (keys[order], values[order])}
        expected[str(client)] = reference.Update({"v": (keys, values.reshape(-1, 1))})
    result = sa.aggregate(sorted_ones, spec, threads=2)
    assert differences(spec, expected, result) == []
    assert digest(sa.aggregate(unsorted_ones, spec, threads=2)) == digest(result)


# ---- order statistics of bounded submissions ----


def test_a_factor_is_refused_and_a_refusal_is_not():
    tensors = [sa.TensorSpec("v", "float32", num_rows=9)]
    with pytest.raises(errors.InvalidArgumentError, match=r"clip\.l2 multiplies values, and order statistics choose"):
        sa.Aggregator(sa.RoundSpec(tensors, op="median", clip=sa.ClipSpec(l2=1.0)))
    aggregator = sa.Aggregator(sa.RoundSpec(tensors, op="median", clip=sa.ClipSpec(l2=1.0, on_clip="reject")))
    aggregator.add("a", {"v": ([1], np.array([0.5], np.float32))})
    with pytest.raises(errors.InvalidArgumentError, match="norm"):
        aggregator.add("b", {"v": ([1], np.array([1.5], np.float32))})
    assert aggregator.finish()["v"].values.tolist() == [0.5]
