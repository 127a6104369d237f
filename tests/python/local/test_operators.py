"""Order statistics, bounds on submissions, cuts of results and moments, held to the reference, to NumPy and by hand."""

from __future__ import annotations

import collections
import dataclasses
import re
from typing import Any

import numpy as np
import pytest
import reference
import sparseagg as sa
from every_client import digest, one
from random_clips import with_random_clips
from random_rounds import ORDER_OPS, check_in_process, random_spec
from reference import differences
from reference.binned import BinnedSum
from sparseagg import errors


def at_one_key(values: list[float], weights: list[float] | None = None, **options: Any) -> Any:
    """The statistic of values that clients, in this order, send for one key."""
    spec = one(options.pop("dtype", "float64"), weighting="by_weight" if weights else "uniform", **options)
    updates = [({"v": ([3], [value])}, 1.0 if weights is None else weights[i]) for i, value in enumerate(values)]
    return sa.aggregate(updates, spec)["v"].values.ravel()[0].item()


@pytest.mark.parametrize("seed", range(200))
def test_random_order_statistics_have_the_bits_of_the_reference(seed):
    print("seed", seed)
    rng = np.random.default_rng([20261127, seed])
    check_in_process(rng, random_spec(rng, ORDER_OPS))


def test_median_of_an_even_number_is_half_and_half():
    assert at_one_key([4, 1, 3, 2], op="median") == 2.5
    assert at_one_key([1.5e308, 1.7e308], op="median") == 1.6e308  # the sum is infinite
    assert at_one_key([5e-324, 5e-324], op="median") == 5e-324  # half of it is 0
    assert at_one_key([3, 4], op="median", dtype="int64") == 4  # 3.5, to even
    assert at_one_key([4, 5], op="median", dtype="int64") == 4
    assert at_one_key([2**63 - 1, 2**63 - 3], op="median", dtype="int64") == 2**63 - 2
    assert at_one_key([3, 4], op="median", dtype="int32", result_dtype="float32") == 3.5


def test_weighted_quantile_is_half_and_half_on_equality():
    assert at_one_key([1, 2, 9], [1, 1, 2], op="median") == 5.5
    assert at_one_key([1, 2, 9], [1, 1, 3], op="median") == 9
    assert at_one_key([9, 1, 5], [2, 2, 0], op="median") == 5.0  # half of 1 and 9: no weight, no vote
    assert at_one_key([1, 2, 3, 4], [1, 1, 1, 1], op="quantile", quantile=0.25) == 1.5
    assert at_one_key([1, 2, 3, 4], None, op="quantile", quantile=0.25) == 1.0


def test_keys_of_too_few_values_are_hidden_before_their_nan_counts():
    def keys_and_values(n: int, **options: Any) -> Any:
        spec = one("float64", op="trimmed_mean", on_nonfinite="propagate", **options)
        result = sa.aggregate([{"v": ([3, 5], [[np.nan], [i]])} for i in range(n)], spec)["v"]
        return result.keys.tolist(), result.values.ravel().tolist()

    for absent in ("skip", "zero"):
        options = {"trim_fraction": 0.4, "min_contributors": 5, "absent": absent}
        assert keys_and_values(4, **options) == ([], [])
        keys, values = keys_and_values(5, **options)
        assert keys == [3, 5]
        assert np.isnan(values[0])
        assert values[1] == 2


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("num_clients", [1, 2, 8, 31, 65])
def test_dense_tensors_equal_numpy(dtype, num_clients):
    rng = np.random.default_rng([3, num_clients])
    stacked = rng.standard_normal((num_clients, 40, 3)).astype(dtype)
    updates = [{"v": part} for part in stacked]
    wide = stacked.astype(np.float64)
    for options, expected in [
        ({"op": "median"}, np.median(wide, axis=0)),
        ({"op": "quantile", "quantile": 0.3}, np.quantile(wide, 0.3, axis=0, method="inverted_cdf")),
    ]:
        result = sa.aggregate(updates, one(dtype, 40, 3, layout="dense", **options))["v"]
        np.testing.assert_array_equal(result.values, expected.astype(dtype).reshape(result.values.shape))


