"""The cut of a finished result to its rows of largest norm: result_top_k and result_min_norm. By sorting."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from sparseagg._internal.spec.options import Aggregation
from sparseagg._internal.spec.round_spec import TensorSpec

from reference.numbers import Row

__all__ = ["cut_keys", "cut_problems"]


def cut_problems(tensor: TensorSpec, how: Aggregation) -> Iterator[str]:
    """Names the options that make no sense. Those of the round leave tensors alone whose results cannot be cut."""
    if how.result_min_norm != 0 and not 2.0**-500 <= how.result_min_norm <= 2.0**500:
        yield "result_min_norm"
    if not _has_norms(tensor, how):
        if tensor.result_top_k:
            yield "result_top_k"
        if tensor.result_min_norm:
            yield "result_min_norm"


def _has_norms(tensor: TensorSpec, how: Aggregation) -> bool:
    return how.result_layout == "sparse" and how.op != "union" and not tensor.modular


def cut_keys(tensor: TensorSpec, how: Aggregation, keys: Sequence[int], rows: Mapping[int, Row | None]) -> list[int]:
    """Returns the keys that stay, ascending."""
    if not _has_norms(tensor, how):
        return list(keys)
    squares = {key: _square(rows[key] or []) for key in keys}
    kept = [key for key in keys if math.sqrt(squares[key]) >= how.result_min_norm]
    if how.result_top_k:
        kept = sorted(kept, key=lambda key: (-squares[key], key))[: how.result_top_k]
    return sorted(kept)


def _square(row: Row) -> float:
    """Σx² in float64, in eight lanes by the column; infinite in place of NaN."""
    lanes = [0.0] * 8
    for column, value in enumerate(row):
        lanes[column % 8] += float(value) * float(value)
    total = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]))
    return math.inf if total != total else total
