"""A merge without a spec, against that with the spec written out; and what has no spec of its own."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import sparseagg as sa
from every_client import digest

ROWS = np.array([[1, 2], [3, 4]], np.float32)
PAIRS = {"a": {"w": ([7, 9], ROWS)}, "b": {"w": ([9], ROWS[:1])}}
HASHED = sa.RoundSpec([sa.TensorSpec("w", "float32", num_rows=0, row_width=2)], op="mean")


def test_pairs_have_keys_without_a_bound() -> None:
    result = sa.aggregate(PAIRS, op="mean")
    assert result.spec == HASHED
    assert digest(result) == digest(sa.aggregate(PAIRS, HASHED))


def test_readme_says_what_comes_out() -> None:
    result = sa.aggregate(PAIRS, op="coordinate_mean", return_counts=True)["w"]
    assert (result.keys.tolist(), result.values.tolist(), result.counts.tolist()) == (
        [7, 9],
        [[1.0, 2.0], [2.0, 3.0]],
        [1, 2],
    )


@pytest.mark.parametrize("made", [list, iter, dict], ids=lambda made: made.__name__)
def test_updates_of_every_kind_with_weights(made: Any) -> None:
    updates = [({"w": ([7], ROWS[:1])}, 3.0), ({"w": ([7], ROWS[1:])}, 1.0)]
    given = {str(at): update for at, update in enumerate(updates)} if made is dict else made(updates)
    result = sa.aggregate(given, op="mean")
    assert result.spec.weighting == "by_weight"
    assert result["w"].values.tolist() == [[1.5, 2.5]]


def test_an_iterator_may_fill_a_module_again() -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(2, 1, bias=False)

    def steps() -> Any:
        for at in (1.0, 2.0):
            layer.weight.grad = torch.full((1, 2), at)
            yield layer

    assert sa.aggregate(steps())["weight"].values.tolist() == [3.0, 3.0]


def test_dense_arrays_have_their_rows() -> None:
    result = sa.aggregate([[ROWS, np.arange(3)], [ROWS, np.arange(3)]])
    assert [(each.name, each.shape, each.layout, each.dtype) for each in result.spec.tensors] == [
        ("0", (2, 2), "dense", "float32"),
        ("1", (3,), "dense", "int64"),
    ]
    assert result["0"].dense().tolist() == (2 * ROWS).tolist()
    assert sa.aggregate([[1.0, 2.0], [3.0, 4.0]])["0"].values.tolist() == [4.0, 6.0]
    assert sa.aggregate({"a": {"loss": 1.5}, "b": {"loss": 2.0}}, op="mean")["loss"].dense() == 1.75


def test_sparse_arrays_have_their_shape() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    matrix = sparse.csr_matrix(np.array([[0, 0], [0, 5], [1, 0]], np.float32))
    assert sa.aggregate([matrix, matrix])["0"].dense().tolist() == [[0, 0], [0, 10], [2, 0]]
    row = sparse.csr_matrix(np.array([[0, 0, 7, 0]], np.float64))
    result = sa.aggregate({1: row, 2: row}, op="mean")
    assert (result["0"].keys.tolist(), result["0"].values.tolist(), result["0"].shape) == ([2], [7.0], (1, 4))


def test_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    hybrid = torch.sparse_coo_tensor([[1, 4]], torch.tensor([[1.0, 2.0], [3.0, 4.0]]), (6, 2)).bfloat16()
    tensor = sa.aggregate({"a": {"w": hybrid}, "b": {"w": hybrid}})["w"]
    assert (tensor.keys.tolist(), tensor.dtype, tensor.shape) == ([1, 4], "bfloat16", (6, 2))


def test_tables() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"key": [3, 5], "x": [1.0, 2.0], "y": [0.5, 0.5]})
    result = sa.aggregate({"a": {"t": frame}, "b": {"t": frame}})["t"]
    assert (result.keys.tolist(), result.values.tolist()) == ([3, 5], [[2.0, 1.0], [4.0, 1.0]])


def test_results_and_unions() -> None:
    first = sa.aggregate(PAIRS)
    assert digest(sa.aggregate([first])) == digest(first)
    dense = sa.aggregate([ROWS])
    assert sa.aggregate([dense, dense])["0"].dense().tolist() == (2 * ROWS).tolist()
    assert sa.aggregate([{"w": ([3, 1], None)}, {"w": ([3], None)}], op="union")["w"].counts.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("updates", "text"),
    [
        ([], "there are no updates, whose tensors would make a spec"),
        ({"a": {}}, "client 'a': the update has no tensors"),
        ({"a": {"w": []}}, "client 'a': tensor 'w': an empty list has no dtype and no width"),
        ({"a": {"w": ([], [])}}, "client 'a': tensor 'w': an empty list has no dtype"),
        ({"a": {"w": (1, 2, 3)}}, "client 'a': tensor 'w': a tuple is (keys, rows), not one of 3"),
        ({"a": {"w": np.ones(3, bool)}}, "client 'a': tensor 'w': unknown dtype"),
        ({"a": {"w": np.ones(3, np.uint32)}}, "client 'a': tensor 'w' is uint32, whose sums wrap"),
        ({"a": {"w": "text"}}, "client 'a': tensor 'w': cannot read builtins.str"),
        ({"a": PAIRS["a"], "b": {}}, "client 'b': the update has no tensors"),
        ({"a": {"w": ROWS, "v": ROWS}, "b": {"v": ROWS}}, "client 'b' has no tensor 'w', as client 'a' has"),
        ({"a": {"w": ROWS}, "b": {"w": ROWS, "u": ROWS}}, "client 'b': tensor 'u' is not among those of client 'a'"),
        ({"a": {"w": ([1], [1.0])}, "b": {"w": ([1], [1])}}, "client 'b': tensor 'w' is keys with rows of 1 int64"),
        ({"a": PAIRS["a"], "b": {"w": ([9], [[1.0]])}}, "rows of 1 float64, but that of client 'a' is keys with rows"),
        ({"a": {"w": ROWS}, "b": {"w": ROWS[:1]}}, "a dense array of float32 and shape (1, 2), but that of client 'a'"),
        ({"1": PAIRS["a"], 1: PAIRS["b"]}, "client '1' comes twice, once as 1"),
        ({"a": ROWS, "b": ([1], ROWS[:1])}, "client 'b': tensor '0' is keys with rows of 2 float32"),
    ],
)
def test_what_makes_no_spec_is_refused_with_client_and_tensor(updates: Any, text: str) -> None:
    with pytest.raises(sa.InvalidArgumentError, match=re.escape(text)):
        sa.aggregate(updates)


def test_an_iterator_is_checked_as_it_goes() -> None:
    with pytest.raises(
        sa.InvalidArgumentError, match=r"client '0+1': tensor '0' is a dense array of float32 and shape"
    ):
        sa.aggregate(iter([ROWS, ROWS[:1]]))


def test_spec_and_options_exclude_each_other() -> None:
    with pytest.raises(sa.InvalidArgumentError, match="op: the spec has such options; give either it or these"):
        sa.aggregate(PAIRS, HASHED, op="sum")
    with sa.Client(":memory:") as client:
        for given in ({}, {"spec": HASHED, "like": PAIRS["a"]}, {"spec": HASHED, "op": "sum"}):
            with pytest.raises(sa.InvalidArgumentError, match="create_round takes either a spec, or like=update"):
                client.create_round(**given)