REFUSED = {
    "no trim": ({"op": "trimmed_mean"}, "tensor 'v': trimmed_mean needs a trim_fraction, in [0, 0.5)"),
    "half": ({"op": "trimmed_mean", "trim_fraction": 0.5}, "trim_fraction 0.5 is not in [0, 0.5)"),
    "negative": ({"op": "trimmed_mean", "trim_fraction": -0.1}, "trim_fraction -0.1 is not in [0, 0.5)"),
    "NaN": ({"op": "trimmed_mean", "trim_fraction": float("nan")}, "trim_fraction nan is not in [0, 0.5)"),
    "no quantile": ({"op": "quantile"}, "the op quantile needs the option quantile, in [0, 1]"),
    "beyond 1": ({"op": "quantile", "quantile": 1.5}, "quantile 1.5 is not in [0, 1]"),
    "modular": ({"dtype": "uint32", "modular": True, "op": "median"}, "modular tensors take the ops sum and union"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_spec_without_a_meaning_is_refused(name):
    options, text = REFUSED[name]
    with pytest.raises(sa.InvalidArgumentError, match=re.escape(text)):
        sa.aggregate([], one(**options))


def test_memory_limit_cannot_be_kept_by_a_fold():
    update = {"v": (np.arange(10_000), np.ones(10_000, np.float32))}
    with pytest.raises(errors.ResourceExhaustedError, match="median needs all values of a key at once"):
        sa.aggregate([update] * 100, one(num_rows=10_000, op="median"), memory_limit=1 << 20)
    sa.aggregate([update] * 100, one(num_rows=10_000), memory_limit=1 << 20)


@pytest.mark.parametrize("num_rows", [15_000, 2**32, 2**40, 0])
@pytest.mark.parametrize(
    "options", [{"op": "median"}, {"op": "trimmed_mean", "trim_fraction": 0.2}], ids=["median", "trim"]
)
def test_large_unsorted_updates_have_the_bits_of_sorted_ones(num_rows, options):
    rng = np.random.default_rng([9, num_rows % 1009])
    pool = np.unique(rng.integers(0, num_rows - 1 if num_rows else 2**64 - 1, 14_000, np.uint64, True))
    spec = one("float32", num_rows, **options)
    sorted_ones, unsorted_ones, expected = {}, {}, {}
    for client in range(9):
        keys = rng.choice(pool, 9_000, replace=False)  # enough for a coarse order of the unsorted ones
        values = rng.standard_normal(9_000).astype(np.float32)
        order = np.argsort(keys)
        unsorted_ones[str(client)] = {"v": (keys, values)}
        sorted_ones[str(client)] = {"v": (keys[order], values[order])}
        expected[str(client)] = reference.Update({"v": (keys, values.reshape(-1, 1))})
    result = sa.aggregate(sorted_ones, spec, threads=2)
    assert differences(spec, expected, result) == []
    assert digest(sa.aggregate(unsorted_ones, spec, threads=2)) == digest(result)


# ---- order statistics of bounded submissions ----


def test_a_factor_is_refused_and_a_refusal_is_not():
    tensors = [sa.TensorSpec("v", "float32", num_rows=9)]
    with pytest.raises(errors.InvalidArgumentError, match=r"clip\.l2 multiplies values, and order statistics choose"):
        sa.Aggregator(sa.RoundSpec(tensors, op="median", clip=sa.ClipSpec(l2=1.0)))
    aggregator = sa.Aggregator(sa.RoundSpec(tensors, op="median", clip=sa.ClipSpec(l2=1.0, on_clip="reject")))
    aggregator.add("a", {"v": ([1], np.array([0.5], np.float32))})
    with pytest.raises(errors.InvalidArgumentError, match="norm"):
        aggregator.add("b", {"v": ([1], np.array([1.5], np.float32))})
    assert aggregator.finish()["v"].values.tolist() == [0.5]


def summary_of(clipped: list[reference.Clipped]) -> sa.types.ClipSummary:
    factors = [0] * 16
    for each in clipped:
        if each.factor < 1:
            factors[min(15, next(b for b in range(2000) if each.factor >= 2.0 ** -(b + 1)))] += 1
    return sa.types.ClipSummary(
        num_clipped=sum(each.factor < 1 or each.linf or each.max_keys for each in clipped),
        num_l2=sum(each.factor < 1 for each in clipped),
        num_linf=sum(each.linf for each in clipped),
        num_max_keys=sum(each.max_keys for each in clipped),
        factors=tuple(factors),
    )


@pytest.mark.parametrize("batch", range(10))
def test_clip_random_rounds_equal_the_reference(on_host, batch):
    met: collections.Counter[str] = collections.Counter()
    for seed in range(30 * batch, 30 * batch + 30):
        check_round(seed, met)
    assert all(met[bound] > 0 for bound in ("l2", "linf", "max_keys", "refused")), met


def check_round(seed: int, met: collections.Counter[str]) -> None:
    print("seed", seed)
    rng = np.random.default_rng([20261127, seed])
    spec = None
    while spec is None:
        spec = with_random_clips(rng, random_spec(rng))
    for device in ("cpu", "cuda"):
        accepted, num_refused, result = check_in_process(rng, spec, device)
        met["refused"] += num_refused
        if result is None:
            continue
        counts = result.info.clip or summary_of([])  # None where all bounds are infinite
        assert counts == summary_of([reference.clip(spec, update) for update in accepted.values()])
        met.update({"l2": counts.num_l2, "linf": counts.num_linf, "max_keys": counts.num_max_keys})


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_clip_with_weights_rounds_the_factor_before_the_weight(on_host, device):
    # 5·(1/5) is 1 before it is weighted; 0.3·(1/5)·3 depends on the order of the products.
    spec = sa.RoundSpec([sa.TensorSpec("v", "float64", num_rows=9)], weighting="by_weight", clip=sa.ClipSpec(l2=1.0))
    rows = np.array([3.0, 4.0])
    result = sa.aggregate({"a": ({"v": ([1, 2], rows)}, 0.7)}, spec, device=device)
    assert result["v"].values.tolist() == [0.7 * (3.0 * 0.2), 0.7 * (4.0 * 0.2)]
    assert 0.7 * (3.0 * 0.2) != (0.7 * 0.2) * 3.0


def test_clip_refuses_arrays_on_a_device(library):
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=9)], clip=sa.ClipSpec(l2=1.0))
    aggregator = sa.Aggregator(spec, device="cuda")
    update = {"v": (library.array(np.array([1], np.int64)), library.array(np.array([1], np.float32)))}
    with pytest.raises(sa.errors.UnimplementedError, match="copy it to the host first"):
        aggregator.add("a", update)


