"""torch: coalesce of a COO tensor, and index_add_, of all tuples and client by client."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
import torch

from contestants import SEPARATE, Contestant, Data, dense, sparse

warnings.filterwarnings("ignore", message="Sparse invariant checks")


def contestants(data: Data, threads: int) -> list[Contestant]:
    keys, values = torch.from_numpy(data.keys64), torch.from_numpy(data.flat)
    clients = data.separate(keys, values)
    shape = (data.num_rows, *values.shape[1:])

    def coalesce(of: torch.Tensor = values) -> Any:
        tensor = torch.sparse_coo_tensor(keys[None, :], of, shape, check_invariants=False, is_coalesced=False)
        return tensor.coalesce()

    def index_add() -> torch.Tensor:
        return torch.zeros(shape).index_add_(0, keys, values)

    def client_by_client() -> torch.Tensor:
        out = torch.zeros(shape)
        for client_keys, client_values in clients:
            out.index_add_(0, client_keys, client_values)
        return out

    def rows(tensor: Any) -> tuple[np.ndarray, np.ndarray]:
        return tensor.indices()[0].numpy(), tensor.values().numpy()

    def narrow_rows(tensor: Any) -> tuple[np.ndarray, np.ndarray, int]:
        return tensor.indices()[0].numpy(), tensor.values().float().numpy(), 7

    narrow = values.to(torch.bfloat16) if data.one_update else None
    found = []
    for count in sorted({1, threads}):
        set_threads = {"prepare": lambda count=count: torch.set_num_threads(count)}
        found.append(sparse("torch coalesce", count, coalesce, rows, **set_threads))
        if narrow is not None:
            run = functools.partial(coalesce, narrow)
            found.append(sparse("torch coalesce, bfloat16", count, run, narrow_rows, **set_threads))
        more = {"refuses": data.no_dense(), **set_threads}
        found.append(dense("torch index_add_", count, data, index_add, **more))
        found.append(dense("torch index_add_, each", count, data, client_by_client, inputs=SEPARATE, **more))
    return found
