"""Runs checks one by one, and compares merges on a GPU with the CPU engine's."""

from __future__ import annotations

import contextlib
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import sparseagg as sa


class Checks:
    """Runs checks one after another and prints what becomes of each."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.num_failed = 0

    @contextlib.contextmanager
    def named(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
            outcome = "ok"
        except Exception:  # of any library; the next check may work
            traceback.print_exc(file=sys.stdout)
            self.num_failed += 1
            outcome = "FAILED"
        print(f"{outcome:7} {self.group}: {name} ({time.perf_counter() - begin:.2f} s)", flush=True)


def columns(tensor: sa.TensorResult) -> list[Any]:
    arrays = (tensor.keys, tensor.values, tensor.counts, tensor.weights)
    data = [None if a is None else (a.dtype.str, a.shape, np.ascontiguousarray(a).tobytes()) for a in arrays]
    return [tensor.layout, tensor.dtype, data]


def outcome(updates: Any, spec: sa.RoundSpec, device: str | None) -> Any:
    """What a merge comes to: everything about its result, or its error."""
    try:
        result = sa.aggregate(updates, spec, device=device)
    except (sa.errors.EngineMissingError, sa.errors.UnavailableError):
        raise
    except sa.SparseaggError as error:
        return type(error).__name__, str(error)
    engine = result.info.engine
    if engine.split()[0] != (device or "cuda"):
        raise AssertionError(f"merged by {engine}, not by {device or 'cuda'}")
    return {name: columns(result[name]) for name in result}


def expect_same(on_device: Any, on_host: Any, spec: sa.RoundSpec, device: str | None = "cuda", note: Any = "") -> None:
    got, expected = outcome(on_device, spec, device), outcome(on_host, spec, "cpu")
    if got != expected:
        raise AssertionError(f"{note} differs from the CPU engine: {str(got)[:500]} and {str(expected)[:500]}; {spec}")


def vector(num_rows: int, **options: Any) -> sa.RoundSpec:
    return sa.RoundSpec([sa.TensorSpec("v", options.pop("dtype", "float32"), num_rows=num_rows, **options)])


def random_tuples(rng: np.random.Generator, tensor: sa.TensorSpec, count: int) -> tuple[np.ndarray, np.ndarray]:
    keys = np.unique(rng.integers(0, tensor.num_rows, count))
    shape = (len(keys), tensor.row_width) if tensor.row_width > 1 else len(keys)
    if "int" in tensor.dtype:
        return keys, rng.integers(-(10**6), 10**6, shape).astype(tensor.dtype)
    return keys, rng.standard_normal(shape).astype(tensor.dtype)
