"""examples/fl4health_sparse_coo.py without FL4Health: lists of arrays in its form, merged as it merges them."""

from __future__ import annotations

import importlib.util

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


@pytest.mark.parametrize("op", ["mean", "coordinate_mean"])
def test_order_of_clients_changes_no_bit(coo, op: str) -> None:
    updates = random_updates(coo, 21)
    expected = [array.tobytes() for array in coo.merge(updates, op)]
    for _ in range(5):
        updates = [*updates[2:], *updates[:2]]
        assert [array.tobytes() for array in coo.merge(updates, op)] == expected


def test_parameters_are_averaged_over_the_clients_that_sent_them(coo) -> None:
    updates = random_updates(coo, 22)
    for name, part in coo.unpack(coo.merge(updates)).items():
        for index, value in zip(part.indices.tolist(), part.values):
            total = weights = 0.0
            for _, packed, examples in updates:
                sent = coo.unpack(packed).get(name)
                at = [] if sent is None else np.flatnonzero((sent.indices == index).all(axis=1))
                if len(at):
                    total, weights = total + examples * float(sent.values[at[0]]), weights + examples
            assert value == pytest.approx(total / weights, rel=1e-6)


def test_lists_of_another_form_are_refused(coo) -> None:
    packed = coo.pack({"w": coo.Part(np.ones(1, np.float32), np.array([[4]]), (5,))})
    other = coo.pack({"w": coo.Part(np.ones(1, np.float32), np.array([[4]]), (6,))})
    with pytest.raises(ValueError, match=r"client b: w has shape \(6,\), not \(5,\)"):
        coo.merge([("a", packed, 1.0), ("b", other, 1.0)])
    with pytest.raises(ValueError, match="3 arrays for 1 names"):
        coo.merge([("a", packed[1:], 1.0)])
    packed[0][0] = np.nan
    with pytest.raises(sa.InvalidArgument, match=r"client 'a': tensor 'w'.* nan"):
        coo.merge([("a", packed, 1.0)])
