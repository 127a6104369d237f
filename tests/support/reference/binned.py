"""Binned sums, in Python's integers and fractions."""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from typing import Any

__all__ = ["BinnedSum", "digits_of"]


def _unit(width: int, bin_: int) -> Fraction:
    return Fraction(2) ** (width * bin_ - 1074)


@functools.lru_cache(maxsize=1 << 16)
def digits_of(value: float, kept: int, width: int) -> dict[int, int]:
    """The digit of a finite number in each bin from its highest one down; the last ones are 0."""
    biased = max(0, math.frexp(value)[1] + 1022) if value else 0
    top = max(kept - 1, (biased + 52) // width)
    rest, digits = Fraction(value), {top: 0}
    for bin_ in range(top, -1, -1):
        if rest:
            digits[bin_] = round(rest / _unit(width, bin_))  # halves to even
            rest -= digits[bin_] * _unit(width, bin_)
    assert not rest
    return digits


class BinnedSum:
    """A sum of numbers: the totals of all their digits. Only its value looks at the highest ``kept`` bins alone."""

    def __init__(self, value: float, dtype: str = "float64") -> None:
        self._kept, self._width = (3, 40) if dtype == "float64" else (2, 44)
        self._special = 0.0 if math.isfinite(value) else value
        self._totals = digits_of(value, self._kept, self._width) if math.isfinite(value) else {}

    def __add__(self, other: Any) -> BinnedSum:
        if not isinstance(other, BinnedSum):
            assert other == 0
            return self
        both = BinnedSum.__new__(BinnedSum)
        both._kept, both._width = self._kept, self._width
        both._special = self._special + other._special
        both._totals = dict(self._totals)
        for bin_, digit in other._totals.items():
            both._totals[bin_] = both._totals.get(bin_, 0) + digit
        return both

    __radd__ = __add__

    def __float__(self) -> float:
        if self._special:
            return self._special
        top = max(self._totals, default=0)
        bins = range(top - self._kept + 1, top + 1)
        total = sum((self._totals.get(bin_, 0) * _unit(self._width, bin_) for bin_ in bins), Fraction(0))
        try:
            return float(total)
        except OverflowError:
            return math.copysign(math.inf, total)
