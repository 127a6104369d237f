"""Rules from inner products, against dense implementations that have the vectors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sparseagg as sa
from sparseagg import robust

TOLERANCE = 1e-9


def inspection_of(vectors: np.ndarray, present: np.ndarray | None = None) -> sa.Inspection:
    present = vectors != 0 if present is None else present
    clients = tuple(f"client {i:02}" for i in range(len(vectors)))
    return sa.Inspection(clients, vectors @ vectors.T, present.astype(np.int64) @ present.T.astype(np.int64))


def random_vectors(seed: int, least: int = 5) -> tuple[np.random.Generator, np.ndarray]:
    """Sparse vectors, of which some are far off, some zero and some equal."""
    print("seed", seed)
    rng = np.random.default_rng([20261127, seed])
    n, d = int(rng.integers(least, 14)), int(rng.integers(1, 30))
    vectors = rng.standard_normal((n, d)) * (rng.random((n, d)) < rng.choice([0.3, 1.0]))
    vectors[rng.random(n) < 0.2] *= 100
    vectors[rng.random(n) < 0.1] = 0
    if rng.random() < 0.3:
        vectors[1] = vectors[0]
    return rng, vectors


def dense_krum_scores(vectors: np.ndarray, f: int) -> list[float]:
    scores = []
    for j, own in enumerate(vectors):
        squares = sorted(float(np.sum((own - other) ** 2)) for k, other in enumerate(vectors) if k != j)
        scores.append(sum(squares[: len(vectors) - f - 2]))
    return scores


@pytest.mark.parametrize("seed", range(50))
def test_krum_chooses_what_the_dense_rule_does(seed):
    rng, vectors = random_vectors(seed)
    n = len(vectors)
    f = int(rng.integers(0, (n - 3) // 2 + 1))
    expected = dense_krum_scores(vectors, f)
    chosen = robust.krum(inspection_of(vectors), f)
    assert chosen.scores == pytest.approx(expected, rel=TOLERANCE, abs=1e-9)
    assert sorted(chosen.weights) == [0.0] * (n - 1) + [1.0]
    assert expected[int(np.argmax(chosen.weights))] == pytest.approx(min(expected), rel=TOLERANCE, abs=1e-9)
    m = int(rng.integers(1, n - f + 1))
    several = robust.multi_krum(inspection_of(vectors), f, m)
    assert sorted(several.weights) == [0.0] * (n - m) + [1.0] * m
    worst = max(expected[k] for k in range(n) if several.weights[k] == 1)
    assert worst == pytest.approx(sorted(expected)[m - 1], rel=TOLERANCE, abs=1e-9)


def test_krum_of_equal_scores_takes_the_lowest_ids():
    assert robust.krum(inspection_of(np.ones((5, 2))), 1)["client 00"] == 1
    assert robust.multi_krum(inspection_of(np.ones((5, 2))), 1, 2).weights.tolist() == [1, 1, 0, 0, 0]


@pytest.mark.parametrize("seed", range(50))
def test_geometric_median_is_that_of_the_dense_rule(seed):
    rng, vectors = random_vectors(seed, 1)
    eps, iterations = float(rng.choice([0.1, 1.0, 1e-3])), int(rng.integers(1, 20))
    centre = vectors.mean(axis=0)
    for _ in range(iterations):
        betas = [1 / max(eps, math.dist(centre, own)) for own in vectors]
        centre = sum(beta * own for beta, own in zip(betas, vectors)) / sum(betas)
    chosen = robust.geometric_median(inspection_of(vectors), iterations, eps)
    assert math.isclose(chosen.weights.sum(), 1.0, rel_tol=1e-12)
    scale = np.abs(vectors).max() or 1.0
    np.testing.assert_allclose(chosen.weights @ vectors, centre, atol=1e-5 * scale)
    np.testing.assert_allclose(chosen.scores, [math.dist(centre, own) for own in vectors], atol=1e-5 * scale)


def test_geometric_median_ignores_one_far_client():
    vectors = np.vstack([np.random.default_rng(3).standard_normal((9, 20)), np.full((1, 20), 1e6)])
    chosen = robust.geometric_median(inspection_of(vectors))
    assert chosen["client 09"] < 1e-4
    assert np.linalg.norm(chosen.weights @ vectors - vectors[:9].mean(axis=0)) < 10


@pytest.mark.parametrize("seed", range(50))
def test_centered_clipping_is_that_of_the_dense_rule(seed):
    rng, vectors = random_vectors(seed, 1)
    n = len(vectors)
    radius, iterations = float(rng.choice([0.1, 3.0, 50.0])), int(rng.integers(1, 8))
    start = {} if rng.random() < 0.5 else {"client 00": 0.25}
    centre = (0.25 if start else 0.0) * vectors[0]
    for _ in range(iterations):
        steps = [(own - centre) * min(1.0, radius / (np.linalg.norm(own - centre) or 1e-300)) for own in vectors]
        centre = centre + sum(steps) / n
    chosen = robust.centered_clipping(inspection_of(vectors), radius, iterations, start or None)
    scale = np.abs(vectors).max() or 1.0
    np.testing.assert_allclose(chosen.weights @ vectors, centre, atol=1e-6 * scale)
    assert (chosen.weights >= 0).all()
    assert chosen.weights.sum() <= 1 + 1e-12


@pytest.mark.parametrize("seed", range(50))
def test_fltrust_is_that_of_the_dense_rule(seed):
    rng, vectors = random_vectors(seed, 2)
    reference = int(rng.integers(len(vectors)))
    vectors[reference, 0] = 1.5  # not zero
    trusted = vectors[reference]
    scores, terms = [], []
    for k, own in enumerate(vectors):
        lengths = np.linalg.norm(own), np.linalg.norm(trusted)
        cosine = float(own @ trusted / (lengths[0] * lengths[1])) if lengths[0] else 0.0
        if k != reference and lengths[0]:
            scores.append(max(0.0, cosine))
            terms.append(max(0.0, cosine) * lengths[1] / lengths[0] * own)
    inspection = inspection_of(vectors)
    if sum(scores) == 0:
        with pytest.raises(sa.InvalidArgumentError, match="no submission points"):
            robust.fltrust(inspection, inspection.clients[reference])
        return
    chosen = robust.fltrust(inspection, inspection.clients[reference])
    assert chosen.weights[reference] == 0
    np.testing.assert_allclose(chosen.weights @ vectors, sum(terms) / sum(scores), rtol=1e-7, atol=1e-9)


def test_weights_are_a_mapping_and_a_table():
    vectors = np.array([[1.0, 0, 0], [1, 1, 0], [1, 1, 1], [1, 0, 1], [9, 9, 9]])
    chosen = robust.krum(inspection_of(vectors), 1)
    assert dict(chosen) == {f"client 0{k}": float(k == np.argmax(chosen.weights)) for k in range(5)}
    assert dict(chosen.items()) == dict(chosen)
    assert len(chosen) == 5
    assert "client 02" in chosen
    assert "nobody" not in chosen
    assert chosen.shared()[1].tolist() == [0.5, 1.0, 1.0, 0.5, 1.0]
    lines = str(chosen).splitlines()
    assert len(lines) == 6
    assert lines[1].startswith("client 00: ")
    assert lines[1].endswith("  1  100 %")


def test_wrong_arguments_are_refused():
    five, six = inspection_of(np.eye(5)), inspection_of(np.eye(6))
    empty = inspection_of(np.zeros((0, 3)))
    nan = inspection_of(np.array([[1.0], [np.nan], [2.0]]))
    for call, text in (
        (lambda: robust.krum(six, 2), "krum with f=2 needs 2·f + 3 = 7 submissions or more, got 6"),
        (lambda: robust.krum(five, -1), "f must be a number of clients, 0 or more, got -1"),
        (lambda: robust.krum(five, 1.0), "f must be a number of clients, 0 or more, got 1.0"),
        (lambda: robust.krum("x", 1), "krum takes what Round.inspect returns, got 'x'"),
        (lambda: robust.multi_krum(five, 1, 5), "m must be 1 to n - f = 4, got 5"),
        (lambda: robust.multi_krum(five, 1, 0), "m must be 1 to n - f = 4, got 0"),
        (lambda: robust.geometric_median(five, 0), "iterations must be 1 or more, got 0"),
        (lambda: robust.geometric_median(five, eps=0), "eps must be above 0, got 0"),
        (lambda: robust.geometric_median(empty), "geometric_median needs 1 submissions or more, got 0"),
        (lambda: robust.geometric_median(nan), "the inner products of client 'client 01' are not finite"),
        (lambda: robust.centered_clipping(five, -1), "radius must be above 0, got -1"),
        (lambda: robust.centered_clipping(five, 1, start={"x": 1}), "start: client 'x' has no submission"),
        (lambda: robust.centered_clipping(five, 1, start={"client 00": -1}), "start: the weight of client 'client 00'"),
        (lambda: robust.fltrust(five, "x"), "reference_client: client 'x' has no submission"),
        (
            lambda: robust.fltrust(inspection_of(np.zeros((2, 2))), "client 00"),
            "the reference client 'client 00' is zero",
        ),
        (lambda: robust.fltrust(five, "client 00"), "no submission points as that of 'client 00' does"),
    ):
        with pytest.raises(sa.InvalidArgumentError) as caught:
            call()
        assert text in str(caught.value)
