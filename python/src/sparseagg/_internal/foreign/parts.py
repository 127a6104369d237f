"""What an array of another library is made of."""

from __future__ import annotations

import dataclasses
from typing import Any, Union

import numpy as np

__all__ = ["Array", "Entries", "Keyed", "Parts", "Rows"]

Array = np.ndarray[Any, Any]
Rows = Union[Array, list[Array]]  # a list: the columns, of any types, each of shape (n,)


@dataclasses.dataclass(frozen=True)
class Keyed:
    """A row at each key. Keys may come more than once.

    Attributes:
        keys: of any type, shape (n,).
        rows: shape (n,) or (n, …); None if there are keys alone.
    """

    keys: Array
    rows: Rows | None


@dataclasses.dataclass(frozen=True)
class Entries:
    """The stored entries of a sparse array, whose last axes may be dense. Entries may come more than once.

    Attributes:
        coordinates: for each sparse axis the entries' positions, shape (n,). They may lie outside the axis.
        values: shape (n, …), with the dense axes.
        shape: of the array.

    Raises:
        ValueError: the three do not go together.
    """

    coordinates: list[Array]
    values: Array
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        num_axes, values = len(self.coordinates), self.values
        if not 0 < num_axes <= len(self.shape):
            raise ValueError(f"it has indices for {num_axes} axes, but shape {self.shape}")
        if values.ndim == 0 or values.shape[1:] != tuple(self.shape[num_axes:]):
            raise ValueError(
                f"its values of shape {values.shape} do not go with shape {self.shape}, of which the indices are for "
                f"{num_axes} axes"
            )
        for axis, coordinates in enumerate(self.coordinates):
            if coordinates.shape != values.shape[:1]:
                raise ValueError(
                    f"it has {len(values)} values, but indices of shape {coordinates.shape} for axis {axis}"
                )
            if coordinates.size and coordinates.dtype.kind not in "iu":
                raise ValueError(f"its indices must be integers, got {coordinates.dtype}")


Parts = Union[Keyed, Entries, None]  # None: the array is no sparse one
