"""TensorFlow's SparseConditionalAccumulator, which is what people have for this very job.

One apply_grad a client and a take_grad, in a session, as it is meant to be used. It averages over contributors, as our
coordinate_mean does, so the check multiplies.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from contestants import SEPARATE, Contestant, Data


def contestants(data: Data, threads: int) -> list[Contestant]:
    clients = data.separate(data.keys64, data.flat)
    graph = tf.Graph()
    with graph.as_default():
        accumulator = tf.compat.v1.SparseConditionalAccumulator(tf.float32, shape=None)
        indices = tf.compat.v1.placeholder(tf.int64, [None])
        rows = tf.compat.v1.placeholder(tf.float32, [None] + [data.row_width] * (data.row_width > 1))
        # Each take counts as a step, and gradients of earlier steps are dropped in silence.
        apply = accumulator.apply_grad(indices, rows, local_step=1 << 62)
        take = accumulator.take_grad(data.num_clients)
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads)
    session = tf.compat.v1.Session(graph=graph, config=config)

    def run() -> Any:
        for client_keys, client_rows in clients:
            session.run(apply, {indices: client_keys, rows: client_rows})
        return session.run(take)

    def check(answer: Any, reference: Any) -> str | None:
        if len(answer.indices) != len(reference.keys):
            return f"{len(answer.indices)} keys instead of {len(reference.keys)}"
        order = np.argsort(answer.indices, kind="stable")
        values = answer.values.reshape(len(order), -1)[order] * reference.counts[:, None]
        return reference.error(answer.indices[order], values)

    return [Contestant("tensorflow SparseConditionalAccumulator", "sparse", threads, run, check, SEPARATE)]