def test_clip_merged_aggregators_add_their_counts():
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=9)], clip=sa.ClipSpec(l2=1.0, linf=3.0))
    one, other = sa.Aggregator(spec), sa.Aggregator(spec)
    one.add("a", {"v": ([1], np.array([4], np.float32))})
    other.add("b", {"v": ([1], np.array([0.5], np.float32))})
    other.add("c", {"v": ([1], np.array([2], np.float32))})
    assert other.withdraw("b")
    one.merge(other)
    result = one.finish()
    assert result["v"].values.tolist() == [2.0]
    assert (result.info.clip.num_clipped, result.info.clip.num_l2, result.info.clip.num_linf) == (2, 2, 1)


def test_cut_is_of_the_finished_rows():
    spec = one(op="coordinate_mean", result_top_k=2, return_counts=True)
    # Key 1 has the largest sum, and the smallest mean.
    result = sa.aggregate([{"v": ([1, 2], [3.0, 4.0])}, {"v": ([1, 3], [3.0, -5.0])}, {"v": ([1], [3.0])}], spec)
    assert result["v"].keys.tolist() == [2, 3]
    assert result["v"].values.tolist() == [4.0, -5.0]
    assert result["v"].counts.tolist() == [1, 1]
    (summary,) = result.info.results
    assert (summary.num_keys, summary.num_cut_keys) == (2, 1)


def test_result_of_a_million_rows_is_numpys_choice():
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((1_000_000, 3)).astype(np.float32)
    keys = rng.permutation(2_000_000)[:1_000_000]
    result = sa.aggregate([{"v": (keys, rows)}], one(num_rows=2_000_000, row_width=3, result_top_k=1000))
    squares = np.square(rows.astype(np.float64))
    norms = (squares[:, 0] + squares[:, 1]) + squares[:, 2]
    order = np.lexsort((keys, -norms))[:1000]
    chosen = order[np.argsort(keys[order])]
    assert result["v"].keys.tolist() == keys[chosen].tolist()
    assert result["v"].values.tobytes() == rows[chosen].tobytes()
    assert result.info.results[0].num_cut_keys == 999_000


