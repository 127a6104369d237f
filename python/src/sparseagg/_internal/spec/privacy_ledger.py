"""What rounds with privacy cost in ε and δ, and clipping that adapts. Experimental. Needs ``dp-accounting``."""

from __future__ import annotations

import collections
import contextlib
import json
import math
import os
import pathlib
import secrets
import sys
import threading
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from sparseagg._internal.base.arguments import checked_integer, checked_number, shown
from sparseagg._internal.base.state_files import locked, replaced
from sparseagg._internal.spec.bounds import PrivacySpec
from sparseagg._internal.spec.round_spec import RoundSpec
from sparseagg.errors import InvalidArgumentError, ResourceExhaustedError, UnavailableError

_ABOVE_0, _BELOW_1, _FINITE = 5e-324, 1 - 2.0**-53, sys.float_info.max
_MOST_NOISE = 2.0**40  # dp-accounting overflows where the square of the noise does


class PrivacyLedger:
    """A budget of ε and δ, and what rounds have spent of it. Experimental. Thread-safe; of a file, safe for processes.

        ledger = sa.PrivacyLedger(epsilon=4.0, delta=1e-5, path="ledger.json")
        ledger.spend(spec)  # before each round; raises ResourceExhaustedError at the budget
        rnd = client.create_round(spec)

    The budget is of one submission in each round, or of one client that submits once in each. Rounds add up as Rényi
    differential privacy, by dp-accounting. The deltas of key selections add up, and ε is that of the rest of ``delta``.
    No round is taken to sample its clients: a sample is an amplification only if nobody knows who is in it.

    Args:
        epsilon: the budget.
        delta: the budget, for all rounds together.
        path: a file that keeps what was spent, and is made if there is none. It is written and synced before ``spend``
            returns. Ledgers of one file, in all processes, share its budget: each reads it anew, and they write in
            turns. None: nothing is kept.

    Raises:
        InvalidArgumentError: an argument is out of range, or the file is of another budget or no ledger.
        UnavailableError: dp-accounting is not installed.
    """

    def __init__(self, epsilon: float, delta: float, *, path: str | os.PathLike[str] | None = None) -> None:
        _accounting()
        self.epsilon = checked_number("epsilon must be above 0 and finite", epsilon, _ABOVE_0, _FINITE)
        self.delta = checked_number("delta must be above 0 and below 1", delta, _ABOVE_0, _BELOW_1)
        self._path = None if path is None else pathlib.Path(path)
        self._lock = threading.Lock()
        self._multipliers: list[float] = []  # of Gaussian mechanisms
        self._deltas: list[float] = []
        self._refresh()

    @property
    def spent_epsilon(self) -> float:
        """ε of what was spent, at the δ of the budget."""
        with self._lock:
            self._refresh()
            return _epsilon_of(self._multipliers, self._deltas, self.delta)

    @property
    def num_mechanisms(self) -> int:
        """How many noisy answers were spent: the values of a round, each selection of keys, each adapted bound."""
        with self._lock:
            self._refresh()
            return len(self._multipliers)

    def epsilon_with(self, spec: RoundSpec) -> float:
        """Returns ε of what was spent and of one more round of ``spec``. Spends nothing."""
        multipliers, deltas = _mechanisms_of(spec)
        with self._lock:
            self._refresh()
            return _epsilon_of([*self._multipliers, *multipliers], [*self._deltas, *deltas], self.delta)

    def spend(self, spec: Any) -> float:
        """Spends what a round costs. Call it before the round is created, once for each round.

        Args:
            spec: a ``RoundSpec`` with ``privacy``, or an object with such a ``spec``, as a ``Round``.

        Returns:
            ε of all that was spent, this round included.

        Raises:
            ResourceExhaustedError: the round is beyond the budget; nothing is spent.
            InvalidArgumentError: the spec has no ``privacy``, or an option of it is out of range; or the file is no
                ledger any more, or has fewer spends than this object has seen. Nothing is spent.
            OSError: the file cannot be written.
        """
        return self._spend(*_mechanisms_of(spec if isinstance(spec, RoundSpec) else getattr(spec, "spec", spec)))

    def spend_gaussian(self, noise_multiplier: float) -> float:
        """The same for another Gaussian mechanism on the submissions, of this noise in units of its sensitivity."""
        return self._spend([_multiplier("noise_multiplier", noise_multiplier)], [])

    def _spend(self, multipliers: list[float], deltas: list[float]) -> float:
        with self._lock, contextlib.nullcontext() if self._path is None else locked(self._path):
            self._refresh()
            all_multipliers = [*self._multipliers, *multipliers]
            all_deltas = [*self._deltas, *deltas]
            epsilon = _epsilon_of(all_multipliers, all_deltas, self.delta)
            if not epsilon <= self.epsilon:
                raise ResourceExhaustedError(
                    f"the budget of epsilon {self.epsilon:g} at delta {self.delta:g} does not cover this: "
                    f"with it, epsilon would be {epsilon:.6g}"
                )
            if self._path is not None:
                spent = {"noise_multipliers": all_multipliers, "deltas": all_deltas}
                with replaced(self._path) as file:
                    file.write(json.dumps({"epsilon": self.epsilon, "delta": self.delta, **spent}).encode())
            self._multipliers, self._deltas = all_multipliers, all_deltas
            return epsilon

    def _refresh(self) -> None:
        """Reads what others have spent since."""
        if self._path is None:
            return
        path = str(self._path)
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            multipliers = [_multiplier("noise_multipliers", each) for each in _list(found, "noise_multipliers")]
            deltas = [_delta("deltas", each) for each in _list(found, "deltas")]
            epsilon = checked_number("epsilon must be above 0 and finite", found["epsilon"], _ABOVE_0, _FINITE)
            delta = checked_number("delta must be above 0 and below 1", found["delta"], _ABOVE_0, _BELOW_1)
        except FileNotFoundError:
            multipliers, deltas, epsilon, delta = [], [], self.epsilon, self.delta
        except (ValueError, KeyError, TypeError, RecursionError) as error:  # InvalidArgumentError is a ValueError
            raise InvalidArgumentError(f"{path!r} is no ledger: {error}") from error
        if (epsilon, delta) != (self.epsilon, self.delta):
            raise InvalidArgumentError(
                f"{path!r} is a ledger of epsilon {epsilon:g} and delta {delta:g}, "
                f"not of {self.epsilon:g} and {self.delta:g}"
            )
        seen = len(self._multipliers), len(self._deltas)
        if (multipliers[: seen[0]], deltas[: seen[1]]) != (self._multipliers, self._deltas):
            raise InvalidArgumentError(f"{path!r} has lost what was spent: {seen[0]} mechanisms are not in it")
        self._multipliers, self._deltas = multipliers, deltas


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
        self.l2 = checked_number("l2 must be above 0 and finite", l2, _ABOVE_0, _FINITE)
        self._expected = checked_number(
            "expected_submissions must be above 0 and finite", expected_submissions, _ABOVE_0, _FINITE
        )
        what = "count_noise must be an integer of 1 or more, up to 2^40"
        self._noise = checked_integer(what, count_noise, 1, int(_MOST_NOISE))
        self._quantile = checked_number("quantile must be above 0 and below 1", quantile, _ABOVE_0, _BELOW_1)
        self._rate = checked_number("rate must be above 0 and finite", rate, _ABOVE_0, _FINITE)

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
        raise UnavailableError("PrivacyLedger needs dp-accounting: pip install dp-accounting") from error
    return dp_accounting


