"""Results in threads of callers that round otherwise or flush denormals: the same bits, and the setting stays."""

from __future__ import annotations

import contextlib
import ctypes
import platform
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import sparseagg as sa
from sparseagg import optimizers
from sparseagg._internal.updates.arrays import tensor_data
from sparseagg._internal.wire.columns import NARROW, decode_values, encode_values, first_misfit

SEED = 4
LIBM = ctypes.CDLL("libm.so.6")
IS_X86 = platform.machine() == "x86_64"
MXCSR = 28  # offset in x86-64's fenv_t
# Bits of MXCSR.
ROUNDINGS = {"nearest": 0, "downward": 0x2000, "upward": 0x4000, "toward zero": 0x6000}
FLUSHES = {"ftz": 0x8000, "daz": 0x0040, "ftz and daz": 0x8040}
ENVIRONMENTS = {**ROUNDINGS, **FLUSHES, "upward, ftz and daz": 0xC040}

pytestmark = pytest.mark.skipif(not IS_X86, reason="sets x86's control register")


def control_bits() -> int:
    environment = ctypes.create_string_buffer(64)
    LIBM.fegetenv(environment)
    return int.from_bytes(environment.raw[MXCSR : MXCSR + 4], "little") & 0xE040


@contextlib.contextmanager
def odd_environment(bits: int) -> Iterator[None]:
    before, changed = (ctypes.create_string_buffer(64) for _ in range(2))
    LIBM.fegetenv(before)
    LIBM.fegetenv(changed)
    mxcsr = int.from_bytes(changed.raw[MXCSR : MXCSR + 4], "little") & ~0xE040 | bits
    changed[MXCSR : MXCSR + 4] = mxcsr.to_bytes(4, "little")
    LIBM.fesetenv(changed)
    try:
        yield
    finally:
        LIBM.fesetenv(before)


def telling(size: int, scale: float = 1.0) -> np.ndarray:
    """Values whose rounding shows, and denormals of every type."""
    values = np.random.default_rng(SEED).standard_normal(size) * scale
    values[: size // 2 : 5] *= 1e-40
    values[1 : size // 2 : 5] *= 1e-7
    values[2 : size // 2 : 5] = 5e-324
    return values


SIZE = 2000
KEYS = np.random.default_rng(SEED).permutation(SIZE)
VALUES = telling(SIZE)
TARGET = np.linspace(-1, 1, SIZE) * 1e-3


def bits_of(result: Any) -> bytes:
    return b"".join(np.ascontiguousarray(array).tobytes() for array in (result.keys, result.values, result.weights))


def aggregate(dtype: str, values: Any, **options: Any) -> Callable[[], bytes]:
    """Merges updates whose values may have to be converted, with weights that have to be, on several threads."""
    spec = sa.RoundSpec(
        [sa.TensorSpec("v", dtype, num_rows=SIZE)], op="mean", weighting="by_weight", return_weights=True, **options
    )
    weights = [0.1, np.float32(0.7), np.longdouble(1) / 3]
    return lambda: bits_of(sa.aggregate([((KEYS, values), weight) for weight in weights], spec, threads=3)["v"])


def submit(values: str) -> Callable[[], bytes]:
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=SIZE)], return_weights=True)

    def run() -> bytes:
        with sa.Client(":memory:") as client:
            opened = client.create_round(spec)
            for client_id in "abc":
                opened.submit(client_id, (KEYS, VALUES), value_encoding=values)
            opened.finish()
            return bits_of(opened.result()["v"]) + bits_of(opened.result(value_encoding=values)["v"])

    return run


def round_trip(encoding: str) -> Callable[[], bytes]:
    values = VALUES.astype(np.float32)

    def run() -> bytes:
        packed = encode_values(values, encoding) + encode_values(VALUES, encoding)
        back = decode_values(encode_values(VALUES, encoding), encoding, "float64", SIZE)
        return packed + back.tobytes()

    return run


def misfits() -> str:
    ends = (65519.99, 3.3961e38, 3.4028235677973363e38, 127 * 2.0**120 * (1 + 2.0**-52))
    return str([first_misfit(np.array([-end, end]), encoding) for end in ends for encoding in NARROW])


