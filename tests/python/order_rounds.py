"""Random rounds whose ops are order statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import reference
import sparseagg as sa
from random_rounds import order_options

__all__ = ["random_order_round"]

# Contributors at one key: at and around the sizes at which engines change the algorithm.
CONTRIBUTORS = [1, 2, 3, 7, 8, 16, 31, 32, 33, 64, 65, 128, 129, 1025]
DTYPES = ["float32", "float32", "float16", "bfloat16", "float64", "int32", "int64"]


def random_order_round(
    rng: np.random.Generator,
) -> tuple[sa.RoundSpec, dict[str, tuple[dict[str, Any], float]], dict[str, reference.Update]]:
    """Returns a spec of one tensor, updates with weights for ``sa.aggregate``, and the same for the reference."""
    most = int(rng.choice(CONTRIBUTORS, p=_rare_last(len(CONTRIBUTORS))))
    spec = _random_spec(rng)
    tensor = spec.tensors[0]
    num_clients = most + int(rng.integers(0, 3))
    keys = _random_keys(rng, tensor, most)
    updates, expected = {}, {}
    for client in range(num_clients):
        name = f"client-{int(rng.integers(0, 10**6)):06}-{client}"  # ids in no order
        weight = _random_weight(rng, spec, tensor)
        data = _random_update(rng, spec, tensor, keys, most / num_clients)
        updates[name] = ({"v": data}, weight)
        expected[name] = _as_reference(tensor, data, weight)
    return spec, updates, expected


def _rare_last(size: int) -> np.ndarray:
    """Probabilities: the largest size is slow in the reference, and rare."""
    odds = np.ones(size)
    odds[-1] = 0.25
    return odds / odds.sum()


def _random_spec(rng: np.random.Generator) -> sa.RoundSpec:
    op = str(rng.choice(["median", "median", "trimmed_mean", "trimmed_mean", "quantile"]))
    dtype = str(rng.choice(DTYPES))
    options: dict[str, Any] = {"op": op, **order_options(rng, op)}
    if rng.random() < 0.4:
        options["weighting"] = "by_weight"
    if rng.random() < 0.3:
        options["result_dtype"] = str(rng.choice(["float32", "float64"]))
    if "float" in dtype and rng.random() < 0.4:
        options["on_nonfinite"] = "propagate"
    num_rows = int(rng.choice([5, 60, 3000, 2**32, 2**40, 0]))
    layout: dict[str, Any] = {}
    if num_rows == 5 and rng.random() < 0.5:
        layout["layout"] = "dense"
    if 0 < num_rows <= 3000 and rng.random() < 0.4:
        options.update(result_layout=str(rng.choice(["dense", "auto"])), fill=2.0)
    if num_rows != 5 and rng.random() < 0.2:
        options["prune_zeros"] = True
    tensor = sa.TensorSpec("v", dtype, num_rows=num_rows, row_width=int(rng.choice([1, 1, 1, 2, 3, 16, 19])), **layout)
    counts = bool(rng.random() < 0.5)
    return sa.RoundSpec(
        [tensor],
        return_counts=counts,
        return_weights=bool(rng.random() < 0.4),
        min_contributors=int(rng.choice([1, 1, 2, 3, 5])),
        **options,
    )


def _random_keys(rng: np.random.Generator, tensor: sa.TensorSpec, most: int) -> np.ndarray:
    """Keys that all updates draw from, for rows enough to fill vectors, but few enough for the reference."""
    wanted = int(rng.integers(1, max(2, min(200, 4000 // (most * tensor.row_width)))))
    last = np.uint64(tensor.num_rows - 1) if tensor.num_rows else np.uint64(2**64 - 1)
    keys = np.unique(rng.integers(0, last, wanted, np.uint64, True))
    if rng.random() < 0.5:  # one behind another
        keys = (keys[0] // np.uint64(2)) + np.arange(len(keys), dtype=np.uint64)
        keys = keys[keys <= last]
    return keys


def _random_weight(rng: np.random.Generator, spec: sa.RoundSpec, tensor: sa.TensorSpec) -> float:
    if spec.weighting != "by_weight":
        return 1.0
    if "int" in tensor.dtype or rng.random() < 0.5:
        return float(rng.integers(0, 5) if rng.random() < 0.1 else rng.integers(1, 5))
    return float(rng.choice([0.1, 0.2, 0.3, rng.uniform(0, 10)]))


def _random_update(
    rng: np.random.Generator, spec: sa.RoundSpec, tensor: sa.TensorSpec, keys: np.ndarray, presence: float
) -> Any:
    if tensor.layout == "dense":
        return _random_values(rng, spec, tensor, tensor.num_rows)
    chosen = keys[rng.random(len(keys)) < max(presence, 0.5)]
    if rng.random() < 0.15 and len(chosen) > 0:
        chosen = np.concatenate([chosen, rng.choice(chosen, 2)])  # repeated keys
    if rng.random() < 0.5:
        rng.shuffle(chosen)
    return chosen, _random_values(rng, spec, tensor, len(chosen))


def _random_values(rng: np.random.Generator, spec: sa.RoundSpec, tensor: sa.TensorSpec, rows: int) -> np.ndarray:
    shape = (rows, tensor.row_width)
    if "int" in tensor.dtype:
        values = rng.integers(-3, 4, shape) if rng.random() < 0.5 else rng.integers(-(2**31), 2**31, shape)
        if tensor.dtype == "int64" and rng.random() < 0.2:
            values = values << 31  # sums of some of these leave int64
        return values.astype(tensor.dtype)
    ties = rng.integers(-2, 3, shape).astype(np.float64)
    values = ties if rng.random() < 0.5 else rng.standard_normal(shape) * 10.0 ** rng.integers(-8, 4, shape)
    values[rng.random(shape) < 0.05] = -0.0
    values[rng.random(shape) < 0.02] = 5e-324 if tensor.dtype == "float64" else 1e-45
    values[rng.random(shape) < 0.02] = 6e4
    if spec.on_nonfinite == "propagate":
        values[rng.random(shape) < 0.05] = np.inf
        values[rng.random(shape) < 0.05] = -np.inf
        if rng.random() < 0.2:
            values[rng.random(shape) < 0.05] = np.nan
    if tensor.dtype == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    with np.errstate(over="ignore"):
        return values.astype(tensor.dtype)


def _as_reference(tensor: sa.TensorSpec, data: Any, weight: float) -> reference.Update:
    keys, rows = data if isinstance(data, tuple) else (None, data)
    if tensor.dtype == "bfloat16":
        rows = (rows.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return reference.Update({"v": (keys, rows)}, weight)
