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
    merged = merge(spec, updates, check=False)
    for name, expected in merged.items():
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
        if (tensor.moments is None) != (expected.moments is None):
            found.append(f"{name}: moments are there or not")
        elif tensor.moments is not None and tensor.moments.tobytes() != encode_values(
            expected.moments or [], "float64"
        ):
            found.append(f"{name}: other moments")
    info = getattr(result, "info", None)
    for summary in info.results if info is not None else ():
        if summary.name in merged and summary.num_cut_keys != merged[summary.name].num_cut:
            found.append(f"{summary.name}: {summary.num_cut_keys} keys cut instead of {merged[summary.name].num_cut}")
    return found
