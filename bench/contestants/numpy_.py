"""NumPy: bincount, add.at, argsort with add.reduceat, and adding client by client."""

from __future__ import annotations

import numpy as np

from contestants import SEPARATE, Contestant, Data, dense, sparse


def contestants(data: Data, threads: int) -> list[Contestant]:
    del threads  # it has one
    keys, values = data.keys64, data.flat
    clients = data.separate(keys, values)
    no_dense = data.no_dense()

    def add_at() -> np.ndarray:
        out = np.zeros((data.num_rows, *values.shape[1:]), np.float32)
        np.add.at(out, keys, values)
        return out

    def client_by_client() -> np.ndarray:
        out = np.zeros((data.num_rows, *values.shape[1:]), np.float32)
        for client_keys, client_values in clients:
            out[client_keys] += client_values  # a client's keys are unique
        return out

    def sort() -> tuple[np.ndarray, np.ndarray]:
        order = np.argsort(data.keys, kind="stable")
        ordered = data.keys[order]
        starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        return ordered[starts], np.add.reduceat(values[order], starts, axis=0)

    return [
        sparse("numpy argsort+reduceat", 1, sort, lambda answer: answer),
        dense("numpy add.at", 1, data, add_at, refuses=no_dense),
        dense("numpy out[keys] += rows", 1, data, client_by_client, inputs=SEPARATE, refuses=no_dense),
        dense(
            "numpy bincount",
            1,
            data,
            lambda: np.bincount(keys, values, data.num_rows),
            refuses=no_dense or data.no_rows(),
        ),
    ]
