"""TensorFlow's tensors as updates, and results as TensorFlow's tensors."""

from __future__ import annotations

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
