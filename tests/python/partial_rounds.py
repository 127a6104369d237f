"""Rounds that have partials, one of each kind, and random updates for them."""

from __future__ import annotations

import numpy as np
import sparseagg as sa

__all__ = ["SPECS", "updates_of"]

SPECS = {
    "mean": sa.RoundSpec(
        [sa.TensorSpec("v", "float32", num_rows=500, row_width=3), sa.TensorSpec("w", "float16", num_rows=0)],
        op="mean",
        weighting="by_weight",
        numerics="binned",
        max_submissions=64,
        return_counts=True,
        return_weights=True,
    ),
    "coordinate_mean": sa.RoundSpec(
        [sa.TensorSpec("v", "float32", num_rows=500, result_layout="dense")],
        op="coordinate_mean",
        weighting="by_weight",
        numerics="binned",
        min_contributors=2,
    ),
    "dense mean": sa.RoundSpec(
        [sa.TensorSpec("v", "float32", num_rows=70, row_width=3, layout="dense")],
        op="mean",
        weighting="by_weight",
        numerics="binned",
        return_counts=True,
        return_weights=True,
    ),
    "dense, of counts": sa.RoundSpec(
        [sa.TensorSpec("v", "float64", num_rows=70, layout="dense", result_layout="sparse")],
        op="coordinate_mean",
        numerics="binned",
        min_contributors=2,
    ),
    "integers": sa.RoundSpec([sa.TensorSpec("v", "int32", num_rows=500, row_width=2)], op="sum", return_counts=True),
    "integer mean": sa.RoundSpec([sa.TensorSpec("v", "int64", num_rows=0)], op="mean", weighting="by_weight"),
    "weights of integers": sa.RoundSpec(
        [sa.TensorSpec("v", "int32", num_rows=500)], op="coordinate_mean", weighting="by_weight", return_weights=True
    ),
    "weights": sa.RoundSpec(
        [
            sa.TensorSpec("least", "float32", num_rows=500, row_width=2, op="min"),
            sa.TensorSpec("most", "float64", num_rows=70, layout="dense", op="max"),
            sa.TensorSpec("seen", "float32", num_rows=0, op="union"),
            sa.TensorSpec("sum", "float32", num_rows=500, op="sum", numerics="binned"),
        ],
        weighting="by_weight",
        return_weights=True,
    ),
    "modular": sa.RoundSpec([sa.TensorSpec("v", "uint32", num_rows=500, modular=True)]),
    "min": sa.RoundSpec([sa.TensorSpec("v", "float64", num_rows=500)], op="min"),
    "max": sa.RoundSpec([sa.TensorSpec("v", "int32", num_rows=500)], op="max"),
    "union": sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=2**40)], op="union"),
}


def updates_of(spec: sa.RoundSpec, num_clients: int, seed: int) -> dict[str, tuple]:
    rng = np.random.default_rng(seed)
    updates = {}
    for client in range(num_clients):
        update = {}
        for tensor in spec.tensors:
            num_rows = tensor.num_rows or 2**63
            width = tensor.row_width
            num = num_rows if tensor.layout == "dense" else int(rng.integers(0, 90))
            keys = np.arange(num) if tensor.layout == "dense" else rng.integers(0, num_rows, num)
            values = rng.integers(0, 90, num * width)
            rows = None if spec.aggregation_of(tensor).op == "union" else values.astype(tensor.dtype).reshape(-1, width)
            update[tensor.name] = rows if tensor.layout == "dense" else (keys, rows)
        weight = float(rng.integers(1, 8)) / (1 if any("int" in tensor.dtype for tensor in spec.tensors) else 3)
        updates[f"c{client:03}"] = (update, weight if "by_weight" in str(spec) else None)
    return updates
