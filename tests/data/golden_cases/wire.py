"""Packed keys and narrow values, in updates and results."""

from __future__ import annotations

from typing import Any

import numpy as np
from sparseagg._internal.wire.encode import WireFormat
from sparseagg.v1 import aggregation_pb2 as pb

from golden_cases.case import INVALID_ARGUMENT, Case, Chunks, Client, one, spoiling, v

SEED = 20261129
DELTA = WireFormat(keys=frozenset({"delta_bitpacked"}))
ALL = WireFormat(keys=frozenset({"implicit", "delta_bitpacked"}))


def values_as(encoding: str) -> WireFormat:
    return WireFormat(keys=ALL.keys, values={"v": encoding})


def random_keys(limit: int, count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(SEED + seed)
    return np.unique(rng.integers(0, limit, count, dtype=np.uint64))


def packed() -> list[Case]:
    rows = np.linspace(-3, 5, 700, dtype=np.float32)
    # Three blocks, the last not full.
    many = [
        v(name, random_keys(90_000, 290, i), rows[: len(random_keys(90_000, 290, i))]) for i, name in enumerate("ab")
    ]
    # A full block, and a gap of 64 bits behind it; then keys up to the last one.
    wide = [
        v("a", np.array([*range(0, 384, 3), 2**64 - 2], np.uint64), rows[:129]),
        v("b", np.array(range(2**64 - 400, 2**64, 3), np.uint64), rows[:134]),
    ]
    dense = [v(name, random_keys(700, 500, i), rows[: len(random_keys(700, 500, i))]) for i, name in enumerate("ab")]
    run = [v("a", np.arange(5, 300), rows[:295]), v("b", np.arange(3), rows[:3])]
    kinds = [
        v("a", np.arange(200), rows[:200]),
        v("b", random_keys(700, 250, 4), rows[: len(random_keys(700, 250, 4))]),
        v("c", [3, 1, 3], rows[:3]),
    ]

    def begin_lower(chunks: Chunks) -> None:
        # Keys 1000, 1001, 1007 and 1010 from first_key 995 on: gaps 5, 0, 5 and 2 of 3 bits.
        piece = chunks[0].slices[0]
        piece.first_key, piece.keys = 995, bytes.fromhex("03 45 05")

    first_gap = [v("a", [1000, 1001, 1007, 1010], rows[:4], spoil=begin_lower), v("b", [1001], rows[:1])]
    narrow = [v("a", [1, 5, 9], [0.1, -0.3, 100.0]), v("b", [5], [0.7])]
    return [
        Case("delta_keys", "Blocks of 128 and a rest.", one(num_rows=90_000), many, wire=DELTA),
        Case("delta_keys_64_bits", "Gaps of 64 bits, up to the last key.", one(num_rows=0), wide, wire=DELTA),
        Case("delta_keys_first_gap", "first_key is below the first key.", one(num_rows=2000), first_gap, wire=DELTA),
        Case("run_of_keys", "A run needs no bytes.", one(num_rows=300), run, wire=ALL),
        Case(
            "kinds_of_keys_mixed",
            "Each slice in the smallest encoding; what does not ascend, plain.",
            one(num_rows=700, return_counts=True),
            kinds,
            chunk_bytes=900,
            wire=ALL,
        ),
        Case("delta_keys_of_a_union", "Keys alone.", one(num_rows=90_000, op="union"), many, wire=DELTA),
        Case(
            "float16_values_of_float32",
            "Rounded by the sender, widened exactly.",
            one(),
            narrow,
            wire=values_as("float16"),
        ),
        Case("bfloat16_values_of_float64", "Likewise.", one("float64"), narrow, wire=values_as("bfloat16")),
        Case("float32_values_of_float64", "Likewise.", one("float64"), narrow, wire=values_as("float32")),
        Case(
            "int8_values_of_float32",
            "64 values share a scale; rows of row_width 3.",
            one(num_rows=90_000, row_width=3),
            [
                v(name, keys := random_keys(90_000, 90, i), np.resize(rows, (len(keys), 3)))
                for i, name in enumerate("ab")
            ],
            chunk_bytes=600,
            wire=values_as("int8_scaled"),
        ),
        Case("int8_values_of_float64", "The product is exact.", one("float64"), narrow, wire=values_as("int8_scaled")),
        Case("result_in_delta_keys", "What the reader asks for.", one(num_rows=90_000), many, result=DELTA),
        Case("result_in_delta_keys_64_bits", "Up to the last key.", one(num_rows=0), wide, result=ALL),
        Case("result_in_the_smallest_keys", "The smallest.", one(num_rows=700, return_counts=True), dense, result=ALL),
        Case("result_in_a_run", "Keys that need no bytes.", one(num_rows=300), run[:1], result=ALL),
        Case(
            "result_in_plain_keys",
            "Where nothing is smaller.",
            one(num_rows=2**32),
            [v("a", [0, 2**31], [1, 2])],
            result=ALL,
        ),
        Case("result_in_float16", "Rounded to nearest even.", one(), narrow, result=values_as("float16")),
        Case("result_in_bfloat16", "Of a float64 result.", one("float64"), narrow, result=values_as("bfloat16")),
        Case(
            "result_in_int8", "Scales for each 64 values.", one(num_rows=90_000), many, result=values_as("int8_scaled")
        ),
        Case(
            "result_beyond_float16",
            "The page comes in the tensor's own type.",
            one(),
            [v("a", [1, 2], [1.0, 70000.0])],
            result=values_as("float16"),
        ),
        Case(
            "dense_result_in_float16",
            "Implicit keys, rows rounded.",
            one(num_rows=5, result_layout="dense", fill=0.1),
            [v("a", [1], [0.3])],
            result=values_as("float16"),
        ),
    ]


def packed_refusals() -> list[Case]:
    good = v("good", [1, 2], [1.0, 2.0])

    def bad(name: str, comment: str, message: str, wire: WireFormat = DELTA, **fields: Any) -> Case:
        client = Client("bad", {"v": ([3, 4, 9], [1.0, 2.0, 3.0])}, spoil=spoiling(**fields))
        return Case(name, comment, one(), [client, good], "bad", INVALID_ARGUMENT, message, wire=wire)

    def pad(keys: bytes) -> bytes:
        return keys[:-1] + bytes([keys[-1] | 0x80])

    def negative_scale(values: bytes) -> bytes:
        return np.float32(-1).tobytes() + values[4:]

    int8, half = values_as("int8_scaled"), values_as("float16")
    infinite = np.array([1, np.inf, 2], "<f2").tobytes()
    as_int8 = spoiling(value_encoding=pb.VALUE_ENCODING_INT8_SCALED, values=np.float32(1).tobytes() + b"\1")
    return [
        bad("delta_keys_cut", "The widths tell the length.", "2 bytes of keys", keys=lambda keys: keys[:-1]),
        bad("delta_keys_with_a_byte_more", "Nothing may follow.", "4 bytes of keys", keys=lambda keys: keys + b"\0"),
        bad("delta_keys_beyond_num_rows", "The first key too large is named.", "key 10", first_key=4),
        bad("delta_keys_that_wrap", "No key is taken modulo 2^64.", "key 18446744073709551615", first_key=2**64 - 1),
        bad("delta_width_above_64", "No gap has more bits than a key.", "65 bits", keys=lambda keys: b"A" + keys[1:]),
        bad("delta_padding", "The bits left over are zero.", "behind the last key", keys=pad),
        bad("delta_num_keys_disagrees", "It must agree with the bytes.", "num_keys 2", num_keys=2),
        bad("unknown_key_encoding", "The message lists those known.", "DELTA_BITPACKED", key_encoding=99),
        bad("unknown_value_encoding", "The message lists those known.", "NONE, INT8_SCALED", value_encoding=99),
        bad("int8_scale_negative", "Scales are ≥ 0.", "scale -1", int8, values=negative_scale),
        bad("int8_without_values", "A scale needs a value.", "4 bytes", int8, values=lambda values: values[:4]),
        bad("float16_infinity", "Checked after widening.", "inf", half, values=infinite),
        Case(
            "int8_values_of_integers",
            "They would have to be rounded.",
            one("int32"),
            [v("bad", [3], [1], spoil=as_int8), v("good", [5], [1])],
            "bad",
            INVALID_ARGUMENT,
            "INT8_SCALED",
        ),
    ]