def add_to(dtype: Any) -> Callable[[], bytes]:
    spec = sa.RoundSpec([sa.TensorSpec("v", "float64", num_rows=SIZE)])
    result, before = sa.aggregate([(KEYS, VALUES)], spec), TARGET.astype(dtype)

    def run() -> bytes:
        target = before.copy()
        result["v"].add_to(target, alpha=0.1)
        return bytes(target.tobytes())

    return run


def fill() -> bytes:
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=SIZE)])
    return bytes(sa.aggregate([([1], [1.0])], spec)["v"].dense(fill=0.1).tobytes())


def optimize(make: Callable[[], Any]) -> Callable[[], bytes]:
    before = TARGET.astype(np.float32)

    def run() -> bytes:
        optimizer, target = make(), before.copy()
        for _ in range(3):
            optimizer.step("v", target, (KEYS, VALUES))
            rows = optimizer.step_rows("w", SIZE, KEYS, target[:, np.newaxis], VALUES[:, np.newaxis])
        return bytes(target.tobytes() + rows.tobytes())

    return run


def top_k() -> bytes:
    chooser = sa.TopK(k=SIZE // 10, by="row")
    sent = [chooser.select("v", VALUES.reshape(-1, 4).astype(np.float16)) for _ in range(3)]
    chooser.put_back("v", *sent[-1])
    return b"".join(array.tobytes() for pair in sent for array in pair) + chooser.residuals["v"].tobytes()


CASES: dict[str, Callable[[], Any]] = {
    **{f"aggregate {dtype}": aggregate(dtype, VALUES) for dtype in ("float32", "float16", "bfloat16", "float64")},
    "aggregate a list": aggregate("float32", VALUES.tolist()),
    "aggregate longdoubles": aggregate("float16", np.longdouble(VALUES) / 3),
    "aggregate integers": aggregate("float32", np.arange(SIZE) + (1 << 40)),
    "aggregate to dense": aggregate("float16", VALUES, result_layout="dense", fill=0.1),
    "aggregate binned": aggregate("float32", VALUES, numerics="binned"),
    "convert to bfloat16": lambda: tensor_data(sa.TensorSpec("v", "bfloat16", num_rows=SIZE), VALUES).values.tobytes(),
    **{f"submit {values}": submit(values) for values in ("float16", "bfloat16", "int8_scaled")},
    **{f"round trip of {encoding}": round_trip(encoding) for encoding in NARROW},
    "misfits": misfits,
    "add to float32": add_to(np.float32),
    "add to float16": add_to(np.float16),
    "fill": fill,
    **{
        make.__name__: optimize(make)
        for make in (optimizers.FedAvgM, optimizers.FedAdagrad, optimizers.FedAdam, optimizers.FedYogi)
    },
    "top k": top_k,
}


def in_environment(case: Callable[[], Any], bits: int) -> Any:
    with odd_environment(bits):
        assert control_bits() == bits
        result = case()
        assert control_bits() == bits, "the caller's environment has changed"
        return result


@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize("name", CASES)
def test_environment_of_the_caller_changes_no_bit(name, environment):
    case, bits = CASES[name], ENVIRONMENTS[environment]
    expected = in_environment(case, 0)
    assert in_environment(case, bits) == expected
    found: list[Any] = []
    worker = threading.Thread(target=lambda: found.append(in_environment(case, bits)))
    worker.start()
    worker.join()
    assert found == [expected]


def test_environments_of_these_tests_show():
    third, tiny = np.float64(1) / np.float64(3), np.array([5e-324])

    def show() -> tuple[float, float, float]:
        return np.float32(third), np.float32(-third), (tiny * np.array([2.0]))[0]

    shown = {name: in_environment(show, bits) for name, bits in ENVIRONMENTS.items()}
    assert len(set(shown.values())) >= 4, shown


def test_rounding_to_nearest_of_the_sum_in_the_report():
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=10)])
    with odd_environment(ROUNDINGS["upward"]):
        merged = sa.aggregate([([1], [0.1]), ([1], [0.7])], spec)["v"].values
    assert merged.tolist() == [np.float32(np.float64(np.float32(0.1)) + np.float64(np.float32(0.7)))]