def test_moments_as_hand_computed():
    spec = one("float32", row_width=2, op="coordinate_mean", weighting="by_weight", return_moments=True)
    updates = [({"v": ([4, 1, 4], [[1, 2], [3, 4], [1, 0]])}, 2.0), ({"v": ([4], [[5, -1]])}, 3.0)]
    result = sa.aggregate(updates, spec)["v"]
    assert result.moments.tolist() == [[18.0, 32.0], [2 * 4.0 + 3 * 25.0, 2 * 4.0 + 3 * 1.0]]
    assert result.moments.dtype == np.float64
    plain = sa.aggregate([{"v": ([4], [7])}], one("int32", result_layout="dense", num_rows=6, return_moments=True))["v"]
    assert plain.moments.tolist() == [0, 0, 0, 0, 49.0, 0]
    assert sa.aggregate([{"v": ([4], [7])}], one())["v"].moments is None


@pytest.mark.parametrize("counts", [False, True])
def test_rows_that_are_pruned_from_a_dense_result_have_no_moments(counts):
    spec = one(
        "float32", num_rows=4, result_layout="dense", prune_zeros=True, return_moments=True, return_counts=counts
    )
    result = sa.aggregate([{"v": ([1, 2], [3.0, 1.0])}, {"v": ([1], [-3.0])}], spec)["v"]
    assert result.moments.tolist() == [0.0, 0.0, 1.0, 0.0]
    assert (result.counts is None) != counts


def test_moments_do_not_depend_on_order_splits_or_a_memory_limit():
    rng = np.random.default_rng(8)
    spec = one("float32", num_rows=5000, row_width=4, weighting="by_weight", return_moments=True, result_top_k=300)
    updates = {
        f"client {i:02}": ({"v": (rng.integers(0, 5000, 800), rng.standard_normal((800, 4)))}, float(rng.random()))
        for i in range(20)
    }
    whole = sa.aggregate(updates, spec)["v"]
    halves = [sa.Aggregator(spec), sa.Aggregator(spec)]
    for i, name in enumerate(reversed(updates)):
        halves[i % 2].add(name, *updates[name])
    halves[0].merge(halves[1])
    limited = sa.Aggregator(spec, memory_limit=1_200_000)
    for name in updates:
        limited.add(name, *updates[name])
    with pytest.raises(errors.FailedPreconditionError, match="memory_limit"):
        limited.withdraw("client 00")  # it has been folded
    for part in (halves[0].finish()["v"], limited.finish()["v"]):
        assert part.keys.tobytes() == whole.keys.tobytes()
        assert part.values.tobytes() == whole.values.tobytes()
        assert part.moments.tobytes() == whole.moments.tobytes()


# ---- binned sums: the same bits in any order, and the definition in integers (docs/numerics.md)


SEEDS = range(7)  # each is a family of multisets
COLUMNS, CLIENTS = 600, 9


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


# Tensors with their rows for the columns of the multisets: dense; close together, and far apart; with keys of 64 bits.
TENSORS = {
    "dense": sa.TensorSpec("v", "float32", num_rows=COLUMNS, layout="dense"),
    "table": sa.TensorSpec("v", "float32", num_rows=2 * COLUMNS),
    "rows": sa.TensorSpec("v", "float32", num_rows=2 * COLUMNS, row_width=5),
    "sorted": sa.TensorSpec("v", "float32", num_rows=2**32),
    "hashed": sa.TensorSpec("v", "float32", num_rows=0, row_width=3),
}


