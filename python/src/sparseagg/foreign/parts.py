"""What an array of another library is made of."""

from __future__ import annotations

import dataclasses
from typing import Any, Union

import numpy as np

__all__ = ["Array", "Entries", "Keyed", "Parts"]

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Keyed:
    """A row at each key. Keys may come more than once.

    Attributes:
        keys: of any type, shape (n,).
        rows: shape (n,) or (n, …); None if there are keys alone.
    """

    keys: Array
    rows: Array | None


@dataclasses.dataclass(frozen=True)
class Entries:
    """The stored entries of a sparse array, whose last axes may be dense. Entries may come more than once.

    Attributes:
        coordinates: for each sparse axis the entries' positions, shape (n,).
        values: shape (n, …), with the dense axes.
        shape: of the array.
    """

    coordinates: list[Array]
    values: Array
    shape: tuple[int, ...]


Parts = Union[Keyed, Entries, None]  # None: the array is no sparse one
