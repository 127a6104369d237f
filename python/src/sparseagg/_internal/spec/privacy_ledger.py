"""What rounds with privacy cost in ε and δ, and clipping that adapts. Experimental. Needs ``sparseagg[privacy]``."""

from __future__ import annotations

import json
import math
import os
import pathlib
import secrets
import threading
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from sparseagg._internal.base.arguments import shown
from sparseagg._internal.spec.privacy_spec import DP
from sparseagg._internal.spec.round_spec import RoundSpec
from sparseagg.errors import InvalidArgumentError, ResourceExhaustedError, UnavailableError

__all__ = ["AdaptiveClip", "PrivacyLedger"]


class PrivacyLedger:
    """A budget of ε and δ, and what rounds have spent of it. Experimental. Thread-safe.

        ledger = sa.PrivacyLedger(epsilon=4.0, delta=1e-5, path="ledger.json")
        ledger.spend(spec)  # before each round; raises ResourceExhaustedError at the budget
        rnd = client.create_round(spec)

    The budget is of one submission in each round, or of one client that submits once in each. Rounds add up as Rényi
    differential privacy, by dp-accounting. The deltas of key selections add up, and ε is that of the rest of ``delta``.
    No round is taken to sample its clients: a sample is an amplification only if nobody knows who is in it.

    Args:
        epsilon: the budget.
        delta: the budget, for all rounds together.
        path: a file that keeps what was spent, and is made if there is none. It is written before ``spend`` returns.
            None: nothing is kept.

    Raises:
        InvalidArgumentError: an argument is out of range, or the file is of another budget or no ledger.
        UnavailableError: dp-accounting is not installed.
    """

    def __init__(self, epsilon: float, delta: float, *, path: str | os.PathLike[str] | None = None) -> None:
        if not (isinstance(epsilon, (int, float)) and 0 < epsilon < math.inf):
            raise InvalidArgumentError(f"epsilon must be above 0 and finite, got {shown(epsilon)}")
        if not (isinstance(delta, (int, float)) and 0 < delta < 1):
            raise InvalidArgumentError(f"delta must be above 0 and below 1, got {shown(delta)}")
        _accounting()
        self.epsilon = float(epsilon)
        self.delta = float(delta)
        self._path = None if path is None else pathlib.Path(path)
        self._lock = threading.Lock()
        self._multipliers: list[float] = []  # of Gaussian mechanisms
        self._deltas: list[float] = []
        if self._path is not None and self._path.exists():
            self._load(self._path)

    @property
    def spent_epsilon(self) -> float:
        """ε of what was spent, at the δ of the budget."""
        with self._lock:
            return _epsilon_of(self._multipliers, self._deltas, self.delta)

    @property
    def num_mechanisms(self) -> int:
        """How many noisy answers were spent: the values of a round, each selection of keys, each adapted bound."""
        return len(self._multipliers)

    def epsilon_with(self, spec: RoundSpec) -> float:
        """Returns ε of what was spent and of one more round of ``spec``. Spends nothing."""
        multipliers, deltas = _mechanisms_of(spec)
        with self._lock:
            return _epsilon_of([*self._multipliers, *multipliers], [*self._deltas, *deltas], self.delta)

    def spend(self, spec: Any) -> float:
        """Spends what a round costs. Call it before the round is created, once for each round.

        Args:
            spec: a ``RoundSpec`` with ``privacy``, or an object with such a ``spec``, as a ``Round``.

        Returns:
            ε of all that was spent, this round included.

        Raises:
            ResourceExhaustedError: the round is beyond the budget; nothing is spent.
            InvalidArgumentError: the spec has no ``privacy``.
        """
        return self._spend(*_mechanisms_of(spec if isinstance(spec, RoundSpec) else getattr(spec, "spec", spec)))

    def spend_gaussian(self, noise_multiplier: float) -> float:
        """The same for another Gaussian mechanism on the submissions, of this noise in units of its sensitivity."""
        if not (isinstance(noise_multiplier, (int, float)) and 0 < noise_multiplier < math.inf):
            raise InvalidArgumentError(f"noise_multiplier must be above 0 and finite, got {shown(noise_multiplier)}")
        return self._spend([float(noise_multiplier)], [])

    def _spend(self, multipliers: list[float], deltas: list[float]) -> float:
        with self._lock:
            all_multipliers = [*self._multipliers, *multipliers]
            all_deltas = [*self._deltas, *deltas]
            epsilon = _epsilon_of(all_multipliers, all_deltas, self.delta)
            if epsilon > self.epsilon:
                raise ResourceExhaustedError(
                    f"the budget of epsilon {self.epsilon:g} at delta {self.delta:g} does not cover this: "
                    f"with it, epsilon would be {epsilon:.6g}"
                )
            if self._path is not None:
                self._save(self._path, all_multipliers, all_deltas)
            self._multipliers, self._deltas = all_multipliers, all_deltas
            return epsilon

    def _save(self, path: pathlib.Path, multipliers: list[float], deltas: list[float]) -> None:
        text = json.dumps(
            {"epsilon": self.epsilon, "delta": self.delta, "noise_multipliers": multipliers, "deltas": deltas}
        )
        new = path.with_name(path.name + ".new")
        with new.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)

    def _load(self, path: pathlib.Path) -> None:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            budget = (float(found["epsilon"]), float(found["delta"]))
            self._multipliers = [float(each) for each in found["noise_multipliers"]]
            self._deltas = [float(each) for each in found["deltas"]]
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidArgumentError(f"{str(path)!r} is no ledger: {error!r}") from error
        if budget != (self.epsilon, self.delta):
            raise InvalidArgumentError(
                f"{str(path)!r} is a ledger of epsilon {budget[0]:g} and delta {budget[1]:g}, "
                f"not of {self.epsilon:g} and {self.delta:g}"
            )


