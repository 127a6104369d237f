"""SciPy: a COO matrix made CSR, a tree of sums of the clients' CSR vectors, and csr.T @ ones, made before or timed."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from contestants import SEPARATE, Contestant, Data, dense, sparse


def contestants(data: Data, threads: int) -> list[Contestant]:
    del threads  # it has one
    no_rows = data.no_rows()
    if no_rows is not None:
        return [
            Contestant("scipy coo → csr, sum_duplicates", "sparse", 1, refuses=no_rows),
            Contestant("scipy csr tree", "sparse", 1, inputs=SEPARATE, refuses=no_rows),
            _by_selection(data),
        ]
    index = np.int32 if data.narrow else np.int64
    keys, values = data.keys.astype(index), data.flat
    row = np.zeros(len(keys), index)
    separate = data.separate(keys, values)
    clients = [
        sp.csr_matrix((client_values, client_keys, np.array([0, len(client_keys)], index)), shape=(1, data.num_rows))
        for client_keys, client_values in separate
    ]

    def coo() -> Any:
        matrix = sp.coo_matrix((values, (row, keys)), shape=(1, data.num_rows)).tocsr()
        matrix.sum_duplicates()
        return matrix

    def tree() -> Any:
        level = clients
        while len(level) > 1:
            pairs = [level[i] + level[i + 1] for i in range(0, len(level) - 1, 2)]
            level = pairs + level[len(pairs) * 2 :]
        return level[0]

    def rows(matrix: Any) -> tuple[np.ndarray, np.ndarray]:
        return matrix.indices, matrix.data

    found = [
        sparse("scipy coo → csr, sum_duplicates", 1, coo, rows),
        sparse("scipy csr tree", 1, tree, rows, inputs=SEPARATE),
    ]
    if data.no_dense() is not None:
        return [*found, Contestant("scipy csr.T @ ones", "dense", 1, refuses=data.no_dense())]
    offsets, shape = data.offsets.astype(index), (data.num_clients, data.num_rows)
    matrix = sp.csr_matrix((values, keys, offsets), shape=shape)
    ones = np.ones(data.num_clients, np.float32)

    def joining() -> np.ndarray:
        joined = (np.concatenate([rows for _, rows in separate]), np.concatenate([keys for keys, _ in separate]))
        return sp.csr_matrix((*joined, offsets), shape=shape).T @ ones

    return [
        *found,
        dense("scipy csr.T @ ones", 1, data, lambda: matrix.T @ ones),
        dense("scipy concatenate, csr.T @ ones", 1, data, joining, inputs=SEPARATE),
    ]


def _by_selection(data: Data) -> Contestant:
    """Rows: the matrix that selects each tuple's key, times the rows."""
    count = len(data.keys)
    selection = sp.csr_matrix(
        (np.ones(count, np.float32), data.keys.astype(np.int32), np.arange(count + 1, dtype=np.int32)),
        shape=(count, data.num_rows),
    )
    return dense("scipy csr.T @ ones", 1, data, lambda: selection.T @ data.values, refuses=data.no_dense())
