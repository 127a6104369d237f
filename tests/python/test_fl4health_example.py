"""examples/fl4health_sparse_coo.py without FL4Health: lists of arrays in its form, merged as it merges them."""

from __future__ import annotations

import importlib.util
import re

import numpy as np
import pytest
import sparseagg as sa
from real_server import REPOSITORY


@pytest.fixture(scope="module")
def coo():
    spec = importlib.util.spec_from_file_location("fl4health_coo", REPOSITORY / "examples/fl4health_sparse_coo.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def random_updates(coo, seed: int) -> list:
    """Clients that each send some entries of some tensors of one, two and three axes."""
    rng = np.random.default_rng(seed)
    shapes = {"conv": (4, 3, 2), "linear": (5, 4), "bias": (6,)}
    updates = []
    for client in range(5):
        parts = {}
        for name, shape in shapes.items():
            dense = np.where(rng.random(shape) < 0.4, rng.standard_normal(shape), 0).astype(np.float32)
            if dense.any():  # as FL4Health: tensors without entries are not sent
                parts[name] = coo.Part(dense[dense.nonzero()], np.stack(dense.nonzero(), axis=1), shape)
        updates.append((f"client-{client}", coo.pack(parts), float(rng.integers(1, 100))))
    return updates


@pytest.mark.parametrize("seed", range(20))
def test_mean_has_the_numbers_of_fl4health(coo, seed: int) -> None:
    print(f"seed {seed}")
    updates = random_updates(coo, seed)
    ours, theirs = coo.unpack(coo.merge(updates, op="mean")), coo.unpack(coo.densified(updates))
    assert ours.keys() == theirs.keys()
    for name, part in theirs.items():
        assert ours[name].shape == part.shape
        assert ours[name].values.dtype == part.values.dtype
        np.testing.assert_array_equal(ours[name].indices, part.indices)
        np.testing.assert_allclose(ours[name].values, part.values, rtol=1e-5, atol=1e-6)


def test_lists_of_another_form_are_refused(coo) -> None:
    packed = coo.pack({"w": coo.Part(np.ones(1, np.float32), np.array([[4]]), (5,))})
    other = coo.pack({"w": coo.Part(np.ones(1, np.float32), np.array([[4]]), (6,))})
    with pytest.raises(ValueError, match=r"client 'b': tensor 'w' has shape \(6,\), unlike most: \(5,\)"):
        coo.merge([("a", packed, 1.0), ("b", other, 1.0)])
    with pytest.raises(ValueError, match="3 arrays for 1 names"):
        coo.merge([("a", packed[1:], 1.0)])
    packed[0][0] = np.nan
    with pytest.raises(sa.InvalidArgumentError, match=r"client 'a': tensor 'w'.* nan"):
        coo.merge([("a", packed, 1.0)])


def changed(packed: list, at: int, array: object) -> list:
    return [*packed[:at], np.array(array), *packed[at + 1 :]]


# Of a client's list [values of a, values of b, indices of a, indices of b, shape of a, shape of b, names].
BAD = {
    "NaN": (0, [np.nan, 1], "'a'.* nan"),
    "index outside": (3, [[7, 0]], r"tensor 'b': index \(7, 0\) is not in shape \(5, 4\)"),
    "index below 0": (2, [[-1], [2]], r"tensor 'a': index \(-1,\) is not in shape \(6,\)"),
    "words in the place of a float": (1, ["x"], "tensor 'b'"),
    "axes": (3, [[1]], "tensor 'b': indices"),
    "index of floats": (2, [[0.5], [1.0]], "tensor 'a': indices"),
    "number of values": (0, [1.0], "tensor 'a'"),
    "words": (0, ["x", "y"], "tensor 'a'"),
    "shape": (5, [5, 5], r"tensor 'b' has shape \(5, 5\), unlike most: \(5, 4\)"),
    "no shape": (5, 5, ""),
    "names": (6, ["a"], "arrays for 1 names"),
    "a name twice": (6, ["a", "a"], "'a'"),
}


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("first", [0, 1, 2])
def test_one_bad_client_is_named_and_the_others_count(coo, what: str, first: int) -> None:
    """Wherever it comes, and with nothing of it."""
    at, array, words = BAD[what]
    packed = coo.pack(
        {
            "a": coo.Part(np.array([1, 2], np.float32), np.array([[0], [2]]), (6,)),
            "b": coo.Part(np.array([3], np.float32), np.array([[4, 1]]), (5, 4)),
        }
    )
    updates = [("one", packed, 1.0), ("bad", changed(packed, at, array), 100.0), ("two", packed, 3.0)]
    updates = updates[first:] + updates[:first]
    refused: dict = {}
    found = coo.unpack(coo.merge(updates, refused=refused))
    wanted = coo.unpack(coo.merge([update for update in updates if update[0] != "bad"]))
    for name, part in wanted.items():
        np.testing.assert_array_equal(found[name].values, part.values)
        np.testing.assert_array_equal(found[name].indices, part.indices)
    assert list(refused) == ["bad"]
    assert re.search(rf"client 'bad': .*{words}|client 'bad'.*{words}", str(refused["bad"])), refused["bad"]
    with pytest.raises(sa.InvalidArgumentError, match="client 'bad'"):
        coo.merge(updates)


def test_weights_that_are_none_are_refused(coo) -> None:
    packed = coo.pack({"a": coo.Part(np.ones(1, np.float32), np.array([[0]]), (6,))})
    for weight in (-1.0, float("nan"), "many", None):
        refused: dict = {}
        merged = coo.merge([("good", packed, 1.0), ("bad", packed, weight)], refused=refused)
        assert coo.unpack(merged)["a"].values.tolist() == [1]
        assert "client 'bad'" in str(refused["bad"])


def test_nobody_left_is_an_empty_list(coo) -> None:
    refused: dict = {}
    assert coo.unpack(coo.merge([("bad", [np.ones(3)], 1.0)], refused=refused)) == {}
    assert list(refused) == ["bad"]
