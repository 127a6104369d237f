"""Values of a model that are not finite, such as the −inf of an attention mask, and what clients make of them.

Such a value cannot be summed up, and is no fault of a client that has left it alone. So the update of a whole array has
zeros in the place of those values, and beside the array a tensor NAME:kept, whose keys are their positions. In the next
model, a position that any client has kept has the value that it had, as in the mean of −inf and others; one that all
clients have changed has their mean.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from sparseagg._internal.base.types import OnNonfinite
from sparseagg._internal.spec.round_spec import TensorSpec
from sparseagg.errors import InvalidArgumentError

KEPT = ":kept"


def unchanged(before: Any, after: Any) -> Any:
    """Returns where two arrays have the same value; NaN is the same as NaN."""
    same = before == after
    return same | (np.isnan(before) & np.isnan(after)) if before.dtype.kind == "f" == after.dtype.kind else same


def difference(before: Any, after: Any) -> Any:
    """Returns after − before, where what is not finite and has not changed has the difference 0."""
    with np.errstate(over="ignore", invalid="ignore"):
        delta = after - before
    if delta.dtype.kind == "f" and not np.isfinite(delta).all():
        delta[unchanged(before, after)] = 0
    return delta


@dataclasses.dataclass(frozen=True, eq=False)
class Nonfinite:
    """The values of a model's array that are not finite."""

    size: int  # number of values of the array
    positions: Any  # of these values in the flat array, ascending
    values: Any  # at the positions

    @classmethod
    def of(cls, array: Any) -> Nonfinite | None:
        """Returns those of an array; None if there are none. Cost: of a sum of the array."""
        flat = array.reshape(-1)
        if flat.dtype.kind != "f":
            return None
        with np.errstate(all="ignore"):
            if np.isfinite(np.add.reduce(flat)):  # needs no memory; a sum that overflows proves nothing
                return None
        positions = np.flatnonzero(~np.isfinite(flat))
        return cls(flat.size, positions, flat[positions]) if len(positions) else None

    def spec(self, name: str) -> TensorSpec:
        """Returns the spec of NAME:kept, the positions of a tensor's values that any client has kept."""
        return TensorSpec(
            name + KEPT, "float32", num_rows=self.size, op="union", result_layout="sparse", min_contributors=1
        )

    def update(self, name: str, after: Any) -> dict[str, Any]:
        """Returns the tensors of an update for a client's array of the same size: the array itself, and NAME:kept."""
        kept = self.positions[unchanged(self.values, after.reshape(-1)[self.positions])]
        if len(kept):
            after = after.copy(order="C")
            after.reshape(-1)[kept] = 0
        return {name: after, name + KEPT: (kept, None)}

    def restored(self, merged: Any, kept: Any) -> Any:
        """Returns the merged array with the values that it had at the positions that a client has kept."""
        merged = merged.copy(order="C")
        merged.reshape(-1)[kept] = self.values[np.searchsorted(self.positions, kept)]
        return merged


def split_on_nonfinite(
    options: Mapping[str, Any] | None, names: Iterable[str]
) -> tuple[dict[str, OnNonfinite], dict[str, Any]]:
    """Returns ``on_nonfinite`` of single tensors by name, and the other options of a round.

    There it may also be a mapping from names of tensors, or patterns, to words; the first one that fits counts. Raises
    ``InvalidArgumentError`` for a name of no tensor.
    """
    rest = dict(options or {})
    if not isinstance(rest.get("on_nonfinite"), Mapping):
        return {}, rest
    found: dict[str, OnNonfinite] = {}
    names = list(names)
    for pattern, word in rest.pop("on_nonfinite").items():
        fitting = [name for name in names if name == pattern or fnmatch.fnmatchcase(name, str(pattern))]
        if not fitting:
            raise InvalidArgumentError(f"on_nonfinite has {pattern!r}, which is no tensor of the model")
        for name in fitting:
            found.setdefault(name, word)
    return found, rest