class AdaptiveClip:
    """A bound ``clip.l2`` that follows a quantile of the submissions' norms (arXiv 1905.03871). Experimental.

        clip = sa.AdaptiveClip(1.0, expected_submissions=1000, count_noise=20)
        for _ in range(rounds):
            spec = dataclasses.replace(spec, clip=dataclasses.replace(spec.clip, l2=clip.l2))
            …
            clip.update(rnd.refresh(), ledger)

    After each round, C ← C·exp(−rate·(b − quantile)), where b is the noisy number of submissions that the bound did not
    change, over the expected number. Only a coordinator can use it, who sees these numbers.

    Args:
        l2: the bound of the first round.
        expected_submissions: about how many submissions a round has; a constant, since the true number is secret.
        count_noise: standard deviation of the noise on the count, in submissions: what ``update`` spends is a Gaussian
            mechanism of that noise multiplier.
        quantile: the part of submissions that the bound leaves as they are.
        rate: how fast the bound follows.

    Raises:
        InvalidArgumentError: an argument is out of range.
    """

    def __init__(
        self,
        l2: float,
        *,
        expected_submissions: int,
        count_noise: int,
        quantile: float = 0.5,
        rate: float = 0.2,
    ) -> None:
        for name, value in (("l2", l2), ("rate", rate), ("expected_submissions", expected_submissions)):
            if not (isinstance(value, (int, float)) and 0 < value < math.inf):
                raise InvalidArgumentError(f"{name} must be above 0 and finite, got {shown(value)}")
        if not (isinstance(count_noise, int) and count_noise >= 1):
            raise InvalidArgumentError(f"count_noise must be an integer of 1 or more, got {shown(count_noise)}")
        if not (isinstance(quantile, (int, float)) and 0 < quantile < 1):
            raise InvalidArgumentError(f"quantile must be above 0 and below 1, got {shown(quantile)}")
        self.l2 = float(l2)
        self._expected = float(expected_submissions)
        self._noise = count_noise
        self._quantile = float(quantile)
        self._rate = float(rate)

    def update(self, info: Any, ledger: PrivacyLedger) -> float:
        """Spends the noisy count of a round, and moves the bound.

        Args:
            info: the round's ``refresh()``, as its coordinator sees it.
            ledger: that pays for it.

        Returns:
            the bound of the next round.

        Raises:
            ResourceExhaustedError: beyond the budget; the bound stays.
            InvalidArgumentError: the round has no bounds.
        """
        if getattr(info, "clip", None) is None:
            raise InvalidArgumentError("the round has no clip, so that its norms are not known")
        ledger.spend_gaussian(self._noise)
        unchanged = info.num_submissions - info.clip.num_l2 + discrete_gaussian(self._noise)
        self.l2 *= math.exp(-self._rate * (unchanged / self._expected - self._quantile))
        return self.l2


