"""Robust rules for rounds: weights for the clients of a sealed round, from inner products alone.

    rnd.seal()
    choice = sa.robust.multi_krum(rnd.inspect(), f=2, m=6)
    print(choice)  # each client's weight and score, and the share of its keys that others have, too
    result = rnd.finish(client_weights=choice)

A rule needs no vectors: distances, norms and angles of the submissions, and of all their linear combinations, follow
from the Gram matrix of an ``Inspection``. The rules are deterministic, and treat the clients in ascending order of ids.

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
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sparseagg._internal.base.arguments import checked_integer, checked_number, shown
from sparseagg._internal.results.inspection import Inspection
from sparseagg.errors import InvalidArgumentError

__all__ = ["ClientWeights", "centered_clipping", "fltrust", "geometric_median", "krum", "multi_krum"]

_Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, eq=False)
class ClientWeights(Mapping[str, float]):
    """The weights that a rule gives to clients, for ``Round.finish(client_weights=…)``; a mapping from their ids.

    ``str()`` of it is a table of one line for each client.

    Attributes:
        rule: name of the function.
        clients: n client ids in ascending order.
        weights: of shape (n,), each 0 or more.
        scores: of shape (n,): what the rule has judged the clients by; see the rules.
        overlap: of the inspection, of shape (n, n): the number of keys that two submissions share.
    """

    rule: str
    clients: tuple[str, ...]
    weights: _Floats
    scores: _Floats
    overlap: npt.NDArray[np.int64]

    def __getitem__(self, client_id: str) -> float:
        if client_id not in self.clients:
            raise KeyError(client_id)
        return float(self.weights[self.clients.index(client_id)])

    def __iter__(self) -> Iterator[str]:
        return iter(self.clients)

    def __len__(self) -> int:
        return len(self.clients)

    def items(self) -> Any:  # the mixin's would look for each client
        """Returns the pairs of client id and weight."""
        return dict(zip(self.clients, self.weights.tolist())).items()

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
    the n − f − 2 smallest squared distances ‖v_j − v_k‖² = G_jj + G_kk − 2·G_jk to other clients. The lowest score
    wins; of equal ones, the lowest client id.

    Args:
        inspection: of n clients.
        f: the most clients that may be malicious.

    Returns:
        Weight 1 for the winner, 0 for all others. ``scores``: as above.

    Raises:
        InvalidArgumentError: n < 2·f + 3, or a value is not finite.
    """
    return _chosen("krum", inspection, f, 1)


def multi_krum(inspection: Inspection, f: int, m: int) -> ClientWeights:
    """Chooses the m submissions of the lowest scores of ``krum``.

    Args:
        inspection: of n clients.
        f: the most clients that may be malicious.
        m: how many to choose, 1 to n − f.

    Returns:
        Weight 1 for each of the m, 0 for all others. With the op "mean", the result is their average. ``scores``: of
        ``krum``.

    Raises:
        InvalidArgumentError: n < 2·f + 3, m is out of range, or a value is not finite.
    """
    return _chosen("multi_krum", inspection, f, m)


