"""polars: group_by and sum. Its number of threads is the process's, so one thread has a process of its own."""

from __future__ import annotations

import numpy as np
import polars as pl

from contestants import Contestant, Data, sparse


def contestants(data: Data, threads: int) -> list[Contestant]:
    del threads
    names = [f"v{c}" for c in range(data.row_width)]
    frame = pl.DataFrame(
        {"key": data.keys, **{n: np.ascontiguousarray(data.values[:, c]) for c, n in enumerate(names)}}
    )
    sums = [pl.col(name).sum() for name in names]

    def rows(result: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        return result["key"].to_numpy(), result.select(names).to_numpy()

    return [sparse("polars group_by", pl.thread_pool_size(), lambda: frame.group_by("key").agg(sums), rows)]
