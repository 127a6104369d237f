"""DuckDB: GROUP BY over the arrays as an Arrow table, fetched as one."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from contestants import Contestant, Data, sparse


def contestants(data: Data, threads: int) -> list[Contestant]:
    names = [f"v{c}" for c in range(data.row_width)]
    columns = {name: np.ascontiguousarray(data.values[:, c]) for c, name in enumerate(names)}
    table = pa.table({"key": data.keys, **columns})
    connection = duckdb.connect()
    connection.register("tuples", table)
    query = f"SELECT key, {', '.join(f'sum({name}) AS {name}' for name in names)} FROM tuples GROUP BY key"

    def run() -> Any:
        result = connection.execute(query)
        # The method has had several names.
        fetch = getattr(result, "to_arrow_table", None) or result.fetch_arrow_table
        return fetch()

    def rows(result: Any) -> tuple[np.ndarray, np.ndarray]:
        return result["key"].to_numpy(), np.column_stack([result[name].to_numpy() for name in names])

    return [
        sparse("duckdb GROUP BY", n, run, rows, prepare=lambda n=n: connection.execute(f"SET threads TO {n}"))
        for n in sorted({1, threads})
    ]
