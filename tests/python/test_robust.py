"""Rules from inner products and distances, against dense implementations that have the vectors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sparseagg as sa
from sparseagg import robust

TOLERANCE = 1e-9


def inspection_of(vectors: np.ndarray, present: np.ndarray | None = None) -> sa.types.Inspection:
    present = vectors != 0 if present is None else present
    clients = tuple(f"client {i:02}" for i in range(len(vectors)))
    with np.errstate(all="ignore"):
        gram = np.sum(vectors[:, None] * vectors, axis=2)
        squared_distances = np.sum((vectors[:, None] - vectors) ** 2, axis=2)
    overlap = present.astype(np.int64) @ present.T.astype(np.int64)
    return sa.types.Inspection(clients, gram, squared_distances, overlap)


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


def mean_distance(vectors: np.ndarray, point: np.ndarray) -> float:
    return float(np.mean([np.linalg.norm(own - point) for own in vectors]))


def dense_geometric_median(vectors: np.ndarray, near: np.ndarray) -> np.ndarray:
    """The smoothed Weiszfeld algorithm from a point near most vectors on; returns the difference from that point."""
    vectors = vectors - near
    eps = 1e-9 * np.median(np.linalg.norm(vectors, axis=1)) or 1e-300
    point = np.zeros(vectors.shape[1])
    for _ in range(3000):
        betas = 1 / np.maximum(eps, np.linalg.norm(vectors - point, axis=1))
        before, point = point, betas @ vectors / betas.sum()
        if np.array_equal(before, point):
            break
    return point


@pytest.mark.parametrize("seed", range(50))
def test_geometric_median_has_the_least_mean_distance(seed):
    rng, vectors = random_vectors(seed, 1)
    chosen = robust.geometric_median(inspection_of(vectors))
    point = chosen.weights @ vectors
    assert math.isclose(chosen.weights.sum(), 1.0, rel_tol=1e-12)
    assert (chosen.weights >= 0).all()
    np.testing.assert_allclose(chosen.scores, [math.dist(point, own) for own in vectors], atol=1e-5 * np.max(vectors))
    least = mean_distance(vectors, point)
    scale = np.median(np.linalg.norm(vectors - np.median(vectors, axis=0), axis=1))
    others = [*vectors, *(point + rng.standard_normal((20, *point.shape)) * scale), np.zeros_like(point)]
    others.append(dense_geometric_median(vectors, np.zeros_like(point)))
    for other in others:
        assert least <= mean_distance(vectors, other) + 1e-5 * scale + 1e-12


def test_krum_and_geometric_median_see_small_differences_beside_a_large_shared_value():
    rng = np.random.default_rng(5)
    for shared in (1.7e9, 1e15):
        for _ in range(40):
            vectors = np.hstack([rng.standard_normal((9, 30)), np.full((9, 1), shared)])
            vectors[[2, 5], :30] += 20
            expected = dense_krum_scores(vectors, 2)
            chosen = robust.krum(inspection_of(vectors), 2)
            assert chosen.scores == pytest.approx(expected, rel=TOLERANCE)
            assert int(np.argmax(chosen.weights)) == int(np.argmin(expected))
            moved = robust.geometric_median(inspection_of(vectors)).weights @ (vectors - vectors[0])
            assert np.linalg.norm(moved - dense_geometric_median(vectors, vectors[0])) < 1e-4


def attacked(seed: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Honest vectors near each other, and f < n / 2 attackers at 10^k or not finite: (all, honest places, f)."""
    print("seed", seed)
    rng = np.random.default_rng([20261129, seed])
    n, d = int(rng.integers(3, 16)), int(rng.integers(1, 12))
    f = int(rng.integers(1, (n - 1) // 2 + 1))
    vectors = rng.standard_normal(d) * rng.choice([0.0, 1.0, 1e6]) + rng.standard_normal((n, d))
    places = rng.permutation(n)
    far = rng.standard_normal((1 if rng.random() < 0.5 else f, d)) * 10.0 ** rng.integers(0, 301)
    if rng.random() < 0.2:
        far[:, 0] = rng.choice([np.nan, np.inf, -np.inf, 1.7e308])
    vectors[places[:f]] = far
    return vectors, np.sort(places[f:]), f


@pytest.mark.parametrize("seed", range(300))
def test_attackers_of_any_size_do_not_move_a_rule(seed):
    vectors, honest, f = attacked(seed)
    n = len(vectors)
    inspection = inspection_of(vectors)
    trusted = inspection.clients[honest[0]]
    middle = vectors[honest].mean(axis=0)
    radius = max(np.linalg.norm(own - middle) for own in vectors[honest])

    def result_of(chosen: robust.ClientWeights) -> np.ndarray:
        counted = chosen.weights > 0
        assert np.isfinite(chosen.weights).all()
        assert (chosen.weights >= 0).all()
        return np.asarray(chosen.weights[counted] @ vectors[counted])

    # The bound of the geometric median: Lopuhaä and Rousseeuw 1991, theorem 2.2; RFA, (7).
    median = result_of(robust.geometric_median(inspection))
    assert np.linalg.norm(median - middle) <= 2 * (n - f) / (n - 2 * f) * radius * 1.001

    tau = float(radius)
    start = {trusted: 1.0}
    for iterations in (1, 3):
        chosen = robust.centered_clipping(inspection, tau, iterations, start)
        assert np.linalg.norm(result_of(chosen) - vectors[honest[0]]) <= iterations * tau * 1.001

    if (vectors[honest[1:]] @ vectors[honest[0]] > 0).any():
        trust = robust.fltrust(inspection, trusted)
        assert np.linalg.norm(result_of(trust)) <= np.linalg.norm(vectors[honest[0]]) * 1.001

    f = min(f, (n - 3) // 2)
    if f < n - len(honest):
        return
    worst = max(np.sum((vectors[j] - vectors[k]) ** 2) for j in honest for k in honest)
    for chosen in (robust.krum(inspection, f), robust.multi_krum(inspection, f, n - f)):
        # An attacker that is chosen is as close to an honest submission as honest ones are to each other.
        for place in np.flatnonzero(chosen.weights):
            if place not in honest:
                assert min(np.sum((vectors[place] - vectors[k]) ** 2) for k in honest) <= (n - f - 2) * worst


def test_weights_of_some_clients_are_weights_of_all():
    inspection = inspection_of(np.random.default_rng(7).standard_normal((7, 3)))
    chosen = robust.geometric_median(inspection.only(["client 01", "client 04"]))
    assert chosen.clients == ("client 01", "client 04")
    assert sorted(chosen) == list(inspection.clients)
    assert len(chosen) == 7
    assert chosen["client 00"] == 0
    assert dict(chosen.items()) == dict(chosen)
    assert sum(chosen.values()) == pytest.approx(1.0)
    with pytest.raises(KeyError):
        chosen["nobody"]


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
    nan = inspection_of(np.array([[np.nan], [np.nan], [2.0]]))
    one_nan = inspection_of(np.array([[1.0], [np.nan], [2.0]]))
    far = inspection_of(np.full((5, 1), 1e200))
    for call, text in (
        (lambda: robust.krum(six, 2), "krum with f=2 needs 2·f + 3 = 7 submissions or more, got 6"),
        (lambda: robust.krum(five, -1), "f must be a number of clients, 0 or more, got -1"),
        (lambda: robust.krum(five, 1.0), "f must be a number of clients, 0 or more, got 1.0"),
        (lambda: robust.krum("x", 1), "krum takes what sparseagg.robust.inspect returns, got 'x'"),
        (lambda: robust.multi_krum(five, 1, 5), "m must be 1 to n - f = 4, got 5"),
        (lambda: robust.multi_krum(five, 1, 0), "m must be 1 to n - f = 4, got 0"),
        (lambda: robust.geometric_median(five, eps=0), "eps must be above 0, got 0"),
        (lambda: robust.geometric_median(empty), "geometric_median needs 1 submissions or more, got 0"),
        (lambda: robust.geometric_median(five, 1e-30), "geometric_median has not reached eps=1e-30 in"),
        (lambda: robust.geometric_median(nan), "geometric_median: half of the submissions are at an infinite distance"),
        (lambda: robust.krum(nan, 0), "krum: all submissions are at an infinite distance from each other"),
        (lambda: robust.fltrust(nan, "client 01"), "the reference client 'client 01' is not of a finite length"),
        (
            lambda: robust.centered_clipping(one_nan, 1, start={"client 01": 1}),
            "start: client 'client 01' is at an inf",
        ),
        (lambda: robust.centered_clipping(far, 1), "half of the submissions are at an infinite distance from zero"),
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
