"""ReproducibleMean in OpenFL's real tensor database, beside OpenFL's own weighted average."""

import itertools

import numpy as np
import pytest
import sparseagg as sa
from openfl.databases import TensorDB
from openfl.federated import Plan
from openfl.interface.aggregation_functions import WeightedAverage
from openfl.utilities import LocalTensor, TensorKey, change_tags
from sparseagg.openfl import ReproducibleMean

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


def test_order_of_collaborators_changes_no_bit_of_ours():
    arrays = tensors()
    orders = list(itertools.islice(itertools.permutations(NAMES), 0, 720, 72))
    ours = {aggregate(arrays, order, ReproducibleMean()).tobytes() for order in orders}
    stock = {aggregate(arrays, order, WeightedAverage()).tobytes() for order in orders}
    print(f"seed {SEED}: {len(orders)} orders, {len(ours)} results of ours, {len(stock)} of WeightedAverage")
    assert len(ours) == 1
    assert len(stock) > 1


def test_integers_give_float64_as_openfl_does():
    arrays = {name: array.astype(np.int64) for name, array in tensors().items()}
    found = aggregate(arrays, NAMES, ReproducibleMean())
    assert found.dtype == aggregate(arrays, NAMES, WeightedAverage()).dtype
    np.testing.assert_array_equal(found, in_float64(arrays))


def test_tensor_without_values():
    arrays = {name: np.zeros((0, 3), np.float32) for name in NAMES}
    assert aggregate(arrays, NAMES, ReproducibleMean()).shape == (0, 3)


@pytest.mark.parametrize(
    ("locals_of", "words"),
    [
        (lambda one: [], "no collaborators"),
        (lambda one: [LocalTensor("a", one, 0.5), LocalTensor("b", one[:1], 0.5)], "collaborator 'b'"),
        (lambda one: [LocalTensor("a", one, 0.5), LocalTensor("b", one.astype("f8"), 0.5)], "float64"),
        (lambda one: [LocalTensor("a", one, 0.5), LocalTensor("a", one, 0.5)], "twice"),
        (lambda one: [LocalTensor("a", one * np.nan, 1.0)], "nan"),
    ],
)
def test_bad_tensors_are_named(locals_of, words):
    one = np.ones((2, 2), np.float32)
    with pytest.raises(sa.InvalidArgument, match=words):
        ReproducibleMean()(locals_of(one), iter(()), "layer", 3, ("trained",))


def test_plan_builds_it():
    assert isinstance(Plan.build(template="sparseagg.openfl.ReproducibleMean", settings={}), ReproducibleMean)
