"""Values of a model that are not finite, such as the −inf of an attention mask, and what clients make of them.

Such a value cannot be summed up, and is no fault of a client that has left it alone. So the update of a whole array has
zeros in the place of those values, and beside the array a tensor NAME:kept, whose keys are their positions. In the next
model, a position that any client has kept has the value that it had, as in FedAvg's mean of −inf and others; one that
all clients have changed has their mean.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import sparseagg as sa

__all__ = ["KEPT", "kept_spec", "nonfinite_positions", "unchanged", "with_kept", "without_kept"]

KEPT = ":kept"


def unchanged(before: Any, after: Any) -> Any:
    """Returns where two arrays have the same value; NaN is the same as NaN."""
    same = before == after
    return same | (np.isnan(before) & np.isnan(after)) if before.dtype.kind == "f" == after.dtype.kind else same


def nonfinite_positions(values: Any) -> Any:
    """Returns the flat positions of the values that are not finite."""
    flat = values.reshape(-1)
    if flat.dtype.kind != "f":
        return np.empty(0, np.int64)
    with np.errstate(all="ignore"):
        if np.isfinite(np.add.reduce(flat)):  # as fast as memory, and needs none; a sum that overflows proves nothing
            return np.empty(0, np.int64)
    return np.flatnonzero(~np.isfinite(flat))


def kept_spec(name: str, num_values: int) -> sa.TensorSpec:
    """Returns the spec of NAME:kept, the positions of a tensor's values that any client has kept."""
    return sa.TensorSpec(name + KEPT, "float32", num_values, op="union", result="sparse", min_contributors=1)


def without_kept(before: Any, after: Any, positions: Any) -> tuple[Any, Any]:
    """Returns the array of an update with zeros at what the client has kept, and the keys of NAME:kept.

    Args:
        before: the model's array.
        after: the client's, of the same size.
        positions: of ``nonfinite_positions(before)``.
    """
    old, new = before.reshape(-1)[positions], after.reshape(-1)[positions]
    kept = positions[unchanged(old, new)]
    if len(kept):
        after = after.copy(order="C")
        after.reshape(-1)[kept] = 0
    return after, kept


def with_kept(before: Any, merged: Any, kept: Any) -> Any:
    """Returns the merged array with the model's values at the positions that a client has kept."""
    merged = merged.copy(order="C")
    merged.reshape(-1)[kept] = before.reshape(-1)[kept]
    return merged
