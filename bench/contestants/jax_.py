"""JAX on the CPU, compiled before it is timed: segment_sum, and BCOO.sum_duplicates."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import sparse as jsparse

from contestants import Contestant, Data, dense, sparse


def contestants(data: Data, threads: int) -> list[Contestant]:
    names = [("jax segment_sum", "dense"), ("jax BCOO sum_duplicates", "sparse")]
    if not data.narrow:
        reason = "its keys are int32 unless the whole process is set to 64 bits"
        return [Contestant(name, output, threads, refuses=reason) for name, output in names]
    # It has no option for this: it starts as many threads as there are cores for it, when it is first used.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    keys, values = jnp.asarray(data.keys32), jnp.asarray(data.flat)
    num_keys = len(np.unique(data.keys))  # it must be told how many there will be
    segment_sum = jax.jit(lambda v, k: jax.ops.segment_sum(v, k, num_segments=data.num_rows))
    matrix = jsparse.BCOO((values, keys[:, None]), shape=(data.num_rows, *data.flat.shape[1:]))
    sum_duplicates = jax.jit(lambda m: m.sum_duplicates(nse=num_keys))

    def coalesce() -> Any:
        summed = sum_duplicates(matrix)
        summed.data.block_until_ready()
        return summed

    return [
        dense(
            names[0][0],
            threads,
            data,
            lambda: segment_sum(values, keys).block_until_ready(),
            refuses=data.no_dense(),
        ),
        sparse(
            names[1][0],
            threads,
            coalesce,
            lambda summed: (np.asarray(summed.indices).reshape(-1), np.asarray(summed.data)),
        ),
    ]
