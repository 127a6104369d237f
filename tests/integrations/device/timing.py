"""Times merges of arrays on a GPU beside torch's, and beside the CPU engine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import sparseagg as sa
from checking import Checks, expect_same, vector


def times(checks: Checks) -> dict[str, Any]:
    """Times 10⁷ tuples in 100 updates, which are distinct within an update."""
    import torch

    table: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "updates": 100, "tuples": 10**7, "num_rows": 1 << 22}
    for order in ("ascending", "any order"):
        with checks.named(f"times, keys in {order}"):
            rng = np.random.default_rng(16)
            host = []
            for _ in range(100):
                keys = rng.choice(1 << 22, 100_000, replace=False, shuffle=order != "ascending")
                if order == "ascending":
                    keys.sort()
                host.append((keys, rng.standard_normal(100_000, np.float32)))
            table[order] = times_of(torch, host, vector(1 << 22))
            for name, ms in table[order].items():
                print(f"        {ms:9.2f} ms  {name}", flush=True)
    return table


def times_of(torch: Any, host: list[Any], spec: sa.RoundSpec) -> dict[str, float]:
    """Returns milliseconds of each way to merge the same updates."""
    device = [tuple(torch.from_numpy(array).cuda() for array in pair) for pair in host]
    expect_same(device, host, spec)

    def coalesced() -> Any:
        keys, rows = (torch.cat(parts) for parts in zip(*device))
        return torch.sparse_coo_tensor(keys[None], rows, (spec.tensors[0].num_rows,)).coalesce()

    def copied() -> Any:
        return sa.aggregate([(keys.cpu().numpy(), rows.cpu().numpy()) for keys, rows in device], spec, device="cpu")

    def kept() -> Any:
        aggregator = sa.Aggregator(spec, device="cuda")
        aggregator.add_all(device)
        return aggregator.finish_on_device()

    ways = {
        "sparseagg, device arrays, result on the device": kept,
        "sparseagg, device arrays, result on the host": lambda: sa.aggregate(device, spec, device="cuda"),
        "sparseagg, host arrays to the CUDA engine": lambda: sa.aggregate(host, spec, device="cuda"),
        "torch coalesce, result on the device": coalesced,
        "torch coalesce, result on the host": lambda: coalesced().cpu(),
        "copy to the host, CPU engine": copied,
        "CPU engine, arrays on the host": lambda: sa.aggregate(host, spec, device="cpu"),
    }
    return {name: median_ms(torch, way) for name, way in ways.items()}


def median_ms(torch: Any, call: Callable[[], Any]) -> float:
    call()
    taken = []
    for _ in range(5):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        result = call()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - begin)
        del result
    return round(1e3 * statistics.median(taken), 3)