def _mechanisms_of(spec: Any) -> tuple[list[float], list[float]]:
    """Returns the noise multipliers of a round's Gaussian mechanisms, and the deltas of its selections of keys."""
    if not isinstance(spec, RoundSpec):
        raise InvalidArgumentError(f"spec must be a RoundSpec, got {shown(spec)}")
    privacy = spec.privacy
    if not isinstance(privacy, PrivacySpec):
        raise InvalidArgumentError("the spec has no privacy: its results are exact, which no budget covers")
    multipliers = [_multiplier("privacy.noise_multiplier", privacy.noise_multiplier)]
    if privacy.keys == "public":
        return multipliers, []
    num_selections = sum(tensor.layout == "sparse" for tensor in spec.tensors)
    multiplier = _multiplier("privacy.key_noise_multiplier", privacy.key_noise_multiplier)
    multipliers.extend([multiplier] * num_selections)
    return multipliers, [_delta("privacy.delta", privacy.delta)]


def _multiplier(what: str, value: Any) -> float:
    return checked_number(f"{what} must be from 2^-20 to 2^40", value, 2.0**-20, _MOST_NOISE)


def _delta(what: str, value: Any) -> float:
    return checked_number(f"{what} must be from 2^-40 to 0.5", value, 2.0**-40, 0.5)


def _list(found: Any, field: str) -> list[Any]:
    numbers = found[field]
    if not isinstance(numbers, list):
        raise InvalidArgumentError(f"{field} must be a list, got {shown(numbers)}")
    return numbers


def _epsilon_of(multipliers: Sequence[float], deltas: Sequence[float], delta: float) -> float:
    """Returns ε at δ = ``delta`` of Gaussian mechanisms and selections of keys; inf if the selections take all of δ."""
    accounting = _accounting()
    left = delta - math.fsum(deltas)
    if not left > 0:
        return math.inf
    accountant = accounting.rdp.RdpAccountant(
        neighboring_relation=accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )
    for multiplier, count in sorted(collections.Counter(multipliers).items()):
        accountant.compose(accounting.GaussianDpEvent(multiplier), count)
    return float(accountant.get_epsilon(left))
