"""Adapters of unequal rank, layers that some clients lack, pruned rows and smaller models: means over those present."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import sparseagg as sa
from real_server import REPOSITORY


@pytest.fixture(scope="module")
def lora():
    spec = importlib.util.spec_from_file_location("lora_unequal_rank", REPOSITORY / "examples/lora_unequal_rank.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        # The share of sites that have a component: 1, then 2/3 for four of them, then 1/3 for eight. The mean of
        # padded factors has it twice: once for A, once for B.
        ("mean", [1.0] * 4 + [(2 / 3) ** 2] * 4 + [(1 / 3) ** 2] * 8),
        ("product", [1.0] * 4 + [2 / 3] * 4 + [1 / 3] * 8),
        ("coordinate_mean", [1.0] * 16),
    ],
)
def test_bias_of_zero_padding_is_gone_with_coordinate_mean(lora, way: str, expected: list[float]) -> None:
    np.testing.assert_allclose(lora.kept_by_component(way), expected, rtol=1e-12)


def test_padded_factors_are_what_nvflare_calls_naive(lora) -> None:
    rng = np.random.default_rng(3)
    factors = [(rng.standard_normal((rank, 6)), rng.standard_normal((rank, 5))) for rank in (2, 4, 8)]
    weights = [3.0, 1.0, 2.0]
    for way in ("mean", "coordinate_mean"):
        for part, merged in enumerate(lora.merge(way, factors, weights)):
            total, present = np.zeros(merged.shape), np.zeros((len(merged), 1))
            for site, weight in zip(factors, weights):
                total[: len(site[part])] += weight * site[part]
                present[: len(site[part])] += weight
            expected = total / (present if way == "coordinate_mean" else sum(weights))
            np.testing.assert_allclose(merged, expected, rtol=1e-14)


def test_products_are_averaged_before_they_are_cut_to_the_rank(lora) -> None:
    rng = np.random.default_rng(4)
    factors = [(rng.standard_normal((rank, 6)), rng.standard_normal((rank, 5))) for rank in (1, 2)]
    a, b = lora.merge("product", [*factors, (np.zeros((3, 6)), np.zeros((3, 5)))], [1.0, 2.0, 1.0])
    mean = (factors[0][1].T @ factors[0][0] + 2 * factors[1][1].T @ factors[1][0]) / 4  # of rank 3
    np.testing.assert_allclose(b.T @ a, mean, atol=1e-12)


def test_training_without_the_bias_is_faster(lora, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lora, "ROUNDS", 12)
    task = lora.Task(1)
    accuracy = {way: lora.train(task, way, 1) for way in lora.WAYS}
    assert accuracy["mean"] + 0.01 < accuracy["coordinate_mean"] < accuracy["product"], accuracy


def test_layers_that_a_client_lacks_are_averaged_over_the_others() -> None:
    tensors = [sa.TensorSpec("shared", "float32", num_rows=2, op="mean"), sa.TensorSpec("head", "float32", num_rows=3)]
    spec = sa.RoundSpec(tensors, op="coordinate_mean", weighting="by_weight", return_counts=True)
    updates = {
        "with head": ({"shared": [1.0, 2.0], "head": [4.0, 8.0, 0.0]}, 1.0),
        "without": ({"shared": [5.0, 6.0]}, 3.0),
        "pruned": ({"shared": [1.0, 2.0], "head": ([1], [2.0])}, 2.0),  # rows 0 and 2 are pruned
    }
    merged = sa.aggregate(updates, spec)
    np.testing.assert_array_equal(merged["shared"].values, np.array([3.0, 4.0], np.float32))
    assert merged["head"].values.tolist() == [4.0, 4.0, 0.0]  # row 2 was sent, as 0
    assert merged["head"].counts.tolist() == [1, 2, 1]