def geometric_median(inspection: Inspection, iterations: int = 32, eps: float = 1e-6) -> ClientWeights:
    """Weighs the clients so that the average is near the point of the least sum of distances.

    The smoothed Weiszfeld algorithm of RFA: Pillutla et al. 2022, arXiv 1912.13445, Algorithm 2. From the mean on, with
    v = Σ c_k·v_k:

        β_k = 1 / max(eps, ‖v − v_k‖),    c_k ← β_k / Σ β

    where ‖v − v_k‖² = G_kk − 2·(G·c)_k + c'·G·c.

    Args:
        inspection: of n clients, 1 or more.
        iterations: steps to take, 1 or more; fewer if c no longer changes.
        eps: the smoothing ν of the paper, a distance above 0.

    Returns:
        The weights c, of sum 1. ``scores``: the distances ‖v − v_k‖ to the result.

    Raises:
        InvalidArgumentError: no client, an argument is out of range, or a value is not finite.
    """
    gram = _checked("geometric_median", inspection, 1)
    iterations = checked_integer("iterations must be 1 or more", iterations, 1, 10**9)
    eps = _positive("eps", eps)
    weights = np.full(len(gram), 1 / len(gram))
    for _ in range(iterations):
        inverse = 1 / np.maximum(eps, _distances_to(gram, weights))
        before, weights = weights, inverse / inverse.sum()
        if np.array_equal(before, weights):
            break
    return _report("geometric_median", inspection, weights, _distances_to(gram, weights))


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
        InvalidArgumentError: no client, an argument is out of range, ``start`` names an unknown client, or a value is
            not finite.
    """
    gram = _checked("centered_clipping", inspection, 1)
    radius = _positive("radius", radius)
    iterations = checked_integer("iterations must be 1 or more", iterations, 1, 10**9)
    weights = np.zeros(len(gram))
    for client_id, weight in (start or {}).items():
        place = _place(inspection, "start", client_id)
        weights[place] = checked_number(f"start: the weight of client {client_id!r} must be 0 or more", weight)
    factors = weights
    for _ in range(iterations):
        distances = _distances_to(gram, weights)
        factors = np.ones(len(gram))
        np.divide(radius, distances, out=factors, where=distances > radius)
        weights = weights * (1 - factors.mean()) + factors / len(gram)
    return _report("centered_clipping", inspection, weights, factors)


def fltrust(inspection: Inspection, reference_client: str) -> ClientWeights:
    """Weighs the clients by their cosine with a trusted one, at the length of its submission.

    Cao et al. 2021, "FLTrust", arXiv 2012.13995. With the reference v_0 and TS_k = max(0, cos(v_k, v_0)):

        v = (1 / Σ TS) · Σ_k TS_k · (‖v_0‖ / ‖v_k‖) · v_k

    over all clients but the reference. A submission of length 0 has TS 0.

    Args:
        inspection: of two clients or more.
        reference_client: who has submitted the update of trusted data, such as the coordinator itself.

    Returns:
        The weights c with v = Σ c_k·v_k, for the op "sum"; 0 for the reference. ``scores``: the cosines.

    Raises:
        InvalidArgumentError: the reference is unknown or of length 0, all TS are 0, or a value is not finite.
    """
    gram = _checked("fltrust", inspection, 2)
    reference = _place(inspection, "reference_client", reference_client)
    lengths = np.sqrt(np.diagonal(gram))
    if lengths[reference] == 0:
        raise InvalidArgumentError(f"fltrust: the submission of the reference client {reference_client!r} is zero")
    cosines = np.zeros(len(gram))
    np.divide(gram[reference], lengths * lengths[reference], out=cosines, where=lengths > 0)
    trust = np.maximum(cosines, 0.0)
    trust[reference] = 0.0
    total = trust.sum()
    if total == 0:
        raise InvalidArgumentError(
            f"fltrust: no submission points as that of {reference_client!r} does; all weights are 0"
        )
    weights = np.zeros(len(gram))
    np.divide(trust / total * lengths[reference], lengths, out=weights, where=lengths > 0)
    return _report("fltrust", inspection, weights, cosines)


def _chosen(rule: str, inspection: Inspection, f: int, m: int) -> ClientWeights:
    gram = _checked(rule, inspection, 1)
    n = len(gram)
    f = checked_integer("f must be a number of clients, 0 or more", f, 0, 10**9)
    if n < 2 * f + 3:
        raise InvalidArgumentError(f"{rule} with f={f} needs 2·f + 3 = {2 * f + 3} submissions or more, got {n}")
    m = checked_integer(f"m must be 1 to n - f = {n - f}", m, 1, n - f)
    squares = np.diagonal(gram)
    distances = np.maximum(squares[:, None] + squares[None, :] - 2 * gram, 0.0)
    np.fill_diagonal(distances, np.inf)
    scores = np.sort(distances, axis=1)[:, : n - f - 2].sum(axis=1)
    weights = np.zeros(n)
    weights[np.argsort(scores, kind="stable")[:m]] = 1.0
    return _report(rule, inspection, weights, scores)


def _distances_to(gram: _Floats, weights: _Floats) -> _Floats:
    """Returns ‖v_k − Σ c_j·v_j‖ for each client k, with the weights c; rounding cannot make a square negative."""
    products = gram @ weights
    squares = np.diagonal(gram) - 2 * products + weights @ products
    return np.sqrt(np.maximum(squares, 0.0))


def _checked(rule: str, inspection: Any, least: int) -> _Floats:
    """Returns the Gram matrix."""
    if not isinstance(inspection, Inspection):
        raise InvalidArgumentError(f"{rule} takes what Round.inspect returns, got {shown(inspection)}")
    if len(inspection.clients) < least:
        raise InvalidArgumentError(f"{rule} needs {least} submissions or more, got {len(inspection.clients)}")
    finite = np.isfinite(inspection.gram).all(axis=1)
    if not finite.all():
        client_id = inspection.clients[int(np.argmin(np.isfinite(np.diagonal(inspection.gram))))]
        raise InvalidArgumentError(f"{rule}: the inner products of client {client_id!r} are not finite")
    return inspection.gram


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
    return ClientWeights(rule, inspection.clients, weights, scores, inspection.overlap)
