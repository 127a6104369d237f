"""Holds a round's result to the reference, bit for bit."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np

from sparseagg import reference
from sparseagg.result import Result
from sparseagg.spec import RoundSpec

__all__ = ["differences"]


def differences(spec: RoundSpec, updates: Mapping[str, reference.Update], result: Result) -> list[str]:
    """Merges the updates with the slow reference, and returns in words how ``result`` differs: not at all, if empty."""
    found = []
    for name, expected in reference.merge(spec, updates, check=False).items():
        tensor = result[name]
        if tensor.keys.tolist() != expected.keys:
            found.append(f"{name}: {len(tensor.keys)} keys instead of {len(expected.keys)}, or other ones")
            continue
        values = b"" if tensor.values is None else np.ascontiguousarray(tensor.values).tobytes()
        if values != reference.encode_values(expected.rows or [], expected.dtype):
            found.append(f"{name}: other values")
        if tensor.counts is not None and tensor.counts.tolist() != expected.counts:
            found.append(f"{name}: other counts")
        if tensor.weights is not None:
            weights = struct.pack(f"<{len(expected.weights)}d", *expected.weights)
            if tensor.weights.tobytes() != weights:
                found.append(f"{name}: other weights")
    return found
