"""The engine as a module of this process: the instructions that it runs on, and its protobuf."""

from __future__ import annotations

import os
import subprocess
import sys

import import_order
import pytest

MERGE = """
import hashlib, numpy as np, sparseagg as sa
from sparseagg._internal.base import extension
rng = np.random.default_rng(5)
spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=5000, row_width=3)], op="mean", weighting="by_weight")
updates = [
    ({"v": (rng.integers(0, 5000, 700), rng.normal(size=(700, 3)).astype("float32"))}, float(rng.random()))
    for _ in range(30)
]
result = sa.aggregate(updates, spec)["v"]
print(hashlib.sha256(result.keys.tobytes() + result.values.tobytes()).hexdigest(), extension.describe())
"""


def run(target: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SPARSEAGG_SIMD": target}
    return subprocess.run([sys.executable, "-c", MERGE], env=environment, capture_output=True, text=True)


def test_unknown_target_is_refused_and_those_there_are_are_named() -> None:
    done = run("MMX")
    assert done.returncode != 0
    assert "SPARSEAGG_SIMD: no SIMD target 'MMX' on this machine; it has " in done.stderr


def test_every_target_is_in_force_and_gives_the_same_bits() -> None:
    targets = run("MMX").stderr.strip().rpartition("it has ")[2].split(", ")
    if len(targets) < 2:
        pytest.skip(f"this machine has one SIMD target: {targets}")
    digests = set()
    for target in targets:
        done = run(target)
        assert done.returncode == 0, done.stderr
        digest, _, description = done.stdout.strip().partition(" ")
        assert description.endswith(f", {target})")
        digests.add(digest)
    assert len(digests) == 1


# ---- the engine has a protobuf of its own, which no other library of the process meets ----


@pytest.mark.parametrize("order", import_order.ORDERS[""], ids="-".join)
def test_engine_works_beside_protobuf_and_grpc(order):
    done = import_order.run(order)
    assert (done.returncode, done.stdout) == (0, "all used\n"), done.stderr


def test_engine_exports_no_symbol_of_protobuf():
    import sparseagg._engine as engine

    listed = import_order.exported_symbols(engine.__file__)
    assert "PyInit__engine" in listed
    assert [name for name in listed if "google8protobuf" in name] == []
