"""Specs from models. Modules of torch itself: tests/integrations/tensors."""

from __future__ import annotations

import re
import types
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import sparseagg as sa
from every_client import digest

ARRAYS = {
    "embedding.weight": np.zeros((100, 8), np.float32),
    "layer.weight": np.zeros((4, 8), np.float16),
    "layer.bias": np.zeros(4, ml_dtypes.bfloat16),
    "scale": np.float64(1),
    "steps": np.zeros((), np.int64),
}


def shapes(spec: sa.RoundSpec) -> dict[str, tuple]:
    return {tensor.name: (tensor.layout, tensor.dtype, tensor.shape, tensor.row_width) for tensor in spec.tensors}


def test_like_takes_names_dtypes_and_shapes() -> None:
    spec = sa.RoundSpec.like(ARRAYS, sparse=["embedding.weight"], op="mean", min_submissions=2)
    assert (spec.op, spec.min_submissions) == ("mean", 2)
    assert shapes(spec) == {
        "embedding.weight": ("sparse", "float32", (100, 8), 8),
        "layer.weight": ("dense", "float16", (4, 8), 1),
        "layer.bias": ("dense", "bfloat16", (4,), 1),
        "scale": ("dense", "float64", (), 1),
        "steps": ("dense", "int64", (), 1),
    }


@pytest.mark.parametrize("names", ["layer.*", ["layer.weight", "*.bias"], lambda name, array: name.startswith("layer")])
def test_arrays_are_named_by_patterns_and_functions(names: Any) -> None:
    of = {"layer.weight", "layer.bias"}
    layouts = shapes(sa.RoundSpec.like(ARRAYS, sparse=names))
    assert {name for name, (layout, *_) in layouts.items() if layout == "sparse"} == of
    assert layouts["layer.weight"][3] == 8
    elements = sa.RoundSpec.like(ARRAYS, elements=names).tensor("layer.weight")
    assert (elements.layout, elements.num_rows, elements.row_width) == ("sparse", 32, 1)
    assert set(shapes(sa.RoundSpec.like(ARRAYS, skip=names))) == set(ARRAYS) - of


def test_name_with_the_characters_of_a_pattern_is_itself() -> None:
    arrays = {"blocks[0]": np.zeros(3), "blocks0": np.zeros(3)}
    assert [tensor.layout for tensor in sa.RoundSpec.like(arrays, sparse="blocks[0]").tensors] == ["sparse", "dense"]


def test_like_a_list_has_positions_for_names() -> None:
    assert shapes(sa.RoundSpec.like([np.zeros((3, 1)), 1.5])) == {
        "0": ("dense", "float64", (3, 1), 1),
        "1": ("dense", "float64", (), 1),
    }


class FakeModule:
    """A torch module as far as we look at one."""

    def __init__(self) -> None:
        self.parameters = {
            name: types.SimpleNamespace(requires_grad=name != "base.weight", shape=(4, 2), dtype="torch.float32")
            for name in ("emb.weight", "bag.weight", "base.weight")
        }

    def named_parameters(self):
        return iter(self.parameters.items())

    def named_buffers(self):
        return iter({"mean": types.SimpleNamespace(shape=(2,), dtype="torch.float64")}.items())

    def named_modules(self):
        sparse, plain = types.SimpleNamespace(sparse=True), types.SimpleNamespace()
        return iter({"": plain, "emb": sparse, "bag": types.SimpleNamespace(sparse=False), "base": sparse}.items())


def test_like_a_module_has_its_trained_parameters_and_knows_sparse_embeddings() -> None:
    spec = sa.RoundSpec.like(FakeModule())
    assert [(tensor.name, tensor.layout) for tensor in spec.tensors] == [
        ("emb.weight", "sparse"),
        ("bag.weight", "dense"),
    ]
    assert sa.RoundSpec.like(FakeModule(), sparse=[]).tensor("emb.weight").layout == "dense"
    assert sa.RoundSpec.like(FakeModule(), buffers=True).tensor("mean").dtype == "float64"


def layouts(spec: sa.RoundSpec) -> dict[str, str]:
    return {tensor.name: tensor.layout for tensor in spec.tensors}


