"""Columns as the engine takes and gives them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sparseagg._internal.base.foreign import float_from_bits
from sparseagg._internal.results.forms import DeviceTensorResult
from sparseagg._internal.results.info import ClipSummary, RoundInfo, StageTime, TensorSummary, Timeline
from sparseagg._internal.results.result import TensorResult
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg._internal.wire.columns import decode_values, encode_values, first_misfit, widens

if TYPE_CHECKING:
    from sparseagg._engine import Aggregator, RawDeviceResult, RawResult


_PAGE_BYTES = 1 << 20  # of a server's result


def part_of(whole: TensorResult, begin: int, end: int, encoding: str) -> TensorResult:
    """Returns the rows in a range of keys, in new arrays; an end of 0: all keys from ``begin`` on.

    If ``encoding`` is narrower than the dtype, each page of a server's size is rounded, unless one of its values is
    beyond the encoding's range.
    """
    first = int(np.searchsorted(whole.keys, np.uint64(begin))) if begin else 0
    last = int(np.searchsorted(whole.keys, np.uint64(end))) if end else len(whole)
    has_all_keys = "keys" not in vars(whole) and (first, last) == (0, len(whole))  # which are made when asked for
    columns = {name: getattr(whole, name) for name in ("values", "counts", "weights", "moments")}
    columns["keys"] = None if has_all_keys else whole.keys
    columns = {name: None if column is None else column[first:last].copy() for name, column in columns.items()}
    values = columns["values"]
    if values is not None and len(values) and widens(encoding, whole.dtype):
        sent = [column for name, column in columns.items() if name != "keys" or whole.layout == "sparse"]
        row_bytes = sum(column.nbytes for column in sent if column is not None) // len(values)
        num_rows = max(1, _PAGE_BYTES // row_bytes)
        for page in (values[start : start + num_rows] for start in range(0, len(values), num_rows)):
            if first_misfit(page, encoding) is None:
                narrow = encode_values(page, encoding)
                page[...] = decode_values(narrow, encoding, whole.dtype, page.size).reshape(page.shape)
    return dataclasses.replace(whole, **columns)


def tensor_result(spec: RoundSpec, tensor: TensorSpec, raw: RawResult) -> TensorResult:
    """Returns a tensor's result as the extension gives it; its arrays are views of the engine's memory."""
    columns = _columns(spec, tensor, raw)
    columns["moments"] = raw["moments"] if spec.aggregation_of(tensor).return_moments else None
    if raw["values"] is not None and raw["dtype"] == "bfloat16":
        columns["values"] = float_from_bits(raw["values"])
    return TensorResult(**columns)


def device_result(spec: RoundSpec, tensor: TensorSpec, raw: RawDeviceResult) -> DeviceTensorResult:
    """The same for a result in the memory of a GPU."""
    return DeviceTensorResult(**_columns(spec, tensor, raw))


def round_info(
    spec: RoundSpec, engine: Aggregator, results: Mapping[str, TensorResult], raw: Sequence[RawResult]
) -> RoundInfo:
    """Returns the description of a round that the extension has merged; ``results`` are made of ``raw``."""
    prepare, add, finish = engine.times
    return RoundInfo(
        name="",
        spec=spec,
        state="done",
        state_reason="",
        num_submissions=engine.num_submissions,
        num_tuples=engine.num_tuples,
        num_bytes=engine.num_bytes,
        num_refused=0,
        num_uploads=0,
        create_time=None,
        close_time=None,
        end_time=None,
        expire_time=None,
        timeline=Timeline(
            finish=finish,
            open=0.0,
            stages=(
                StageTime("prepare", prepare, 0.0, engine.num_bytes),
                StageTime("merge", add, 0.0, engine.num_bytes),
            ),
            longest="prepare" if prepare > add else "merge",
        ),
        engine=engine.engine,
        results=tuple(
            TensorSummary(
                r.name, len(r), r.layout, r.dtype, r.row_width, r.num_rows, part["plan"], part["num_cut_keys"]
            )
            for r, part in zip(results.values(), raw)
        ),
        clip=_clip_summary(spec, engine),
        release_id=engine.release_id,
    )


def _clip_summary(spec: RoundSpec, engine: Aggregator) -> ClipSummary | None:
    if not any(spec.clips(tensor) for tensor in spec.tensors):
        return None
    counts = engine.clip
    return ClipSummary(**{**counts, "factors": tuple(counts["factors"])})


def _columns(spec: RoundSpec, tensor: TensorSpec, raw: RawResult | RawDeviceResult) -> dict[str, Any]:
    how = spec.aggregation_of(tensor)
    return {
        "keys": raw["keys"],
        "name": tensor.name,
        "layout": raw["layout"],
        "dtype": raw["dtype"],
        "num_rows": tensor.num_rows,
        "row_width": tensor.row_width,
        "values": raw["values"],
        "counts": raw["counts"] if how.return_counts or how.op == "union" else None,
        "weights": raw["weights"] if how.return_weights else None,
        "fill": how.fill,
        "shape": tensor.shape,
    }
