"""Specs and updates of rounds with privacy."""

from __future__ import annotations

from typing import Any

import numpy as np
import sparseagg as sa

KEY = bytes(range(32))


def private_spec(privacy: sa.DP | None = None, **options: Any) -> sa.RoundSpec:
    """Returns a spec that privacy takes: a sparse tensor "v" of 100 rows of two, and a dense one of four."""
    tensors = [
        sa.TensorSpec("v", "float64", num_rows=100, row_width=2),
        sa.TensorSpec("bias", "float64", num_rows=4, row_width=1, layout="dense"),
    ]
    given = {
        "numerics": "fixed_point",
        "max_submissions": 1000,
        "clip": sa.ClipSpec(l2=1.0, max_keys=4),
        "privacy": privacy or sa.DP(noise_multiplier=2**-10, key_noise_multiplier=0.5, delta=1e-6),
        **options,
    }
    return sa.RoundSpec(tensors, **given)


def crowd(clients: int, keys: tuple[int, ...] = (3, 70)) -> dict[str, dict[str, Any]]:
    """Returns updates of clients that all have the same keys, and of norms below 1."""
    rows = np.full((len(keys), 2), 0.125)
    return {f"c{i}": {"v": (np.array(keys), rows), "bias": np.full((4, 1), 0.25)} for i in range(clients)}
