"""Robust rules for rounds: weights for the clients of a sealed round, from inner products and distances alone.

    rnd.seal()
    choice = sa.robust.multi_krum(sa.robust.inspect(rnd), f=2, m=6)
    print(choice)  # each client's weight and score, and the share of its keys that others have, too
    result = rnd.finish(client_weights=choice)

A rule needs no vectors: norms, angles and distances of the submissions, and of all their linear combinations, follow
from the matrices of an ``Inspection``. The rules are deterministic, and treat the clients in ascending order of ids.

One client never stops a rule. A submission at an infinite distance (a square beyond float64, NaN or an infinity) gets
weight 0 and counts as one of the f that may be malicious.

=====================  ============================================  ==========================
rule                   the result is                                 op of the round
=====================  ============================================  ==========================
``krum``               one submission                                any
``multi_krum``         the merge of m submissions                    any; "mean" in the paper
``geometric_median``   Σ c_k·v_k, with Σ c_k = 1                     "mean" or "sum"
``centered_clipping``  Σ c_k·v_k, with Σ c_k ≤ 1                     "sum"
``fltrust``            Σ c_k·v_k                                     "sum"
=====================  ============================================  ==========================

The factors of the last three are for the weighting "uniform". (With "by_weight", each is multiplied by what its client
says.) ``mean_divisor="fixed"`` with ``fixed_divisor=1`` makes a "mean" of such a sum. "coordinate_mean" is not what the
papers compute: it averages each key over those who list it.

A key that a submission does not list is a zero of its vector. So submissions of disjoint keys are far from each other
however honest they are, and two that list few keys are close (arXiv 2505.01454). Look at ``ClientWeights.overlap``
before you believe a distance.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sparseagg._internal.base.arguments import Timeout, checked_integer, checked_number, shown
from sparseagg._internal.results.inspection import Inspection
from sparseagg.errors import InvalidArgumentError

__all__ = ["ClientWeights", "centered_clipping", "fltrust", "geometric_median", "inspect", "krum", "multi_krum"]

_Floats = npt.NDArray[np.float64]

_MOST_SQUARED = 1e300  # a larger squared distance is infinite
_MOST_STEPS = 500  # of Newton's method; hostile inputs have needed 42


def inspect(rnd: Any, tensors: Sequence[str] | None = None, timeout: Timeout = None) -> Any:
    """Returns inner products and distances of the submissions of the sealed round. The round stays as it is.

    The rules of this module make weights of them, for ``Round.finish``. The cost grows with
    the square of the number of submissions: 60 of 100 000 keys take about two seconds.

    Args:
        rnd: a sealed round; of ``sparseagg.aio``, for a coroutine.
        tensors: names of tensors of floats; None for all of them. Inner products and shared keys are over all these
            tensors together.
        timeout: of the whole operation, in seconds or as a timedelta; None for no limit.

    Raises:
        InvalidArgumentError: a tensor is unknown or not of floats, or the round has more than 4096 submissions.
        FailedPreconditionError: the round is not sealed; or a tensor has merged submissions when they arrived, as
            it does with the numerics "binned" and with the ops "min" and "max".
        PermissionDeniedError: the credential is neither of an admin nor of a coordinator.
        UnimplementedError: the server is older than this method.
        TimeoutError: (``DeadlineExceededError``) after ``timeout``.
    """
    return rnd._inspect(tensors, timeout)


@dataclasses.dataclass(frozen=True, eq=False)
class ClientWeights(Mapping[str, float]):
    """The weights that a rule gives to clients, for ``Round.finish(client_weights=…)``; a mapping from their ids.

    The mapping also has weight 0 for the clients that ``Inspection.only`` has left out.

    ``str()`` of it is a table of one line for each client.

    Attributes:
        rule: name of the function.
        clients: n client ids in ascending order.
        weights: of shape (n,), each 0 or more.
        scores: of shape (n,): what the rule has judged the clients by; see the rules.
        overlap: of the inspection, of shape (n, n): the number of keys that two submissions share.
        left_out: of the inspection.
    """

    rule: str
    clients: tuple[str, ...]
    weights: _Floats
    scores: _Floats
    overlap: npt.NDArray[np.int64]
    left_out: tuple[str, ...] = ()

    def __getitem__(self, client_id: str) -> float:
        if client_id in self.left_out:
            return 0.0
        if client_id not in self.clients:
            raise KeyError(client_id)
        return float(self.weights[self.clients.index(client_id)])

    def __iter__(self) -> Iterator[str]:
        return iter(self.clients + self.left_out)

    def __len__(self) -> int:
        return len(self.clients) + len(self.left_out)

    def items(self) -> Any:  # the mixin's would look for each client
        """Returns the pairs of client id and weight."""
        return {**dict(zip(self.clients, self.weights.tolist())), **dict.fromkeys(self.left_out, 0.0)}.items()

    def shared(self) -> _Floats:
        """Returns the shares of keys, of shape (n, n): [j, k] is the part of the keys of j that k has, too.

        A submission without keys shares all of them.
        """
        own = np.diagonal(self.overlap)[:, None].astype(np.float64)
        return np.divide(self.overlap, own, out=np.ones(self.overlap.shape), where=own > 0)

    def __str__(self) -> str:
        lines = [f"{self.rule}: weight, score, number of keys, share of them that the median of the others has"]
        shared = self.shared()
        for place, client_id in enumerate(self.clients):
            others = np.delete(shared[place], place)
            share = f"{100 * np.median(others):.0f} %" if others.size else "-"
            weight, score, keys = self.weights[place], self.scores[place], self.overlap[place, place]
            lines.append(f"{client_id}: {weight:.6g}  {score:.6g}  {keys}  {share}")
        return "\n".join(lines)


def krum(inspection: Inspection, f: int) -> ClientWeights:
    """Chooses the submission that is closest to its n − f − 2 nearest others.

    Blanchard et al. 2017, "Machine Learning with Adversaries", arXiv 1703.02757. The score of client j is the sum of
    the n − f − 2 smallest squared distances ‖v_j − v_k‖² to other clients. The lowest score wins; of equal ones, the
    lowest client id. Fewer infinite distances among the n − f − 2 win before that, so that more than f submissions
    beyond float64 do not hide the others.

    Args:
        inspection: of n clients.
        f: the most clients that may be malicious.

    Returns:
        Weight 1 for the winner, 0 for all others. ``scores``: as above.

    Raises:
        InvalidArgumentError: n < 2·f + 3, or all distances are infinite.
    """
    return _chosen("krum", inspection, f, 1)


def multi_krum(inspection: Inspection, f: int, m: int) -> ClientWeights:
    """Chooses the m submissions of the lowest scores of ``krum``.

    Args:
        inspection: of n clients.
        f: the most clients that may be malicious.
        m: how many to choose, 1 to n − f. Fewer, if fewer are at a finite distance from the first one.

    Returns:
        Weight 1 for each of the m, 0 for all others. With the op "mean", the result is their average. ``scores``: of
        ``krum``.

    Raises:
        InvalidArgumentError: n < 2·f + 3, m is out of range, or all distances are infinite.
    """
    return _chosen("multi_krum", inspection, f, m)


def geometric_median(inspection: Inspection, eps: float = 1e-6) -> ClientWeights:
    """Weighs the clients so that the average is near the point of the least sum of distances.

    The rule of RFA: Pillutla et al. 2022, arXiv 1912.13445. With R, the radius of the smallest ball around a submission
    that holds more than half of them, it minimises the smoothed sum

        Σ_k √(‖v − v_k‖² + (eps·R)²)

    The paper's Weiszfeld steps from the mean need a number of steps that an attacker chooses. This function takes
    Newton steps from the middle of that ball, with a smoothing that shrinks from R to eps·R, and ends with a Weiszfeld
    step, c_k ∝ 1 / √(‖v − v_k‖² + (eps·R)²), which makes weights of the point.

    Cost: O(n³) for each of some ten to forty steps; seconds for n = 1000.

    Proven bound: the mean distance of the submissions from the result exceeds the least possible one v* by no more than
    eps·(R + ‖v − v*‖), but for rounding. With f < n / 2 attackers, it stays within 2(n − f) / (n − 2f) radii of the
    honest submissions.

    Args:
        inspection: of n clients, 1 or more.
        eps: relative to R, above 0; below 1e-9 rounding prevents the bound.

    Returns:
        The weights c, of sum 1. ``scores``: the distances ‖v − v_k‖ to the result.

    Raises:
        InvalidArgumentError: no client, ``eps`` is out of range, the bound is not reached, or half of the submissions
            are at an infinite distance from the others.
    """
    _check("geometric_median", inspection, 1)
    eps = _positive("eps", eps)
    kept, products, start, radius = _around_the_middle(
        "geometric_median", inspection.gram, inspection.squared_distances
    )
    weights = np.zeros(len(inspection.clients))
    weights[kept] = start if radius == 0 else _least_distances(products, start, radius, eps)
    scores = np.full(len(weights), np.inf)
    scores[kept] = _distances_to(products, weights[kept])
    return _report("geometric_median", inspection, weights, scores)


def centered_clipping(
    inspection: Inspection, radius: float, iterations: int = 1, start: Mapping[str, float] | None = None
) -> ClientWeights:
    """Moves from a centre towards the submissions, each of which moves it by ``radius`` / n at most.

    Karimireddy et al. 2021, "Learning from History for Byzantine Robust Optimization", arXiv 2012.10333:

        v ← v + (1/n)·Σ_k (v_k − v)·min(1, radius / ‖v_k − v‖)

    Args:
        inspection: of n clients, 1 or more.
        radius: τ of the paper, above 0.
        iterations: steps to take, 1 or more.
        start: weights of the clients whose sum Σ c_k·v_k is the first centre, each 0 or more; None for the zero vector,
            which is right where submissions are differences from the model.

    Returns:
        The weights c with v = Σ c_k·v_k, for the op "sum". ``scores``: the factors min(1, radius / ‖v_k − v‖) of the
        last step, below 1 for clients that were clipped.

    Raises:
        InvalidArgumentError: no client, an argument is out of range, ``start`` names a client that is unknown or at an
            infinite distance, or half of the submissions are at an infinite distance from the others and from zero.
    """
    rule = "centered_clipping"
    _check(rule, inspection, 1)
    radius = _positive("radius", radius)
    iterations = checked_integer("iterations must be 1 or more", iterations, 1, 10**9)
    # The zero vector is the last point, of weight 1 - sum(weights): distances are those of affine combinations.
    n = len(inspection.clients)
    norms = np.diagonal(inspection.gram)[:, None]
    squares = np.block([[inspection.squared_distances, norms], [norms.T, np.zeros((1, 1))]])
    kept, products, _, _ = _around_the_middle(rule, np.pad(inspection.gram, (0, 1)), squares)
    if kept[-1] != n:
        raise InvalidArgumentError(f"{rule}: half of the submissions are at an infinite distance from zero")
    weights = np.zeros(n)
    for client_id, weight in (start or {}).items():
        place = _place(inspection, "start", client_id)
        weights[place] = checked_number(f"start: the weight of client {client_id!r} must be 0 or more", weight)
        if weights[place] > 0 and place not in kept:
            raise InvalidArgumentError(f"start: client {client_id!r} is at an infinite distance from most others")
    factors = weights
    for _ in range(iterations):
        distances = np.full(n + 1, np.inf)
        distances[kept] = _distances_to(products, np.append(weights, 1 - weights.sum())[kept])
        factors = np.ones(n)
        np.divide(radius, distances[:n], out=factors, where=distances[:n] > radius)
        weights = weights * (1 - factors.mean()) + factors / n
    return _report(rule, inspection, weights, factors)


def fltrust(inspection: Inspection, reference_client: str) -> ClientWeights:
    """Weighs the clients by their cosine with a trusted one, at the length of its submission.

    Cao et al. 2021, "FLTrust", arXiv 2012.13995. With the reference v_0 and TS_k = max(0, cos(v_k, v_0)):

        v = (1 / Σ TS) · Σ_k TS_k · (‖v_0‖ / ‖v_k‖) · v_k

    over all clients but the reference. A submission of length 0 or infinity has TS 0.

    Args:
        inspection: of two clients or more.
        reference_client: who has submitted the update of trusted data, such as the coordinator itself.

    Returns:
        The weights c with v = Σ c_k·v_k, for the op "sum"; 0 for the reference. ``scores``: the cosines.

    Raises:
        InvalidArgumentError: the reference is unknown or of length 0 or infinity, or all TS are 0.
    """
    _check("fltrust", inspection, 2)
    gram = inspection.gram
    reference = _place(inspection, "reference_client", reference_client)
    lengths = np.sqrt(np.diagonal(gram))
    if not 0 < lengths[reference] < math.inf:
        what = "zero" if lengths[reference] == 0 else "not of a finite length"
        raise InvalidArgumentError(f"fltrust: the submission of the reference client {reference_client!r} is {what}")
    usable = (lengths > 0) & (lengths < math.inf)
    cosines = np.zeros(len(gram))
    np.divide(gram[reference] / lengths[reference], lengths, out=cosines, where=usable)
    trust = np.maximum(cosines, 0.0)
    trust[reference] = 0.0
    total = trust.sum()
    if total == 0:
        raise InvalidArgumentError(
            f"fltrust: no submission points as that of {reference_client!r} does; all weights are 0"
        )
    weights = np.zeros(len(gram))
    np.divide(trust / total * lengths[reference], lengths, out=weights, where=usable)
    return _report("fltrust", inspection, weights, cosines)


def _chosen(rule: str, inspection: Inspection, f: int, m: int) -> ClientWeights:
    _check(rule, inspection, 1)
    n = len(inspection.clients)
    f = checked_integer("f must be a number of clients, 0 or more", f, 0, 10**9)
    if n < 2 * f + 3:
        raise InvalidArgumentError(f"{rule} with f={f} needs 2·f + 3 = {2 * f + 3} submissions or more, got {n}")
    m = checked_integer(f"m must be 1 to n - f = {n - f}", m, 1, n - f)
    squares = _without_nan(inspection.squared_distances)
    np.fill_diagonal(squares, np.inf)
    nearest = np.sort(squares, axis=1)[:, : n - f - 2]
    num_infinite = np.isinf(nearest).sum(axis=1)
    with np.errstate(over="ignore"):
        finite = np.where(np.isinf(nearest), 0.0, nearest).sum(axis=1)
        scores = nearest.sum(axis=1)
    order = np.lexsort((finite, num_infinite))  # stable
    if num_infinite[order[0]] == n - f - 2:
        raise InvalidArgumentError(f"{rule}: all submissions are at an infinite distance from each other")
    chosen = [place for place in order[:m] if place == order[0] or squares[order[0], place] < np.inf]
    weights = np.zeros(n)
    weights[chosen] = 1.0
    return _report(rule, inspection, weights, scores)


def _without_nan(squares: _Floats) -> _Floats:
    """Returns squared distances with infinity for NaN, the distance from a vector that is not finite."""
    return np.where(np.isnan(squares), np.inf, squares)


def _around_the_middle(
    rule: str, gram: _Floats, squares: _Floats
) -> tuple[npt.NDArray[np.intp], _Floats, _Floats, float]:
    """Finds the submission in the middle: the centre of the smallest ball that holds more than half of the points.

    A ball of that kind holds an honest submission while most are honest. So its centre v and radius R are robust.
    Returns places of the points at a finite distance from v; their inner products ⟨v_j − v, v_k − v⟩; the weights of
    the mean of the ball; R. ``InvalidArgumentError``: there is no such ball.
    """
    squares = _without_nan(squares)
    reach = np.sort(squares, axis=1)[:, len(squares) // 2]
    middle = int(np.argmin(reach))
    to_middle = squares[middle]
    if reach[middle] >= _MOST_SQUARED:
        raise InvalidArgumentError(f"{rule}: half of the submissions are at an infinite distance from the others")
    # So that no square overflows, of a distance between two points or of that in units of R.
    kept = np.flatnonzero(to_middle < _MOST_SQUARED * min(1.0, reach[middle] or 1.0))
    inside = to_middle[kept] <= reach[middle]
    # Two ways to compute the products. The distances lose the direction of a far point, whose square hides all else;
    # the Gram matrix loses small differences beside a large shared value. The one with the smaller error counts.
    gram, squares, to_middle = gram[np.ix_(kept, kept)], squares[np.ix_(kept, kept)], to_middle[kept]
    place = int(np.searchsorted(kept, middle))
    with np.errstate(all="ignore"):
        lengths = np.sqrt(np.diagonal(gram)) + np.sqrt(gram[place, place])
        from_gram = gram - gram[place][:, None] - gram[place] + gram[place, place]
        from_distances = (to_middle[:, None] + to_middle - squares) / 2
        is_gram_better = lengths[:, None] * lengths < np.maximum(to_middle[:, None], to_middle)
    products = np.where(is_gram_better, from_gram, from_distances)
    return kept, products, inside / inside.sum(), math.sqrt(reach[middle])


def _least_distances(products: _Floats, start: _Floats, radius: float, eps: float) -> _Floats:
    """Returns the weights of the geometric median: see ``geometric_median``.

    Coefficients, of points and directions, are those of the submissions divided by their distance from the middle, or
    by the radius if that is larger; lengths are in units of the radius. So no number here is large but ``sizes``.
    """
    sizes = np.maximum(radius, np.sqrt(np.diagonal(products)))
    products = products / sizes[:, None] / sizes
    sizes = sizes / radius
    n = len(sizes)
    point = start * sizes
    smoothing = 1.0
    for _ in range(_MOST_STEPS):
        away = point - np.diag(sizes)  # row k: from submission k to the point
        along = away @ products
        squares = np.maximum((along * away).sum(axis=1), 0.0)
        lengths: _Floats = np.sqrt(squares + smoothing * smoothing)
        forces = away / lengths[:, None]
        force = forces.sum(axis=0)
        if math.sqrt(max(force @ products @ force, 0.0)) <= n * (eps if smoothing == eps else 0.01):
            if smoothing == eps:
                weights: _Floats = 1 / lengths
                weights /= weights.sum()
                return weights
            smoothing = max(eps, smoothing / 10)
            continue
        stiffness = (1 / lengths).sum()
        hessian = stiffness * np.eye(n) - forces.T @ (along / (lengths * lengths)[:, None])
        step = -np.linalg.solve(hessian, force)
        slope = float((along @ step / lengths).sum())
        if not slope < 0:  # rounding: a Weiszfeld step always descends
            step = -force / stiffness
            slope = float((along @ step / lengths).sum())
        ahead, square = along @ step, step @ products @ step
        scale = 1.0
        while scale > 1e-6:
            change = 2 * scale * ahead + scale * scale * square  # of the squares of the lengths
            longer = np.sqrt(np.maximum(squares + change, 0.0) + smoothing * smoothing)
            if (change / (lengths + longer)).sum() <= scale * slope / 4:
                break
            scale /= 2
        point = point + scale * step
    raise InvalidArgumentError(f"geometric_median has not reached eps={eps:g} in {_MOST_STEPS} steps: use a larger one")


def _distances_to(products: _Floats, weights: _Floats) -> _Floats:
    """Returns ‖v_k − Σ c_j·v_j‖ for each k, with the weights c of sum 1; rounding cannot make a square negative."""
    along = products @ weights
    squares = np.diagonal(products) - 2 * along + weights @ along
    distances: _Floats = np.sqrt(np.maximum(squares, 0.0))
    return distances


def _check(rule: str, inspection: Any, least: int) -> None:
    if not isinstance(inspection, Inspection):
        raise InvalidArgumentError(f"{rule} takes what sparseagg.robust.inspect returns, got {shown(inspection)}")
    if len(inspection.clients) < least:
        raise InvalidArgumentError(f"{rule} needs {least} submissions or more, got {len(inspection.clients)}")


def _positive(name: str, value: Any) -> float:
    number = checked_number(f"{name} must be above 0", value)
    if number == 0 or math.isinf(number):
        raise InvalidArgumentError(f"{name} must be above 0, got {shown(value)}")
    return number


def _place(inspection: Inspection, name: str, client_id: Any) -> int:
    if client_id not in inspection.clients:
        raise InvalidArgumentError(f"{name}: client {shown(client_id)} has no submission in the inspection")
    return inspection.clients.index(client_id)


def _report(rule: str, inspection: Inspection, weights: _Floats, scores: _Floats) -> ClientWeights:
    return ClientWeights(rule, inspection.clients, weights, scores, inspection.overlap, inspection.left_out)
