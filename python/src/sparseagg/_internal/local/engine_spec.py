"""What the engine in this process has to know of a round's spec."""

from __future__ import annotations

import dataclasses
from typing import Any

from sparseagg._internal.spec.round_spec import DTYPES, RoundSpec, TensorSpec, checked_spec
from sparseagg._internal.spec.unused import has_norms, refuse_unused
from sparseagg.errors import InvalidArgumentError

__all__ = ["dense_bytes", "engine_fields", "left_to_sums", "tensor_fields", "what_matters"]


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
    return telling, dataclasses.replace(spec, tensors=tuple(tensors))


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


def engine_fields(spec: RoundSpec, *, is_counted: bool = False) -> dict[str, Any]:
    """Returns a round as the extension takes it; ``InvalidArgumentError`` names the field that makes no sense.

    ``is_counted``: the spec is of a round that a server has merged. It may have options without an effect.
    """
    checked_spec(spec).to_proto()  # refuses what no field can hold, as a client does
    if spec.max_submissions and (spec.min_submissions or 0) > spec.max_submissions:
        raise InvalidArgumentError(
            f"min_submissions {spec.min_submissions} is beyond max_submissions {spec.max_submissions}"
        )
    if spec.privacy is not None and spec.min_submissions:
        raise InvalidArgumentError(
            "privacy refuses min_submissions: the state of the round would tell how many submissions there are"
        )
    if not is_counted:
        refuse_unused(spec)
    limits = ("min_submissions", "max_submissions", "max_tuples_per_submission", "max_bytes_per_submission")
    return {
        "tensors": tensor_fields(spec),
        **{name: getattr(spec, name) or 0 for name in limits},
    }


def what_matters(spec: RoundSpec) -> dict[str, Any]:
    """What is computed of each tensor, whether the round or the tensor says so."""
    return {fields["name"]: fields for fields in tensor_fields(spec)}


def tensor_fields(spec: RoundSpec) -> list[dict[str, Any]]:
    """Returns what the extension takes for each tensor. Each has the options of the round, too."""
    of_round = {
        "max_submissions": spec.max_submissions,
        "round_clip": None if spec.clip is None else spec.clip.bounds(),
        "privacy": None if spec.privacy is None else spec.privacy.options(),
    }
    return [{**_fields_of(spec, tensor), **of_round} for tensor in spec.tensors]


def _fields_of(spec: RoundSpec, tensor: TensorSpec) -> dict[str, Any]:
    names = ("name", "dtype", "num_rows", "row_width", "layout", "modular")
    how = spec.aggregation_of(tensor)
    options = vars(how).copy()
    if options["mean_divisor"] != "fixed" and tensor.fixed_divisor is None:
        options["fixed_divisor"] = None  # of the round, for other tensors
    if (how.result_top_k or how.result_min_norm) and not has_norms(tensor, how):  # of the round, likewise
        options.update(result_top_k=tensor.result_top_k, result_min_norm=tensor.result_min_norm)
    options["result"] = options.pop("result_layout")  # as the extension calls it
    return {
        **{name: getattr(tensor, name) for name in names},
        **options,
        "clip": None if tensor.clip is None else tensor.clip.bounds(),
    }
