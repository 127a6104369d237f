"""Random cuts of results, and moments, for the specs of random_rounds."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import sparseagg as sa

__all__ = ["has_norms", "with_random_cuts"]

NORMS = [2.0**-500, 1e-6, 0.5, 2.0, 10.0, 300.0, 1e5]


def has_norms(spec: sa.RoundSpec, tensor: sa.TensorSpec) -> bool:
    """Whether the tensor's result can be cut."""
    how = spec.aggregation_of(tensor)
    return how.result_layout == "sparse" and how.op != "union" and not tensor.modular


def with_random_cuts(rng: np.random.Generator, spec: sa.RoundSpec) -> sa.RoundSpec:
    """Returns the spec with cuts that some of its tensors take, if any can, and with moments."""
    tensors = list(spec.tensors)
    for index, tensor in enumerate(tensors):
        own = _random_cut(rng, zero=True) if has_norms(spec, tensor) and rng.random() < 0.4 else {}
        how = spec.aggregation_of(tensor)
        is_sum = how.op in ("sum", "mean", "coordinate_mean") and not tensor.modular
        if is_sum and how.numerics == "canonical" and rng.random() < 0.5:
            own["return_moments"] = True
        tensors[index] = dataclasses.replace(tensor, **own) if own else tensor
    of_round = _random_cut(rng) if any(has_norms(spec, tensor) for tensor in tensors) and rng.random() < 0.7 else {}
    return dataclasses.replace(spec, tensors=tuple(tensors), **of_round)


def _random_cut(rng: np.random.Generator, *, zero: bool = False) -> dict[str, Any]:
    cut: dict[str, Any] = {}
    if rng.random() < 0.7:
        cut["result_top_k"] = int(rng.choice([1, 2, 5, 13, 25, 100, *([0] if zero else [])]))
    if rng.random() < 0.4:
        cut["result_min_norm"] = float(rng.choice([*NORMS, *([0.0] if zero else [])]))
    return cut
