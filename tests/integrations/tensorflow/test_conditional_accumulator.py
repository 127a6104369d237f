"""``coordinate_mean`` beside TensorFlow's SparseConditionalAccumulator: the same means, but for documented differences.

The accumulator merges two lists of indices as if both were sorted and unique (README, "If you come from …"). Where a
client's list is not, an index has several entries in its answer, and their means are wrong.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import sparseagg as sa
import tensorflow as tf

V1 = tf.compat.v1


class Accumulator:
    """TensorFlow's, which works in graphs only."""

    def __init__(self, dtype: str, row_width: int) -> None:
        with tf.Graph().as_default() as graph:
            accumulator = V1.SparseConditionalAccumulator(dtype, shape=tf.TensorShape([None, row_width]))
            self.keys, self.rows = V1.placeholder(tf.int64, [None]), V1.placeholder(dtype, [None, row_width])
            self.count = V1.placeholder(tf.int32, [])
            # From the step after the last: gradients of an earlier step are dropped, and take_grad waits for others.
            self.apply = accumulator.apply_grad(self.keys, self.rows, local_step=1 << 40)
            self.take = accumulator.take_grad(self.count)
        self.session = V1.Session(graph=graph)

    def mean(self, updates: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
        for keys, rows in updates:
            self.session.run(self.apply, {self.keys: keys, self.rows: rows})
        keys, rows, _ = self.session.run(self.take, {self.count: len(updates)})
        return keys, rows


@pytest.fixture(scope="module")
def accumulator() -> Iterator[Accumulator]:
    made = Accumulator("float32", 1)
    yield made
    made.session.close()


def our_means(updates: list[tuple[np.ndarray, np.ndarray]]) -> sa.TensorResult:
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=10)], op="coordinate_mean")
    return sa.aggregate([{"v": update} for update in updates], spec)["v"]


@pytest.mark.parametrize(
    ("updates", "theirs", "ours"),
    [
        # README: an index twice in one gradient; indices out of order.
        ([([3, 3], [1, 3]), ([3], [5])], ([3, 3], [3, 3]), ([3], [4.5])),
        ([([5, 1], [5, 1]), ([1, 5], [10, 50])], ([1, 5, 1], [10, 27.5, 1]), ([1, 5], [5.5, 27.5])),
        # As we do: an empty gradient counts for no index, and a sum of 0 is an entry.
        ([([], []), ([1], [1])], ([1], [1]), ([1], [1])),
        ([([1], [1]), ([1], [-1])], ([1], [0]), ([1], [0])),
    ],
)
def test_documented_cases(updates, theirs, ours, accumulator) -> None:
    updates = [(np.array(keys, np.int64), np.array(rows, np.float32).reshape(-1, 1)) for keys, rows in updates]
    keys, rows = accumulator.mean(updates)
    assert (keys.tolist(), rows[:, 0].tolist()) == theirs
    merged = our_means(updates)
    assert (merged.keys.tolist(), merged.values.tolist()) == ours


def test_sums_are_taken_in_the_dtype_there_and_in_float64_here(accumulator) -> None:
    values = [2.0**24, 1.0, 1.0, -(2.0**24)]
    updates = [(np.array([0]), np.array([[value]], np.float32)) for value in values]
    assert accumulator.mean(updates)[1].tolist() == [[0.0]]
    assert our_means(updates).values.tolist() == [0.5]
