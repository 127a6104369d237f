"""This project: sa.aggregate, by kind of sum, of keys, and of answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import sparseagg as sa
from sparseagg import _engine

from contestants import SEPARATE, Contestant, Data, Reference

BY_MODE: dict[str, dict[str, Any]] = {
    "canonical": {},
    "canonical+counts": {"return_counts": True},
    "fixed_point": {"numerics": "fixed_point", "value_bound": 1.0},
}


def release_memory() -> None:
    """Gives back what the engine keeps for its next columns."""
    _engine.release_memory()


def contestants(data: Data, threads: int) -> list[Contestant]:
    return [each for count in sorted({1, threads}) for each in _of_threads(data, count)]


def _of_threads(data: Data, threads: int) -> Iterator[Contestant]:
    own_keys = [{"tensor": part} for part in data.separate(data.keys, data.flat)]
    # Keys as NumPy, torch, SciPy and TensorFlow make them.
    int64_keys = [{"tensor": part} for part in data.separate(data.keys64, data.flat)]
    yield _merge(data, threads, int64_keys, "canonical", ", int64 keys")
    for mode in BY_MODE:
        # The reference counts tuples, and repeated keys of one update are one contributor, with one bound.
        if mode == "canonical" or not data.has_repeats:
            yield _merge(data, threads, own_keys, mode)
    if data.no_dense() is None:
        yield _merge(data, threads, own_keys, "canonical", result_layout="dense")
    if data.one_update:
        values = (data.flat.view(np.uint32) >> np.uint32(16)).astype(np.uint16)  # exact: see Data.one_update
        yield _merge(
            data, threads, [{"tensor": (data.keys64, values)}], "canonical", ", bfloat16, int64 keys", "bfloat16"
        )


def _merge(
    data: Data,
    threads: int,
    updates: list[Any],
    mode: str,
    suffix: str = "",
    dtype: str = "float32",
    result_layout: str = "sparse",
) -> Contestant:
    options = {**BY_MODE[mode], "result_layout": result_layout}
    if mode == "fixed_point":
        options["max_submissions"] = data.num_clients
    tensor = sa.TensorSpec("tensor", dtype, num_rows=data.num_rows, row_width=data.row_width)
    spec = sa.RoundSpec([tensor], **options)

    def check(result: sa.Result, reference: Reference) -> str | None:
        found = result["tensor"]
        if mode == "canonical+counts" and not np.array_equal(found.counts, reference.counts):
            return "other counts"
        if result_layout == "dense":
            return reference.dense_error(found.values, data.num_rows)
        if dtype == "bfloat16":
            return reference.error(found.keys, np.asarray(found.values, np.float32), 7)
        return (reference.error if mode == "fixed_point" else reference.exact_error)(found.keys, found.values)

    def run() -> sa.Result:
        return sa.aggregate(updates, spec, threads=threads)

    return Contestant(f"sparseagg {mode}{suffix}", result_layout, threads, run, check, SEPARATE)
