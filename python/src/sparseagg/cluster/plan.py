"""The ranges of keys that are merged apart."""

from __future__ import annotations

from typing import Optional

import numpy as np

from sparseagg._internal.updates.arrays import Array

__all__ = ["KeyRange", "cuts_of_rows", "cuts_of_sample"]

KeyRange = tuple[int, Optional[int]]  # begin, and end without end; None: behind the last key


def cuts_of_sample(sample: Array, num_ranges: int) -> list[KeyRange]:
    """Returns up to ``num_ranges`` ranges of all keys, in order, each with about as many keys of the sample.

    A key with more than its share makes its range larger: the rows of one key are merged in one place.
    """
    ordered = np.sort(sample)
    places = [len(ordered) * part // num_ranges for part in range(1, num_ranges)]
    return _ranges({int(ordered[place]) for place in places} if len(ordered) else set())


def cuts_of_rows(num_rows: int, num_ranges: int) -> list[KeyRange]:
    """Returns up to ``num_ranges`` ranges of equally many keys below ``num_rows``."""
    return _ranges({num_rows * part // num_ranges for part in range(1, num_ranges)})


def _ranges(cuts: set[int]) -> list[KeyRange]:
    begins = [0, *sorted(cuts - {0})]
    return list(zip(begins, [*begins[1:], None]))
