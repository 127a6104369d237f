"""A comparison of results with the reference, bit for bit."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np
from sparseagg._internal.results.result import TensorResult
from sparseagg._internal.spec.round_spec import RoundSpec

from reference.merge import merge
from reference.numbers import encode_values
from reference.update import Update

__all__ = ["differences"]


def differences(spec: RoundSpec, updates: Mapping[str, Update], result: Mapping[str, TensorResult]) -> list[str]:
    """Merges ``updates`` with the reference; returns one sentence for each difference of ``result`` from that."""
    found = []
    for name, expected in merge(spec, updates, check=False).items():
        tensor = result[name]
        if tensor.keys.tolist() != expected.keys:
            found.append(f"{name}: {len(tensor.keys)} keys instead of {len(expected.keys)}, or other ones")
            continue
        values = b"" if tensor.values is None else np.ascontiguousarray(tensor.values).tobytes()
        if values != encode_values(expected.rows or [], expected.dtype):
            found.append(f"{name}: other values")
        if tensor.counts is not None and tensor.counts.tolist() != expected.counts:
            found.append(f"{name}: other counts")
        if tensor.weights is not None:
            weights = struct.pack(f"<{len(expected.weights)}d", *expected.weights)
            if tensor.weights.tobytes() != weights:
                found.append(f"{name}: other weights")
    return found
