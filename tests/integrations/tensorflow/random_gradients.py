"""Random sparse gradients of several clients."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

NUM_CASES = 200


class Case(NamedTuple):
    """The gradients of one round.

    Attributes:
        dtype: of the values.
        num_rows: all keys are below it.
        row_width: values per key.
        updates: (keys, rows) of each client; at least one.
        is_exact: all values are small integers, so that no sum in any order is rounded.
    """

    dtype: str
    num_rows: int
    row_width: int
    updates: list[tuple[np.ndarray, np.ndarray]]
    is_exact: bool

    @property
    def is_sorted_and_unique(self) -> bool:
        return all((keys[1:] > keys[:-1]).all() for keys, _ in self.updates)


def random_case(seed: int) -> Case:
    """Half of the cases have sorted, unique keys in each update; the others repeat keys, in any order."""
    rng = np.random.default_rng(seed)
    dtype = str(rng.choice(["float32", "float64"]))
    num_rows, row_width = int(rng.choice([1, 5, 40, 10_000])), int(rng.choice([1, 1, 3, 8]))
    plain, is_exact = rng.random() < 0.5, bool(rng.random() < 0.5)
    pool = rng.integers(0, num_rows, 20)
    updates = []
    for _ in range(rng.integers(1, 8)):
        keys = rng.choice(pool, rng.integers(0, 15))
        if plain:
            keys = np.unique(keys)
        shape = (len(keys), row_width)
        if is_exact:
            rows = rng.integers(-50, 50, shape)
        else:
            rows = rng.standard_normal(shape) * 10.0 ** rng.integers(-4, 4, shape)
        updates.append((keys.astype(np.int64), rows.astype(dtype)))
    return Case(dtype, num_rows, row_width, updates, is_exact)
