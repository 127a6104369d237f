"""A check of a training round, bit for bit, against the same mean in NumPy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sparseagg._internal.results.result import TensorResult
from sparseagg._internal.updates.arrays import Array

__all__ = ["Submitted", "differences", "weighted_mean"]

# What one client submitted: keys, each once, and float32 rows by tensor; and the weight.
Submitted = tuple[Mapping[str, tuple[Array, Array]], float]


def weighted_mean(
    updates: Mapping[str, Submitted], name: str, num_rows: int, row_width: int
) -> tuple[Array, Array, Array]:
    """Returns what the server must return for one tensor: keys, float32 rows and counts of contributors.

    The sums are a dense float64 table, folded in ascending order of client id as docs/numerics.md says. NumPy rounds
    each product and each sum once, so the rows have the server's bits.
    """
    sums, counts, total = np.zeros((num_rows, row_width)), np.zeros(num_rows, np.uint32), 0.0
    for client_id in sorted(updates, key=str.encode):
        tensors, weight = updates[client_id]
        keys, rows = tensors[name]
        sums[keys] += weight * rows.astype(np.float64)
        counts[keys] += 1
        total += weight
    touched = np.flatnonzero(counts)
    rows = (sums[touched] / total).astype(np.float32) + np.float32(0)  # a result has no −0.0
    return touched, rows, counts[touched]


def differences(updates: Mapping[str, Submitted], result: Mapping[str, TensorResult]) -> list[str]:
    """Returns one sentence for each difference of ``result`` from the weighted means; an empty list where none is."""
    found = []
    for name, tensor in result.items():
        keys, rows, counts = weighted_mean(updates, name, tensor.num_rows, tensor.row_width)
        if not np.array_equal(tensor.keys, keys):
            found.append(f"{name}: {len(tensor.keys)} keys instead of {len(keys)}, or other ones")
            continue
        if tensor.values is None or tensor.values.tobytes() != rows.tobytes():
            found.append(f"{name}: other values")
        if tensor.counts is None or not np.array_equal(tensor.counts, counts):
            found.append(f"{name}: other counts")
    return found
