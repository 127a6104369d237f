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


ONE = np.ones((2, 2), np.float32)


def call(*tensors):
    """The mean of tensors in the order of their collaborators, which are named in the order given."""
    local = [LocalTensor(f"site-{number}", tensor, 0.5) for number, tensor in enumerate(tensors)]
    return ReproducibleMean()(local, iter(()), "layer", 3, ("trained",))


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (ONE[:1], "of shape (1, 2), not float32 of shape (2, 2)"),
        (ONE.astype("f8"), "is float64"),
        (ONE * np.nan, "nan"),
        (np.array([[np.inf, 1], [1, 1]], np.float32), "inf"),
        (np.full((2, 2), "x"), "<U1"),
    ],
)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_one_bad_collaborator_is_left_out_and_named(bad, words, at, caplog):
    tensors = [ONE, 3 * ONE]
    tensors.insert(at, bad)
    np.testing.assert_array_equal(call(*tensors), 2 * ONE)
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"collaborator 'site-{at}'" in line
    assert "tensor 'layer'" in line
    assert words in line


def test_collaborator_that_comes_twice_counts_once(caplog):
    local = [LocalTensor("a", ONE, 0.5), LocalTensor("a", 3 * ONE, 0.5)]
    np.testing.assert_array_equal(ReproducibleMean()(local, iter(()), "layer", 3, ("trained",)), ONE)
    assert "collaborator 'a' comes twice" in caplog.text


@pytest.mark.parametrize(("tensors", "words"), [([], "no collaborators"), ([ONE * 1j], "complex")])
def test_without_a_good_tensor_the_reason_is_raised(tensors, words):
    with pytest.raises(sa.InvalidArgumentError, match=words):
        call(*tensors)


def test_axes_of_length_1_make_no_difference():
    found = call(np.float32(1), np.array([3], np.float32), np.array(5, np.float32))
    np.testing.assert_array_equal(found, np.float32(3))
    assert found.shape == ()


def test_values_that_most_have_alike_stay_as_with_openfl(caplog):
    mask = np.triu(np.full((3, 3), -np.inf, np.float32), 1)
    sites = [mask + np.tri(3, dtype=np.float32) * site for site in (1, 2, 3)]
    sites[2][0, 1] = 7  # finite in one
    for site in sites:
        site[2, 2] = np.nan
    found = call(*sites)
    wanted = mask + np.tri(3) * 2
    wanted[2, 2] = np.nan
    np.testing.assert_array_equal(found, wanted)
    local = [LocalTensor(f"site-{number}", tensor, 0.5) for number, tensor in enumerate(sites)]
    np.testing.assert_allclose(WeightedAverage()(local, iter(()), "layer", 3, ("trained",)), wanted)
    assert not caplog.records
    sites[0][1, 2] = np.inf
    np.testing.assert_array_equal(call(*sites)[2, :2], [2.5, 2.5])
    assert "collaborator 'site-0'" in caplog.text


def test_plan_builds_it():
    assert isinstance(Plan.build(template="sparseagg.openfl.ReproducibleMean", settings={}), ReproducibleMean)
