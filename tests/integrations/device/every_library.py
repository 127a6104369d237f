"""What holds of the arrays of every library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import sparseagg as sa
from checking import Checks, expect_same, outcome, random_tuples, vector
from random_rounds import random_pools, random_spec, random_update, weight_for

SEEDS = range(10)

Move = Callable[[np.ndarray], Any]


def check_random(checks: Checks, move: Move) -> None:
    """Compares random rounds with the CPU engine. Keys are of any type that holds them; some tensors stay behind."""
    for seed in SEEDS:
        with checks.named(f"random round, seed {seed}"):
            rng = np.random.default_rng([20261127, seed])
            spec = random_spec(rng)
            pools = random_pools(rng, spec)
            here: dict[str, Any] = {}
            there: dict[str, Any] = {}

            def moved(data: Any, rng: np.random.Generator = rng) -> Any:
                keys, rows = data if isinstance(data, tuple) else (None, data)
                if rng.random() < 0.1 or rows.size == 0:  # not every library has arrays of no entries
                    return data
                if keys is None:
                    return move(rows)
                fitting = [t for t in (np.int32, np.int64, np.uint32, np.uint64) if int(keys.max()) <= np.iinfo(t).max]
                return move(keys.astype(rng.choice(fitting))), move(rows)

            for i in range(rng.integers(2, 12)):
                update = random_update(rng, spec, pools)
                weight = weight_for(spec, float(rng.integers(0, 8)))
                here[f"client-{i}"] = (update, weight)
                there[f"client-{i}"] = ({name: moved(data) for name, data in update.items()}, weight)
            expect_same(there, here, spec, note=f"seed {seed}")


def check_many(checks: Checks, move: Move) -> None:
    """Compares rounds of many tuples, of every dtype and several row widths."""
    for dtype in ("float32", "float16", "float64", "int32", "int64"):
        with checks.named(f"many tuples of {dtype}"):
            rng = np.random.default_rng(7)
            for row_width in (1, 3, 16):
                spec = vector(1 << 20, dtype=dtype, row_width=row_width)
                here = [random_tuples(rng, spec.tensors[0], 50_000) for _ in range(4)]
                there = [(move(keys), move(rows)) for keys, rows in here]
                expect_same(there, here, spec, None, f"row_width {row_width}")


def check_errors(checks: Checks, move: Move) -> None:
    with checks.named("wrong keys and values are refused in the words of the CPU engine"):
        keys, rows = np.array([5, 2, 9]), np.array([1, 2, 4], np.float32)
        for bad_keys, bad_rows in (
            (keys + 5, rows),
            (keys - 3, rows),
            (keys, rows * np.float32(np.nan)),
            (keys, rows[:2]),
        ):
            expect_same([(move(bad_keys), move(bad_rows))], [(bad_keys, bad_rows)], vector(10))
        got = outcome([(move(keys), move(rows.astype(np.float64)))], vector(10), "cuda")
        if "values on a GPU must be of the tensor's dtype float32, got float64" not in got[1]:
            raise AssertionError(got)
        for pair in ((keys, move(rows)), (move(keys), rows)):
            got = outcome([pair], vector(10), "cuda")
            if "give both in one place" not in got[1]:
                raise AssertionError(got)


def check_results(checks: Checks, move: Move, read: Move) -> None:
    """Compares results that stay on the device, which `read` brings to the host, with the CPU engine's."""
    for dtype, options in (
        ("float32", {"op": "mean", "return_counts": True}),
        ("float16", {"result_layout": "dense"}),
        ("float64", {"weighting": "by_weight", "return_weights": True}),
        ("int64", {"op": "max"}),
    ):
        with checks.named(f"results of {dtype} that stay on the device"):
            rng = np.random.default_rng(8)
            for row_width in (1, 3):
                tensor = sa.TensorSpec("v", dtype, num_rows=100_000, row_width=row_width)
                spec = sa.RoundSpec([tensor], **options)
                weight = 2.0 if "weighting" in options else None
                here, there = sa.Aggregator(spec), sa.Aggregator(spec, device="cuda")
                for i in range(4):
                    keys, rows = random_tuples(rng, tensor, 20_000)
                    here.add(f"{i}", (keys, rows), weight)
                    there.add(f"{i}", (move(keys), move(rows)), weight)
                expected, actual = here.finish()["v"], there.finish_on_device()["v"]
                for name in ("keys", "values", "counts", "weights"):
                    column, wanted = getattr(actual, name), getattr(expected, name)
                    if column is None:  # a dense result has all keys
                        if wanted is not None and name != "keys":
                            raise AssertionError(f"no {name}")
                        continue
                    got = read(column)
                    if (got.dtype, got.shape, got.tobytes()) != (wanted.dtype, wanted.shape, wanted.tobytes()):
                        raise AssertionError(f"{name} of row_width {row_width} differ: {got} and {wanted}")
