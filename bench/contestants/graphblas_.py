"""SuiteSparse:GraphBLAS: a vector built from coordinates, with plus for duplicates."""

from __future__ import annotations

from typing import Any

import graphblas as gb

from contestants import Contestant, Data, sparse


def contestants(data: Data, threads: int) -> list[Contestant]:
    no_rows = data.no_rows()
    if no_rows is not None:
        return [Contestant("GraphBLAS build", "sparse", 1, refuses=no_rows)]
    keys = data.keys.astype("uint64")

    def run() -> Any:
        vector = gb.Vector.from_coo(keys, data.flat, size=data.num_rows, dup_op=gb.binary.plus)
        vector.wait()  # for what it leaves to be done later
        return vector

    def set_threads(count: int) -> None:
        gb.ss.config["nthreads"] = count

    return [
        sparse("GraphBLAS build", n, run, lambda vector: vector.to_coo(), prepare=lambda n=n: set_threads(n))
        for n in sorted({1, threads})
    ]