def discrete_gaussian(sigma: int) -> int:
    """Returns a sample of N_Z(0, sigma²) from the system's randomness, in exact fractions (arXiv 2004.00010)."""
    scale = sigma + 1
    while True:
        offset = secrets.randbelow(scale)
        if not _is_exp(Fraction(offset, scale)):
            continue
        multiple = 0
        while _is_exp(Fraction(1)):
            multiple += 1
        magnitude = offset + scale * multiple
        is_negative = bool(secrets.randbelow(2))
        if is_negative and magnitude == 0:
            continue
        if _is_exp((magnitude - Fraction(sigma**2, scale)) ** 2 / (2 * sigma**2)):
            return -magnitude if is_negative else magnitude


def _is_exp(gamma: Fraction) -> bool:
    """Returns true with probability exp(−gamma)."""
    while gamma > 1:
        if not _is_exp(Fraction(1)):
            return False
        gamma -= 1
    k = 1
    while secrets.randbelow(gamma.denominator * k) < gamma.numerator:
        k += 1
    return k % 2 == 1


def _accounting() -> Any:
    try:
        import dp_accounting
    except ImportError as error:
        raise UnavailableError("PrivacyLedger needs dp-accounting: pip install 'sparseagg[privacy]'") from error
    return dp_accounting


def _mechanisms_of(spec: Any) -> tuple[list[float], list[float]]:
    """Returns the noise multipliers of a round's Gaussian mechanisms, and the deltas of its selections of keys."""
    if not isinstance(spec, RoundSpec):
        raise InvalidArgumentError(f"spec must be a RoundSpec, got {shown(spec)}")
    privacy = spec.privacy
    if not isinstance(privacy, DP):
        raise InvalidArgumentError("the spec has no privacy: its results are exact, which no budget covers")
    multipliers = [privacy.noise_multiplier]
    if privacy.keys == "public":
        return multipliers, []
    num_selections = sum(tensor.layout == "sparse" for tensor in spec.tensors)
    if privacy.keys == "truncated_geometric":
        # (ε, δ) of all tensors together; up to δ it is ε²/2-zCDP, as a Gaussian mechanism of 1/ε is.
        multipliers.append(1 / (privacy.key_epsilon or math.inf))
    else:
        multipliers.extend([privacy.key_noise_multiplier or 0.0] * num_selections)
    return multipliers, [privacy.delta or 1.0]


def _epsilon_of(multipliers: Iterable[float], deltas: Iterable[float], delta: float) -> float:
    """Returns ε at δ = ``delta`` of Gaussian mechanisms and selections of keys; inf if the selections take all of δ."""
    accounting = _accounting()
    left = delta - math.fsum(deltas)
    multipliers = list(multipliers)
    if left <= 0 or any(multiplier <= 0 for multiplier in multipliers):
        return math.inf
    accountant = accounting.rdp.RdpAccountant(
        neighboring_relation=accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )
    for multiplier in sorted(set(multipliers)):
        accountant.compose(accounting.GaussianDpEvent(multiplier), multipliers.count(multiplier))
    return float(accountant.get_epsilon(left))