@pytest.mark.parametrize("listed", ["wte", "head"])
@pytest.mark.parametrize("what", ["sparse", "elements"])
def test_like_a_name_stands_for_all_names_of_one_memory(listed: str, what: str) -> None:
    weight = np.zeros((20, 4), np.float32)
    # The same shape in other memory, parts of the memory, and forms without content are no ties.
    other = {"other": np.zeros((20, 4), np.float32), "half": weight[:10], "turned": weight.T}
    zero = np.float32(0)
    forms = {"form": np.broadcast_to(zero, (20, 4)), "form 2": np.broadcast_to(zero, (20, 4))}
    found = layouts(sa.RoundSpec.like({"wte": weight, **other, "head": weight[:], **forms}, **{what: [listed, "form"]}))
    assert {name for name, layout in found.items() if layout == "sparse"} == {"wte", "head", "form"}


def test_like_what_is_named_by_another_name_of_one_memory() -> None:
    weight = np.zeros((20, 4), np.float32)
    model = {"wte": weight, "head": weight}
    assert layouts(sa.RoundSpec.like(model, sparse="wte", skip="head")) == {"wte": "sparse"}
    spec = sa.RoundSpec.like(model, sparse="wte", elements="head")
    assert [tensor.row_width for tensor in spec.tensors] == [4, 1]
    assert layouts(sa.RoundSpec.like(model)) == {"wte": "dense", "head": "dense"}


class TiedModule(FakeModule):
    """A torch module of which one parameter has two names."""

    def named_parameters(self, remove_duplicate: bool = True):
        yield from self.parameters.items()
        if not remove_duplicate:
            yield "head.weight", self.parameters["bag.weight"]

    def named_buffers(self, remove_duplicate: bool = True):
        return super().named_buffers()


def test_like_a_module_takes_every_name_of_a_tied_array_for_the_first() -> None:
    module = TiedModule()
    for names in ("head.weight", "head.*", ["bag.weight", "head.weight"]):
        assert layouts(sa.RoundSpec.like(module, names)) == {"emb.weight": "dense", "bag.weight": "sparse"}
    with pytest.raises(sa.InvalidArgumentError, match=r"sparse has 'tail.weight', which is no tensor of the model"):
        sa.RoundSpec.like(module, "tail.weight")


@pytest.mark.parametrize(
    ("model", "options", "text"),
    [
        ({"mask": np.zeros(3, bool)}, {}, "tensor 'mask': unknown dtype dtype('bool')"),
        ({"mask": np.zeros(3, bool)}, {}, "; skip=['mask'] leaves it out"),
        ({"q": np.zeros(3, np.int8)}, {}, "tensor 'q': unknown dtype dtype('int8')"),
        ({"m": np.zeros(3, np.uint32)}, {}, "tensor 'm' is uint32, whose sums wrap: name it in a TensorSpec"),
        ({"a": np.zeros((0, 3))}, {}, "tensor 'a': shape (0, 3) has no values"),
        ({"a": {"b": 1.0}}, {}, "tensor 'a' is no array but {'b': 1.0}: it is a mapping"),
        ({"a": [[1.0], [2.0, 3.0]]}, {}, "tensor 'a' "),
        ({3: np.zeros(3)}, {}, "a tensor's name must be a string, got 3"),
        ({}, {}, "the model has no arrays"),
        (3, {}, "a model must be a torch module, a mapping of arrays, or a list of arrays, got 3"),
        (ARRAYS, {"sparse": ["emb"]}, "sparse has 'emb', which is no tensor of the model; it has 'embedding.weight', "),
        (ARRAYS, {"skip": "x*"}, "skip has 'x*', which is no tensor of the model"),
        (ARRAYS, {"elements": [1]}, "a name in elements must be a string, got 1"),
        (ARRAYS, {"sparse": "scale", "elements": "scale"}, "tensor 'scale' is among sparse"),
        (ARRAYS, {"op": "average"}, "unknown op 'average'"),
    ],
)
def test_like_what_cannot_be_summed_names_it(model: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(sa.InvalidArgumentError, match=re.escape(text)):
        sa.RoundSpec.like(model, **options)


# ---- a merge without a spec, against that with the spec written out; and what has no spec of its own


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
