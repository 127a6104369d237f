"""TensorFlow's tensors as updates, and results as TensorFlow's tensors."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import ml_dtypes
import numpy as np
import pytest
import sparseagg as sa
import tensorflow as tf

NUM_ROWS, WIDTH = 12, 4
DTYPES = ["float16", "bfloat16", "float32", "float64", "int32", "int64"]


def merge(tensor, dtype="float32", num_rows=NUM_ROWS, row_width=WIDTH, **options) -> sa.TensorResult:
    spec = sa.RoundSpec([sa.TensorSpec("v", dtype, num_rows=num_rows, row_width=row_width)], **options)
    return sa.aggregate([{"v": tensor}], spec)["v"]


def as_dense(result: sa.TensorResult) -> list:
    return np.asarray(result.dense(), np.float64).tolist()


def slices(indices, values, shape=(NUM_ROWS, WIDTH), index_dtype=tf.int64) -> tf.IndexedSlices:
    shape = None if shape is None else tf.constant(shape, index_dtype)
    return tf.IndexedSlices(values, tf.constant(indices, index_dtype), shape)


@pytest.mark.parametrize("index_dtype", [tf.int32, tf.int64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_indexed_slices_go_in_and_come_out(dtype: str, index_dtype: tf.DType) -> None:
    rows = tf.cast(tf.reshape(tf.range(3 * WIDTH), (3, WIDTH)) - 5, dtype)
    result = merge(slices([7, 2, 7], rows, index_dtype=index_dtype), dtype)
    expected = tf.convert_to_tensor(slices([7, 2, 7], tf.cast(rows, tf.float64)))
    assert as_dense(result) == expected.numpy().tolist()
    out = result.to_tf()
    assert isinstance(out, tf.IndexedSlices)
    assert out.indices.dtype == tf.int64
    assert out.dense_shape.numpy().tolist() == [NUM_ROWS, WIDTH]
    assert out.values.dtype == ("int64" if dtype == "int32" else dtype)
    assert tf.cast(tf.convert_to_tensor(out), tf.float64).numpy().tolist() == expected.numpy().tolist()
    again = merge(out, out.values.dtype.name)
    assert as_dense(again) == as_dense(result)


def test_indexed_slices_of_a_gradient_are_taken_as_they_are() -> None:
    table = tf.Variable(tf.random.stateless_normal((NUM_ROWS, 2, 2), seed=(3, 4)))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, [[3, 8], [3, 1]]) ** 3)
    gradient = tape.gradient(loss, table)
    assert isinstance(gradient, tf.IndexedSlices)
    assert gradient.indices.shape == (4,)  # row 3 twice: its sum is the engine's
    result = merge(gradient, return_counts=True)
    assert result.keys.tolist() == [1, 3, 8]
    assert result.counts.tolist() == [1, 1, 1]
    dense = tf.convert_to_tensor(gradient).numpy().reshape(NUM_ROWS, WIDTH)
    np.testing.assert_array_equal(result.dense(), dense)


@pytest.mark.parametrize("make", [tf.constant, tf.Variable, keras.Variable], ids=["tensor", "variable", "keras"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_dense_tensors_go_in_and_come_out(make, dtype: str) -> None:
    values = np.arange(NUM_ROWS * WIDTH).reshape(NUM_ROWS, WIDTH) - 20
    given = make(values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype), dtype=dtype)
    result = merge(given, dtype, result_layout="dense")
    assert as_dense(result) == values.tolist()
    out = result.to_tf()
    assert isinstance(out, tf.Tensor)
    assert out.dtype == dtype
    assert tf.cast(out, tf.int32).numpy().tolist() == values.tolist()


def test_symbolic_tensors_are_refused() -> None:
    @tf.function
    def traced(rows):
        with pytest.raises(sa.InvalidArgumentError, match=r"tensor 'v': cannot read .*SymbolicTensor"):
            merge((np.array([1, 2]), rows))
        with pytest.raises(sa.InvalidArgumentError, match="tensor 'v': cannot read"):
            merge(tf.IndexedSlices(rows, tf.constant([1, 2]), tf.constant([NUM_ROWS, WIDTH])))
        return rows

    traced(tf.ones((2, WIDTH)))


# ---- ``coordinate_mean`` beside TensorFlow's SparseConditionalAccumulator: the same means, but for known differences
# The accumulator merges two lists of indices as if both were sorted and unique (README, "If you come from …"). Where a
# client's list is not, an index has several entries in its answer, and their means are wrong.


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