@pytest.mark.parametrize("family", SEEDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", TENSORS)
def test_bits_are_those_of_the_definition_in_any_order(name, dtype, family):
    rng = np.random.default_rng(family)
    values, weights = multisets(rng, family, dtype), rng.random(CLIENTS) * 10.0 ** rng.integers(-3, 6, CLIENTS)
    tensor = dataclasses.replace(TENSORS[name], dtype=dtype)
    width, num_rows = tensor.row_width, COLUMNS // tensor.row_width
    keys = np.arange(num_rows, dtype=np.uint64) * np.uint64((tensor.num_rows or 2**64) // num_rows)
    lists = rng.random((CLIENTS, num_rows)) < (1 if tensor.layout == "dense" else 0.7)
    options = {"op": "coordinate_mean", "return_counts": True, "return_weights": True}
    spec = sa.RoundSpec([tensor], result_dtype="float64", weighting="by_weight", numerics="binned", **options)
    rows, sums = {}, {}
    for client, weight in enumerate(map(float, weights)):
        for row in np.flatnonzero(lists[client]):
            terms = [BinnedSum(float(v) * weight, dtype) for v in values[client, row * width : (row + 1) * width]]
            rows[row] = [a + b for a, b in zip(rows.get(row, [0] * width), terms)]
            sums[row] = sums.get(row, 0) + BinnedSum(weight)
    means = np.array([[float(term) / float(sums[row]) for term in rows[row]] for row in sorted(rows)])
    expected = means.tobytes(), lists.sum(0)[lists.any(0)].tolist(), [float(sums[row]) for row in sorted(rows)]

    def add(to: sa.Aggregator, client: int) -> None:
        order = rng.permutation(np.flatnonzero(lists[client]))
        own = values[client, : num_rows * width].reshape(num_rows, width)
        update = own if tensor.layout == "dense" else (keys[order], own[order])
        to.add(
            f"client {client}", update if width > 1 or tensor.layout != "dense" else own[:, 0], float(weights[client])
        )

    for _ in range(5):
        whole = sa.Aggregator(spec)
        for number, part in enumerate(np.split(rng.permutation(CLIENTS), np.sort(rng.integers(0, CLIENTS, 2)))):
            other = sa.Aggregator(spec, threads=int(rng.integers(1, 4)))
            for client in part:
                add(other, client)
                if rng.random() < 0.3:
                    other.export_partial()  # merges what is pending
            if len(part) > 0 and rng.random() < 0.5:
                whole.add_partial(f"part {number}", other.export_partial())
            else:
                whole.merge(other)
        result = whole.finish()["v"]
        assert (result.values.tobytes(), result.counts.tolist(), result.weights.tolist()) == expected


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


def test_a_partial_has_infinite_terms_only_where_submissions_can_make_them():
    spec = binned(columns=1, weighting="by_weight")
    source, root = sa.Aggregator(spec), sa.Aggregator(spec)
    source.add("a", [3e38], weight=2.0**960)  # the product is beyond float64
    root.add_partial("leaf", source.export_partial())
    assert root.finish()["v"].values.tolist() == [np.inf]
    source, root = sa.Aggregator(binned(columns=1)), sa.Aggregator(binned(columns=1))
    source.add("a", [0.25])
    good = b"".join(source.export_partial())
    with pytest.raises(sa.errors.InvalidArgumentError, match="value 0 of row 0 is larger than 1 submissions can make"):
        root.add_partial("leaf", good[:TOP] + bytes([good[TOP] | 64]) + good[TOP + 1 :])


@pytest.mark.parametrize(
    ("at", "byte", "reason"),
    [
        (DIGITS + 7, 1, NOT_A_SUM),
        (144, 4, "the count of row 0 is 4, of 3 submissions"),
        (159, 1, "the weight of row 0, with the digits .* and the top .*, is not one of 3 submissions"),
        (184, 0, NOT_A_SUM),
    ],
)
def test_partials_of_sparse_sums_that_no_submissions_make_are_refused(at, byte, reason):
    tensor = sa.TensorSpec("v", "float32", num_rows=9, op="coordinate_mean", weighting="by_weight", numerics="binned")
    spec = sa.RoundSpec([tensor], return_counts=True)
    source, root = sa.Aggregator(spec), sa.Aggregator(spec)
    for client in range(3):
        source.add(f"{client}", ([4], [0.25]), weight=2.0)
    good = b"".join(source.export_partial())
    assert len(good) == 192
    with pytest.raises(sa.errors.InvalidArgumentError, match=reason):
        root.add_partial("leaf", good[:at] + bytes([byte]) + good[at + 1 :])
    root.add_partial("leaf", good)
    assert root.finish()["v"].values.tolist() == [0.25]
