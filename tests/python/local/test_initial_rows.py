"""Initial rows of models: the text of models.proto in NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from sparseagg._internal.base import extension
from sparseagg.v1 import models_pb2

KEYS = np.array([0, 1, 7, 2**32 + 1, 2**64 - 1], np.uint64)
LOW = np.uint64(0xFFFFFFFF)
DTYPES = {"FLOAT32": np.float32, "FLOAT64": np.float64, "FLOAT16": np.float16, "BFLOAT16": ml_dtypes.bfloat16}


def words(seed: int, position: int, count: int) -> np.ndarray:
    """The first words of each key's row: Philox4x32-10."""
    blocks = []
    for block in range(-(-count // 4)):
        counter = [KEYS & LOW, KEYS >> np.uint64(32), np.full(5, block, np.uint64), np.full(5, position, np.uint64)]
        key = [seed & 0xFFFFFFFF, seed >> 32]
        for _ in range(10):
            a, b = np.uint64(0xD2511F53) * counter[0], np.uint64(0xCD9E8D57) * counter[2]
            one, two = np.uint64(key[0]), np.uint64(key[1])
            high_a, high_b = a >> np.uint64(32), b >> np.uint64(32)
            counter = [high_b ^ counter[1] ^ one, b & LOW, high_a ^ counter[3] ^ two, a & LOW]
            key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
        blocks += counter
    return np.stack(blocks[:count], axis=1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 4, 5, 33])
@pytest.mark.parametrize("kind", ["ZEROS", "UNIFORM", "NORMAL"])
def test_rows_are_those_of_the_text(kind: str, width: int, dtype: str) -> None:
    seed, position, scale = 0x1234_5678_9ABC_DEF0, 3, 0.0 if kind == "ZEROS" else 0.7
    if kind == "ZEROS":
        want = np.zeros((5, width))
        init = models_pb2.InitSpec()
    else:
        init = models_pb2.InitSpec(kind=f"INIT_KIND_{kind}", scale=scale, seed=seed)
        if kind == "UNIFORM":
            odd = 2 * words(seed, position, width).astype(np.int64) + 1 - 2**32
            want = scale * (odd * 2.0**-32)
        else:
            each = words(seed, position, 6 * width).reshape(5, width, 6)
            sums = ((each & np.uint64(0xFFFF)) + (each >> np.uint64(16))).sum(axis=2).astype(np.int64)
            want = scale * ((sums - 393210) * 2.0**-16)
    optimizer = models_pb2.OptimizerSpec(kind="OPTIMIZER_KIND_ASSIGN")
    tensor = models_pb2.ModelTensor(
        name="t", dtype=f"DTYPE_{dtype}", row_width=width, init=init, optimizer=optimizer
    ).SerializeToString()
    rows = extension.load().initial_rows(tensor, position, KEYS)
    assert rows.dtype == np.uint8
    assert rows.tobytes() == want.astype(DTYPES[dtype]).tobytes()
