"""What the engine in this process has to know of a round's spec."""

from __future__ import annotations

import dataclasses
from typing import Any

from sparseagg._internal.spec.round_spec import DTYPES, Aggregation, RoundSpec, TensorSpec, checked_spec, has_norms

__all__ = ["dense_bytes", "left_to_sums", "what_matters"]


def left_to_sums(spec: RoundSpec) -> tuple[list[int], RoundSpec]:
    """Returns which tensors' results show whether all of their terms were finite, and a spec that leaves that to them.

    Sums do, since no finite one has an infinite term, or one that is no number; fixed point has to look at each before.
    Rows that ``min_contributors`` drops, or a cut of the result, would hide theirs, and a ``fill`` may not be finite
    itself.
    """

    def tells(tensor: TensorSpec) -> bool:
        how = spec.aggregation_of(tensor)
        is_sum = how.op in ("sum", "mean", "coordinate_mean") and how.numerics == "canonical"
        is_whole = how.min_contributors in (0, 1) and not (how.fill or how.result_top_k or how.result_min_norm)
        is_checked = how.on_nonfinite == "reject" and not spec.clips(tensor)  # norms need finite values
        return "float" in tensor.dtype and is_sum and is_whole and is_checked

    telling = [index for index, tensor in enumerate(checked_spec(spec).tensors) if tells(tensor)]
    if len(telling) == len(spec.tensors) and not any(tensor.on_nonfinite for tensor in spec.tensors):
        return telling, spec.with_options(on_nonfinite="propagate")
    tensors = list(spec.tensors)
    for index in telling:
        tensors[index] = tensors[index].with_options(on_nonfinite="propagate")
    return telling, spec.with_options(tensors=tuple(tensors))


def dense_bytes(spec: RoundSpec) -> str:
    """Says how large the largest result is that the spec wants dense, for errors; nothing where there is none."""

    def value_bytes(tensor: TensorSpec) -> int:
        widened = "int64" if tensor.dtype in ("int32", "int64") else tensor.dtype
        return DTYPES[spec.aggregation_of(tensor).result_dtype or widened]

    sizes = {
        tensor.name: tensor.num_rows * tensor.row_width * value_bytes(tensor)
        for tensor in spec.tensors
        if spec.aggregation_of(tensor).result_layout == "dense" and spec.aggregation_of(tensor).op != "union"
    }
    if not sizes:
        return ""
    name = max(sizes, key=lambda tensor: sizes[tensor])
    return f"; the dense result of tensor {name!r} alone takes {sizes[name]} bytes"


def what_matters(spec: RoundSpec) -> dict[str, Any]:
    """What is computed of each tensor, whether the round or the tensor says so."""
    names = ("dtype", "num_rows", "row_width", "layout", "modular", "clip")
    of_round = [spec.max_submissions, spec.clip, spec.privacy]
    return {
        tensor.name: [*(getattr(tensor, name) for name in names), _used_options(spec, tensor), *of_round]
        for tensor in spec.tensors
    }


def _used_options(spec: RoundSpec, tensor: TensorSpec) -> Aggregation:
    how = spec.aggregation_of(tensor)
    unused: dict[str, Any] = {}  # of the round, for other tensors
    if how.mean_divisor != "fixed":
        unused = {"fixed_divisor": None}
    if not has_norms(tensor, how):
        unused.update(result_top_k=0, result_min_norm=0.0)
    return dataclasses.replace(how, **unused)
