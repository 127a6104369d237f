"""TensorFlow: unsorted_segment_sum."""

from __future__ import annotations

import tensorflow as tf

from contestants import Contestant, Data, dense


def contestants(data: Data, threads: int) -> list[Contestant]:
    name = "tensorflow unsorted_segment_sum"
    if data.no_dense() is not None:
        return [Contestant(name, "dense", threads, refuses=data.no_dense())]
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    keys, values = tf.constant(data.keys64), tf.constant(data.flat)
    segment_sum = tf.function(lambda v, k: tf.math.unsorted_segment_sum(v, k, data.num_rows))
    return [dense(name, threads, data, lambda: segment_sum(values, keys).numpy())]
