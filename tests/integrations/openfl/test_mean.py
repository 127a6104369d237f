"""examples/openfl_mean.py in OpenFL's real tensor database, beside OpenFL's own weighted average."""

import pathlib
import sys

import numpy as np
import pytest
import sparseagg as sa
from openfl.databases import TensorDB
from openfl.federated import Plan
from openfl.interface.aggregation_functions import WeightedAverage
from openfl.utilities import LocalTensor, TensorKey, change_tags

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "examples"))
from openfl_mean import ReproducibleMean

SEED = 3
NAMES = [f"hospital-{number}" for number in range(6)]
WEIGHTS = dict(zip(NAMES, (0.05, 0.1, 0.15, 0.2, 0.2, 0.3)))


def tensors(dtype="float32", shape=(31, 17)):
    rng = np.random.default_rng(SEED)
    return {name: (rng.standard_normal(shape) * 10).astype(dtype) for name in NAMES}


def aggregate(arrays, order, function):
    """What the aggregator computes when its dict of collaborators has this order."""
    database = TensorDB()
    for name in order:
        tags = change_tags(("trained",), add_field=name)
        database.cache_tensor({TensorKey("layer", "agg", 0, False, tags): arrays[name]})
    key = TensorKey("layer", "agg", 0, False, ("trained",))
    return database.get_aggregated_tensor(key, {name: WEIGHTS[name] for name in order}, function)


def in_float64(arrays):
    total = np.zeros(arrays[NAMES[0]].shape)
    for name in NAMES:
        total += WEIGHTS[name] * arrays[name].astype(np.float64)
    return total / sum(WEIGHTS.values())


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("shape", [(31, 17), (5,), (1, 1)])
def test_mean_is_that_in_float64_rounded_once(dtype, shape):
    arrays = tensors(dtype, shape)
    found = aggregate(arrays, NAMES, ReproducibleMean())
    np.testing.assert_array_equal(found, in_float64(arrays).astype(dtype))
    assert (found.dtype, found.shape) == (np.dtype(dtype), shape)


def test_integers_give_float64_as_openfl_does():
    arrays = {name: array.astype(np.int64) for name, array in tensors().items()}
    found = aggregate(arrays, NAMES, ReproducibleMean())
    assert found.dtype == aggregate(arrays, NAMES, WeightedAverage()).dtype
    np.testing.assert_array_equal(found, in_float64(arrays))


def test_a_bad_collaborator_is_named():
    ones = np.ones((2, 2), np.float32)
    for bad, words in ((ones[:1], "shape"), (ones * np.nan, "nan")):
        local = [LocalTensor("site-1", ones, 0.5), LocalTensor("site-2", bad, 0.5)]
        with pytest.raises(sa.SparseaggError, match=f"site-2.*{words}"):
            ReproducibleMean()(local, iter(()), "layer", 3, ("trained",))


def test_plan_builds_it():
    assert isinstance(Plan.build(template="openfl_mean.ReproducibleMean", settings={}), ReproducibleMean)
