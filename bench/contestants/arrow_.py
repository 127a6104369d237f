"""Arrow: Table.group_by and sum."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from contestants import Contestant, Data, sparse


def contestants(data: Data, threads: int) -> list[Contestant]:
    columns = [np.ascontiguousarray(data.values[:, c]) for c in range(data.row_width)]
    names = [f"v{c}" for c in range(data.row_width)]
    table = pa.table({"key": data.keys64, **dict(zip(names, columns))})
    sums = [(name, "sum") for name in names]

    def rows(result: pa.Table) -> tuple[np.ndarray, np.ndarray]:
        return result["key"].to_numpy(), np.column_stack([result[f"{name}_sum"].to_numpy() for name in names])

    return [
        sparse(
            "pyarrow group_by",
            count,
            lambda use=count > 1: table.group_by("key", use_threads=use).aggregate(sums),
            rows,
            prepare=lambda count=count: pa.set_cpu_count(count),
        )
        for count in sorted({1, threads})
    ]
