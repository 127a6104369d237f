"""Operators, keys and layouts."""

from __future__ import annotations

import numpy as np
import sparseagg as sa

from golden_cases.case import (
    Case,
    Client,
    one,
    v,
)


def ops() -> list[Case]:
    two = [v("a", [7, 1], [4.0, 1.0]), v("b", [9, 1], [2.0, 0.25])]
    weighted = [v("a", [7, 1], [4.0, 1.0], 3.0), v("b", [9, 1], [2.0, 0.25], 1.0)]
    signed = [v("a", [0, 1, 2], [1.5, -0.0, -2.0]), v("b", [0, 1, 2], [-1.5, -0.0, 7.0])]
    return [
        Case("sum_one_client", "A sum of one is the update itself, sorted.", one(), two[:1]),
        Case("sum_two_clients", "Keys of both, of the first and of the second.", one(return_counts=True), two),
        Case("mean_dilutes", "An absent key counts as 0: {7: 4} and {9: 2} give {7: 2, 9: 1}.", one(op="mean"), two),
        Case("coordinate_mean_votes", "An absent key does not vote.", one(op="coordinate_mean"), two),
        Case(
            "sum_by_weight",
            "w·v, and the weights at each key.",
            one(weighting="by_weight", return_weights=True),
            weighted,
        ),
        Case("mean_by_weight", "Divided by the weight of all.", one(op="mean", weighting="by_weight"), weighted),
        Case(
            "coordinate_mean_by_weight",
            "Divided by the weight of the key's contributors.",
            one(op="coordinate_mean", weighting="by_weight", return_counts=True, return_weights=True),
            weighted,
        ),
        Case(
            "union_without_values",
            "Keys and counts, no values on the wire.",
            one(op="union"),
            [v("a", [7, 1, 7], None), v("b", [1], None)],
        ),
        Case("union_with_values", "Values may be sent, and are ignored.", one(op="union"), two),
        Case("min_normalises_zero", "-0.0 never comes out.", one(op="min"), signed),
        Case("max_normalises_zero", "-0.0 never comes out.", one(op="max"), signed),
        Case(
            "max_ignores_weights",
            "Weights matter for return_weights alone.",
            one(op="max", weighting="by_weight", return_weights=True),
            weighted,
        ),
        Case(
            "top_k_of_the_means",
            "The two rows of largest norm: of equal ones, that of the lower key.",
            one(row_width=2, op="mean", result_top_k=2, return_counts=True),
            [v("a", [5, 1, 3], [[6.0, 8.0], [1.0, 1.0], [0.0, 10.0]]), v("b", [9, 2], [[-10.0, 0.0], [2.0, 2.0]])],
        ),
        Case(
            "least_norm_of_integers",
            "√(3² + 4²) = 5 stays.",
            one("int32", row_width=2, result_min_norm=5.0),
            [v("a", [5, 1, 3], [[3, 4], [3, 3], [-6, 0]])],
        ),
        Case(
            "moments_by_weight",
            "Σ w·v² beside the mean, cut with its rows; repeated keys are added before.",
            one(op="coordinate_mean", weighting="by_weight", return_moments=True, result_top_k=2),
            [v("a", [7, 1, 7], [4.0, 1.0, 2.0], 3.0), v("b", [7, 2], [2.0, 0.25], 1.0)],
        ),
        Case(
            "moments_of_a_dense_result",
            "Zeros at keys that nobody lists.",
            one(num_rows=4, result_layout="dense", return_moments=True),
            [v("a", [2, 0], [3.0, -1.0])],
        ),
        Case(
            "empty_update_counts_in_the_mean",
            "nnz = 0 touches nothing, and is one of N.",
            one(op="mean"),
            [*two, Client("c", {})],
        ),
        Case(
            "all_updates_empty",
            "A sparse result without keys.",
            one(op="mean", return_counts=True),
            [Client("a", {}), v("b", [], [])],
        ),
    ]


