"""Binned sums of dense tensors: the same bits in any order, and the definition in integers (docs/numerics.md)."""

from __future__ import annotations

import numpy as np
import pytest
import sparseagg as sa
from reference.binned import BinnedSum

SEEDS = range(7)  # each is a family of multisets
COLUMNS, CLIENTS = 1500, 9


def binned(dtype: str = "float32", columns: int = COLUMNS, **options) -> sa.RoundSpec:
    return sa.RoundSpec([sa.TensorSpec("v", dtype, num_rows=columns, layout="dense", numerics="binned")], **options)


def multisets(rng: np.random.Generator, family: int, dtype: str) -> np.ndarray:
    """Values of shape (CLIENTS, COLUMNS), one multiset a column."""
    shape = CLIENTS, COLUMNS
    signs = rng.choice([-1.0, 1.0], shape)
    limit = 37 if dtype == "float32" else 300
    values = signs * [
        lambda: rng.random(shape) + 1,
        lambda: rng.standard_normal(shape) * 0.02,
        lambda: 2.0 ** rng.integers(-limit, limit, shape) * (1 + rng.random(shape)),
        lambda: 2.0 ** (rng.integers(-3, 4, shape) + 40 * rng.integers(-1, 2, shape)),
        lambda: rng.integers(0, 9, shape) * 2.0 ** rng.integers(-100, 100, COLUMNS),
        lambda: rng.integers(0, 1 << 20, shape) * (2.0**-149 if dtype == "float32" else 2.0**-1074),
        lambda: rng.standard_normal(shape) * 10.0 ** rng.integers(-30, 30, shape),
    ][family]()  # fmt: skip
    values[1] = np.where(rng.random(COLUMNS) < 0.5, -values[0], values[1])
    return values.astype(dtype)


@pytest.mark.parametrize("family", SEEDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bits_are_those_of_the_definition_in_any_order(dtype, family):
    rng = np.random.default_rng(family)
    values, weights = multisets(rng, family, dtype), rng.integers(1, 500, CLIENTS) / 4
    spec = binned(dtype, result_dtype="float64", weighting="by_weight")
    expected = [
        float(sum((BinnedSum(float(v) * float(w), dtype) for v, w in zip(column, weights)), BinnedSum(0.0, dtype)))
        for column in values.T
    ]
    bits = np.array(expected).tobytes()
    for _ in range(5):
        order = rng.permutation(CLIENTS)
        parts = np.split(order, np.sort(rng.integers(0, CLIENTS, 2)))
        whole = sa.Aggregator(spec)
        for part in parts:
            other = sa.Aggregator(spec, threads=int(rng.integers(1, 4)))
            for client in part:
                other.add(f"client {client}", values[client], weight=float(weights[client]))
            whole.merge(other)
        assert whole.finish()["v"].values.tobytes() == bits


# Of a block of one row: head, name, sum of weights, key, digits, top.
TOTAL, KEYS, DIGITS, TOP = 88, 120, 128, 144
NOT_A_SUM = "value 0 of row 0 is larger than 3 submissions can make it"
NO_WEIGHTS = "its sum of weights, with the digits .* and the top .*, is not one of 3 weights"


@pytest.mark.parametrize(
    ("at", "byte", "reason"),
    [
        (DIGITS + 7, 1, NOT_A_SUM),
        (DIGITS + 15, 0xFE, NOT_A_SUM),
        (TOP, 0, NOT_A_SUM),
        (TOP, 48, NOT_A_SUM),
        (TOP, 24 | 64, NOT_A_SUM),  # infinity, which the round refuses
        (KEYS, 1, "key 1 of row 0 is not below num_rows 1"),
        (TOTAL + 7, 1, NO_WEIGHTS),
        (TOTAL + 24, 1, NO_WEIGHTS),
        (TOTAL + 24, 70, NO_WEIGHTS),
        (TOTAL + 25, 1, NO_WEIGHTS),
        (48, 1, "its sum of weights is 1, of 3 submissions"),
        (42, 16, "its number of submissions is 1048579, beyond 1048575"),
    ],
)
def test_partials_that_no_submissions_make_are_refused(at, byte, reason):
    spec = binned(columns=1, op="mean", weighting="by_weight")
    source, root = sa.Aggregator(spec), sa.Aggregator(spec)
    for client in range(3):
        source.add(f"{client}", [0.25], weight=2.0)
    good = b"".join(source.export_partial())
    assert len(good) == TOP + 8
    with pytest.raises(sa.errors.InvalidArgumentError, match=reason):
        root.add_partial("leaf", good[:at] + bytes([byte]) + good[at + 1 :])
    assert root.num_submissions == 0
    root.add_partial("leaf", good)
    assert root.finish()["v"].values.tolist() == [0.25]
