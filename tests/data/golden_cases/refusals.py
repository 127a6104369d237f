"""What is refused, and leaves the round unharmed; and rounds that fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import sparseagg as sa
from sparseagg.v1 import aggregation_pb2 as pb

from golden_cases.case import (
    FAILED_PRECONDITION,
    INF,
    INVALID_ARGUMENT,
    NAN,
    RESOURCE_EXHAUSTED,
    Case,
    Chunks,
    Client,
    one,
    spoiling,
    unchecked,
    v,
)


def refusals() -> list[Case]:
    good = v("good", [1, 2], [1.0, 2.0], 1.0)

    def bad(
        name: str,
        comment: str,
        message: str,
        client: Client,
        spec: sa.RoundSpec | None = None,
        code: int = INVALID_ARGUMENT,
        chunk_bytes: int = 1 << 20,
    ) -> Case:
        return Case(name, comment, spec or one(), [client, good], client.id, code, message, chunk_bytes)

    def spoilt(**fields: Any) -> Client:
        return v("bad", [3, 4, 3], [1.0, 2.0, 3.0], 1.0, spoiling(**fields))

    def no_round(name: str, comment: str, message: str, spec: sa.RoundSpec) -> Case:
        return Case(name, comment, spec, [], "", INVALID_ARGUMENT, message)

    def skip_one(chunks: Chunks) -> None:
        for chunk in chunks[1:]:
            chunk.sequence += 1

    weighted = one(weighting="by_weight")
    dense = one(num_rows=3, layout="dense")
    good_dense = Client("good", {"v": [1.0, 2.0, 3.0]})
    return [
        bad(
            "key_beyond_num_rows",
            "The first key that is too large is named.",
            "key 10",
            spoilt(keys=np.array([3, 10, 4], "<u4").tobytes()),
        ),
        bad(
            "weight_without_effect",
            "Where no tensor is weighted, a weight other than 1 is an error of the caller.",
            "weight 3 has no effect",
            v("bad", [3], [1.0], 3.0),
            one(op="mean"),
        ),
        bad("unknown_tensor", "The message lists the known ones.", "'w'", spoilt(tensor="w")),
        bad("wrong_dtype", "Values are not converted.", "'v'", spoilt(value_encoding=pb.VALUE_ENCODING_INT32)),
        bad("values_do_not_fit_keys", "keys·row_width ≠ values.", "'v'", spoilt(values=lambda values: values[:8])),
        bad(
            "value_bytes_are_no_multiple", "11 bytes are no float32s.", "11", spoilt(values=lambda values: values[:11])
        ),
        bad("key_bytes_are_no_multiple", "11 bytes are no keys.", "11", spoilt(keys=lambda keys: keys[:11])),
        bad("num_keys_disagrees", "It must agree with the bytes when it is set.", "'v'", spoilt(num_keys=4)),
        bad("false_sorted_flag", "A promise that is checked.", "keys_sorted", spoilt(keys_sorted=True)),
        bad("false_unique_flag", "A promise that is checked.", "keys_unique", spoilt(keys_unique=True)),
        bad("no_key_encoding", "Keys need an encoding.", "'v'", spoilt(key_encoding=pb.KEY_ENCODING_UNSPECIFIED)),
        bad(
            "missing_values",
            "Only a union does without.",
            "'v'",
            spoilt(value_encoding=pb.VALUE_ENCODING_NONE, values=b""),
        ),
        bad(
            "chunk_gap",
            "The number expected is named.",
            "1",
            v("bad", [3, 4, 3], [1.0, 2.0, 3.0], 1.0, skip_one),
            code=FAILED_PRECONDITION,
            chunk_bytes=80,
        ),
        bad("nan_is_refused", "By default.", "'v'", v("bad", [5, 6], [1.0, NAN], 1.0)),
        bad("infinity_is_refused", "By default.", "'v'", v("bad", [5, 6], [1.0, -INF], 1.0)),
        bad("negative_weight", "Weights are ≥ 0.", "-1", v("bad", [5], [1.0], -1.0), weighted),
        bad("nan_weight", "Weights are finite.", "nan", v("bad", [5], [1.0], NAN), weighted),
        bad("missing_weight", "by_weight wants one from each.", "weight", v("bad", [5], [1.0]), weighted),
        bad("negative_weight_under_uniform", "Checked though not used.", "-1", v("bad", [5], [1.0], -1.0)),
        Case(
            "fractional_weight_of_integers",
            "Integer sums take integer weights.",
            one("int32", weighting="by_weight"),
            [v("bad", [5], [1], 0.5), v("good", [5], [1], 2.0)],
            "bad",
            INVALID_ARGUMENT,
            "0.5",
        ),
        bad(
            "too_many_tuples",
            "The spec's limit is named.",
            "3",
            v("bad", [5, 6, 7, 8], [1.0] * 4, 1.0),
            one(max_tuples_per_submission=3),
            code=RESOURCE_EXHAUSTED,
        ),
        Case(
            "incomplete_dense_tensor",
            "A dense tensor comes whole.",
            dense,
            [Client("bad", {}), good_dense],
            "bad",
            INVALID_ARGUMENT,
            "3",
        ),
        Case(
            "zero_weight_at_a_key",
            "coordinate_mean has nothing to divide by at key 3, which is left out.",
            one(op="coordinate_mean", weighting="by_weight", return_counts=True),
            [v("a", [8, 3], [1.0, 1.0], 0.0), v("b", [8], [1.0], 1.0)],
        ),
        Case(
            "zero_weight_in_all",
            "mean has nothing to divide by at all: the round fails.",
            one(op="mean", weighting="by_weight"),
            [v("a", [8], [1.0], 0.0)],
            code=FAILED_PRECONDITION,
            message="'v'",
        ),
        Case(
            "zero_weight_without_keys",
            "Nothing to divide, so no failure.",
            one(op="mean", weighting="by_weight"),
            [v("a", [], [], 0.0)],
        ),
        no_round(
            "unsigned_must_be_modular", "Nobody gets a wrapped sum by accident.", "modular", unchecked(one, "uint32")
        ),
        no_round(
            "binned_has_a_largest_round",
            "The sums of so many terms stay within int64.",
            "1048575",
            unchecked(one, numerics="binned", max_submissions=2**20),
        ),
        no_round(
            "dense_needs_num_rows",
            "Hashed keys have no dense result.",
            "num_rows",
            unchecked(one, num_rows=0, result_layout="dense"),
        ),
        no_round(
            "two_tensors_of_one_name",
            "Names are unique.",
            "'v'",
            unchecked(sa.RoundSpec, [sa.TensorSpec("v", dtype, num_rows=3) for dtype in ("float32", "float64")]),
        ),
    ]