def keys() -> list[Case]:
    return [
        Case(
            "duplicates_and_unsorted_keys",
            "Repeated keys denote the sum of their rows and one contributor.",
            one(op="coordinate_mean", return_counts=True),
            [v("a", [5, 2, 5, 0, 5], [1.0, 2.0, 0.5, 3.0, 0.25]), v("b", [9, 5], [1.0, 1.0])],
        ),
        Case(
            "duplicates_under_max",
            "Folded first, then compared.",
            one(op="max"),
            [v("a", [3, 3], [2.0, 2.0]), v("b", [3], [3.0])],
        ),
        Case(
            "cancellation_keeps_its_key",
            "A sum of zero is not an untouched key.",
            one(),
            [v("a", [1, 2], [1.0, 5.0]), v("b", [1], [-1.0])],
        ),
        Case(
            "prune_zeros",
            "Rows whose every rounded value is zero go.",
            one(row_width=2, prune_zeros=True),
            [v("a", [1, 2, 3], [[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]), v("b", [1, 2], [[-1.0, 0.0], [-1.0, 0.0]])],
        ),
        Case(
            "min_contributors",
            "Keys of fewer than two clients go.",
            one(min_contributors=2, return_counts=True),
            [v("a", [1, 2, 2], [1.0, 1.0, 1.0]), v("b", [1, 3], [1.0, 1.0])],
        ),
        Case(
            "min_contributors_in_a_dense_result",
            "Removed keys hold the fill and count 0.",
            one(
                num_rows=5,
                result_layout="dense",
                fill=-1.5,
                min_contributors=2,
                return_counts=True,
                return_weights=True,
            ),
            [v("a", [1, 2], [1.0, 1.0]), v("b", [1, 3], [1.0, 1.0])],
        ),
        Case(
            "hashed_keys",
            "num_rows 0: all of uint64, no key reserved.",
            one(num_rows=0),
            [
                v("a", np.array([2**64 - 1, 0, 2**63], np.uint64), [1.0, 2.0, 3.0]),
                v("b", np.array([2**64 - 1], np.uint64), [0.5]),
            ],
        ),
        Case(
            "largest_u32_key",
            "num_rows 2^32 still has keys of 32 bits.",
            one(num_rows=2**32),
            [v("a", [2**32 - 1, 0], [1.0, 2.0])],
        ),
        Case(
            "first_u64_num_rows",
            "One more, and keys have 64 bits.",
            one(num_rows=2**32 + 1),
            [v("a", [2**32, 0], [1.0, 2.0])],
        ),
    ]


def layouts() -> list[Case]:
    bias = sa.TensorSpec("bias", "float32", num_rows=4, layout="dense", op="mean")
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    return [
        Case(
            "dense_tensor",
            "Implicit keys; the result is dense as well.",
            sa.RoundSpec([bias]),
            [Client("a", {"bias": [1.0, 2.0, 3.0, 4.0]}), Client("b", {"bias": [0.0, 0.0, 1.0, 1.0]})],
        ),
        Case(
            "implicit_keys_of_a_sparse_tensor",
            "A sparse tensor takes a whole array too.",
            one(num_rows=4, row_width=3),
            [Client("a", {"v": rows}), v("b", [2], rows[:1])],
        ),
        Case(
            "dense_result",
            "Untouched keys hold the fill.",
            one(num_rows=6, result_layout="dense", fill=0.5),
            [v("a", [4, 1], [1.0, 2.0])],
        ),
        Case(
            "auto_stays_sparse",
            "4 of 10 keys: 4·(4 + 4) < 10·4.",
            one(result_layout="auto"),
            [v("a", [1, 2, 3, 4], [1.0] * 4)],
        ),
        Case(
            "auto_goes_dense",
            "5 of 10 keys: 5·(4 + 4) ≥ 10·4.",
            one(result_layout="auto", return_counts=True),
            [v("a", [1, 2, 3, 4], [1.0] * 4), v("b", [9], [1.0])],
        ),
        Case(
            "auto_dense_threshold",
            "Dense from the given density on.",
            one(result_layout="auto", dense_threshold=0.1),
            [v("a", [3], [1.0])],
        ),
        Case(
            "auto_union",
            "A union's rows are its counts, of 4 bytes.",
            one("float64", num_rows=4, op="union", result_layout="auto"),
            [v("a", [0, 3], None)],
        ),
        Case(
            "chunks_of_one_submission",
            "Rows of row_width 3 in many chunks, keys repeated across them.",
            one(row_width=3, return_counts=True),
            [v("a", [1, 5, 1, 9, 0], np.arange(15.0).reshape(5, 3) / 8)],
            chunk_bytes=110,
        ),
        Case(
            "interleaved_clients_and_tensors",
            "Chunks of several clients and tensors, mixed.",
            sa.RoundSpec(
                [sa.TensorSpec("emb", "float32", num_rows=100, row_width=2), bias],
                op="coordinate_mean",
                weighting="by_weight",
            ),
            [
                Client(
                    name,
                    {"emb": (np.arange(i, 100, 9), np.full((len(range(i, 100, 9)), 2), i + 0.1)), "bias": [i] * 4},
                    1.0 + i,
                )
                for i, name in enumerate(["x", "y", "z"])
            ],
            chunk_bytes=140,
            interleave=True,
        ),
        Case(
            "tensor_overrides_the_round",
            "Op, counts and result dtype of one tensor.",
            sa.RoundSpec(
                [
                    sa.TensorSpec("u", "float32", num_rows=10, op="union"),
                    sa.TensorSpec("m", "float32", num_rows=10, op="max", return_counts=False, result_dtype="float64"),
                    sa.TensorSpec("s", "float32", num_rows=10),
                ],
                return_counts=True,
                op="sum",
            ),
            [Client("a", {"u": ([1], None), "m": ([2], [0.1]), "s": ([3], [0.1])})],
        ),
    ]
