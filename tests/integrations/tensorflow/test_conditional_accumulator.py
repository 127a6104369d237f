"""``coordinate_mean`` beside TensorFlow's SparseConditionalAccumulator: the same means, but for documented differences.

The accumulator merges two lists of indices as if both were sorted and unique (README, "If you come from …"). Where a
client's list is not, an index has several entries in its answer, and their means are wrong. ``as_tensorflow_merges``
says what comes out; the accumulator is held to it in all cases, and we to the mean over the clients that sent an index.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import sparseagg as sa
import tensorflow as tf
from random_gradients import NUM_CASES, Case, random_case

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
def accumulators() -> Iterator[dict[tuple[str, int], Accumulator]]:
    made = {
        (dtype, row_width): Accumulator(dtype, row_width) for dtype in ("float32", "float64") for row_width in (1, 3, 8)
    }
    yield made
    for accumulator in made.values():
        accumulator.session.close()


def as_tensorflow_merges(updates: list[tuple[np.ndarray, np.ndarray]]) -> tuple[list[int], list[np.ndarray]]:
    """Returns the entries that TensorFlow's merge of two lists makes, and their means, in the dtype of the rows."""
    merged: list[tuple[int, np.ndarray, int]] = []  # index, sum, number of gradients
    for keys, rows in updates:
        theirs = list(zip(keys.tolist(), rows))
        entries, at, other = [], 0, 0
        while at < len(merged) or other < len(theirs):
            if other == len(theirs) or (at < len(merged) and merged[at][0] < theirs[other][0]):
                entries.append(merged[at])
                at += 1
            elif at == len(merged) or theirs[other][0] < merged[at][0]:
                entries.append((*theirs[other], 1))
                other += 1
            else:
                key, total, count = merged[at]
                entries.append((key, total + theirs[other][1], count + 1))
                at, other = at + 1, other + 1
        merged = entries
    return [key for key, _, _ in merged], [total / total.dtype.type(count) for _, total, count in merged]


def expected_means(case: Case) -> dict[int, np.ndarray]:
    """Returns the float64 mean of each key over the clients that sent it; a repeated key is the sum of its rows."""
    sums: dict[int, np.ndarray] = {}
    senders: dict[int, set[int]] = {}
    for client, (keys, rows) in enumerate(case.updates):
        for key, row in zip(keys.tolist(), rows):
            sums[key] = sums.get(key, np.zeros(case.row_width)) + row.astype(np.float64)
            senders.setdefault(key, set()).add(client)
    return {key: sums[key] / len(senders[key]) for key in sorted(sums)}


def our_means(case: Case) -> sa.TensorResult:
    spec = sa.RoundSpec(
        [sa.TensorSpec("v", case.dtype, num_rows=case.num_rows, row_width=case.row_width)], op="coordinate_mean"
    )
    return sa.aggregate([{"v": update} for update in case.updates], spec)["v"]


def error_bound(case: Case) -> float:
    """Returns a bound on what rounding in the rows' dtype can do to a mean: every value is in at most all sums."""
    values = sum(float(np.abs(rows).sum()) for _, rows in case.updates)
    terms = sum(len(keys) for keys, _ in case.updates)
    return values * terms * float(np.finfo(case.dtype).eps)


@pytest.mark.parametrize("seed", range(NUM_CASES))
def test_means_are_those_of_tensorflow_and_differ_as_documented(seed: int, accumulators) -> None:
    print(f"seed {seed}")
    case = random_case(seed)
    keys, rows = accumulators[case.dtype, case.row_width].mean(case.updates)
    ours = our_means(case)
    our_rows = ours.values.reshape(len(ours), case.row_width)
    bound = 0.0 if case.is_exact else error_bound(case)

    # We: one row a key, the mean over the clients that sent it.
    expected = expected_means(case)
    assert ours.keys.tolist() == list(expected)
    for row, mean in zip(our_rows, expected.values()):
        np.testing.assert_allclose(row, mean.astype(case.dtype), rtol=0, atol=bound)

    # TensorFlow: what its merge of lists makes.
    their_keys, their_rows = as_tensorflow_merges(case.updates)
    assert keys.tolist() == their_keys
    np.testing.assert_array_equal(rows, np.array(their_rows).reshape(rows.shape))

    # The same, wherever its merge may be used.
    if case.is_sorted_and_unique:
        assert keys.tolist() == ours.keys.tolist()
        np.testing.assert_allclose(our_rows, rows, rtol=0, atol=bound)


def test_cases_have_all_kinds() -> None:
    cases = [random_case(seed) for seed in range(NUM_CASES)]
    for kind in ((plain, exact) for plain in (False, True) for exact in (False, True)):
        assert sum((case.is_sorted_and_unique, case.is_exact) == kind for case in cases) >= 20, kind
    differ = 0
    for case in cases:
        their_keys, _ = as_tensorflow_merges(case.updates)
        differ += their_keys != our_means(case).keys.tolist()
    assert differ >= 50


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
def test_documented_cases(updates, theirs, ours, accumulators) -> None:
    updates = [(np.array(keys, np.int64), np.array(rows, np.float32).reshape(-1, 1)) for keys, rows in updates]
    keys, rows = accumulators["float32", 1].mean(updates)
    assert (keys.tolist(), rows[:, 0].tolist()) == theirs
    merged = our_means(Case("float32", 10, 1, updates, True))
    assert (merged.keys.tolist(), merged.values.tolist()) == ours


def test_sums_are_taken_in_the_dtype_there_and_in_float64_here(accumulators) -> None:
    values = [2.0**24, 1.0, 1.0, -(2.0**24)]
    updates = [(np.array([0]), np.array([[value]], np.float32)) for value in values]
    assert accumulators["float32", 1].mean(updates)[1].tolist() == [[0.0]]
    assert our_means(Case("float32", 1, 1, updates, True)).values.tolist() == [0.5]


@pytest.mark.parametrize(("keys", "text"), [([-1], "key -1"), ([10], "key 10")])
def test_keys_outside_are_taken_there_and_refused_here(keys: list[int], text: str, accumulators) -> None:
    update = (np.array(keys), np.ones((1, 1), np.float32))
    assert accumulators["float32", 1].mean([update])[0].tolist() == keys
    with pytest.raises(sa.InvalidArgumentError, match=text):
        our_means(Case("float32", 10, 1, [update], True))


def test_values_that_are_not_finite_are_averaged_there_and_refused_here(accumulators) -> None:
    update = (np.array([1]), np.array([[np.nan]], np.float32))
    assert np.isnan(accumulators["float32", 1].mean([update])[1]).all()
    with pytest.raises(sa.InvalidArgumentError, match="nan"):
        our_means(Case("float32", 10, 1, [update], True))
