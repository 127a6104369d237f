"""How fast the Python client packs keys and rounds values: one process, the sizes of a chunk. Prints Markdown."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from sparseagg._internal.wire.formats import WireFormat
from sparseagg._internal.wire.keys import Gaps, decode_delta, encode_bitmap
from sparseagg._internal.wire.values import encode_values

SEED = 1
COUNT = 98_304  # tuples of 8 bytes in a chunk of 768 KiB
REPETITIONS = 15


def rate(work: Callable[[], object]) -> float:
    """Million keys or values a second, of the best of some runs."""
    best = float("inf")
    for _ in range(REPETITIONS):
        begin = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begin)
    return COUNT / best / 1e6


def main() -> None:
    """Measures and prints."""
    rng = np.random.default_rng(SEED)
    wire = WireFormat(keys=frozenset({"implicit", "delta_bitpacked", "bitmap"}))
    print("| what | M a second |\n|---|---|")
    for mean in (2, 10, 100, 10_000):
        gaps = rng.geometric(1 / mean, COUNT).astype(np.uint64)
        keys = np.cumsum(gaps).astype(np.uint32)
        data = Gaps(keys).encode()
        first = int(keys[0])
        assert np.array_equal(decode_delta(data, first, COUNT), keys)
        name = wire.encode_keys(keys)[0]
        print(f"| choose and pack keys, one in {mean} (`{name}`) | {rate(lambda k=keys: wire.encode_keys(k)):.0f} |")
        size = len(data) / COUNT
        print(f"| `Gaps.encode`, one in {mean}, {size:.2f} bytes | {rate(lambda k=keys: Gaps(k).encode()):.0f} |")
        print(f"| `decode_delta`, one in {mean} | {rate(lambda d=data, f=first: decode_delta(d, f, COUNT)):.0f} |")
        if mean <= 10:
            print(f"| `encode_bitmap`, one in {mean} | {rate(lambda k=keys: encode_bitmap(k)):.0f} |")
    values = rng.normal(size=COUNT).astype(np.float32)
    for encoding in ("float16", "bfloat16", "int8_scaled"):
        print(f"| `encode_values`, {encoding} | {rate(lambda e=encoding: encode_values(values, e)):.0f} |")


if __name__ == "__main__":
    main()
