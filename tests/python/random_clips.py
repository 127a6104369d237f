"""Random bounds for the specs of random_rounds."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import sparseagg as sa
from random_rounds import ORDER_OPS


def has_floats(spec: sa.RoundSpec, tensor: sa.TensorSpec) -> bool:
    """Whether bounds may apply to the tensor."""
    return "float" in tensor.dtype and spec.aggregation_of(tensor).op != "union"


def random_clip(rng: np.random.Generator, *, of_tensor: bool, sparse: bool, scales: bool = True) -> sa.ClipSpec:
    """``scales``: whether values may be multiplied, by an L2 norm; those of order statistics may not."""
    none = [math.inf] if of_tensor else []
    bounds: dict[str, Any] = {}
    if scales and rng.random() < 0.8:
        bounds["l2"] = float(rng.choice([1e-3, 0.3, 7.0, 100.0, 1e4, *none]))
    if rng.random() < 0.4:
        bounds["linf"] = float(rng.choice([1e-4, 0.1, 2.5, 1000.0, *none]))
    if sparse and rng.random() < 0.4:
        bounds["max_keys"] = int(rng.choice([1, 3, 10, 100, *([0] if of_tensor else [])]))
    if not bounds:
        bounds["l2" if scales else "linf"] = 2.0
    if rng.random() < 0.2 and math.inf not in bounds.values() and bounds.get("max_keys") != 0:
        bounds["on_clip"] = str(rng.choice(["clip", "reject"]))
    return sa.ClipSpec(**bounds)


def with_random_clips(rng: np.random.Generator, spec: sa.RoundSpec) -> sa.RoundSpec | None:
    """Returns the spec with bounds that some of its tensors take; None if none can. Means get random divisors."""
    floats = [tensor for tensor in spec.tensors if has_floats(spec, tensor)]
    if not floats:
        return None
    tensors = list(spec.tensors)
    for index, tensor in enumerate(tensors):
        if tensor in floats and rng.random() < 0.3:
            scales = spec.aggregation_of(tensor).op not in ORDER_OPS
            clip = random_clip(rng, of_tensor=True, sparse=tensor.layout == "sparse", scales=scales)
            tensors[index] = dataclasses.replace(tensor, clip=clip)
        if spec.aggregation_of(tensor).op == "mean" and rng.random() < 0.5:
            divisor = str(rng.choice(["weights", "submissions", "fixed"]))
            constant = 7.5 if divisor == "fixed" else None
            tensors[index] = dataclasses.replace(tensors[index], mean_divisor=divisor, fixed_divisor=constant)
    # The round has only bounds that a tensor without bounds of its own takes.
    left = [tensor for tensor in tensors if has_floats(spec, tensor) and tensor.clip is None]
    clip = None
    if left:
        # A tensor whose own bounds have no L2 norm takes that of the round.
        takers = [each for each in tensors if has_floats(spec, each) and (each.clip is None or each.clip.l2 is None)]
        scales = all(spec.aggregation_of(tensor).op not in ORDER_OPS for tensor in takers)
        sparse = any(tensor.layout == "sparse" for tensor in left)
        clip = random_clip(rng, of_tensor=False, sparse=sparse, scales=scales)
    return dataclasses.replace(spec, tensors=tuple(tensors), clip=clip, on_nonfinite=None)
