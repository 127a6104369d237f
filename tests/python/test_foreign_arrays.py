"""Objects of other libraries, known by their attributes only, as keys and values; also such as are inconsistent."""

from __future__ import annotations

import collections
import pathlib
import re
import subprocess
import sys
import types

import numpy as np
import pytest
import scipy.sparse
import sparseagg as sa
from fake_libraries import FakeTensorFlow, FakeTorch
from sparseagg._internal.updates.arrays import tensor_data, update_data
from test_arrays import rows_of, tensor


def test_update_data_torch_module_gives_its_gradients():
    sparse = FakeTorch(indices=[[4, 4, 1]], values=np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), shape=(10, 2))
    dense = FakeTorch(np.array([1.0, 2.0, 3.0], np.float32))
    parameters = {"emb.weight": sparse, "bias": dense, "frozen": None}
    module = types.SimpleNamespace(
        named_parameters=lambda: ((name, types.SimpleNamespace(grad=grad)) for name, grad in parameters.items())
    )
    spec = sa.RoundSpec(
        [
            sa.TensorSpec("emb.weight", "float32", num_rows=10, row_width=2),
            sa.TensorSpec("bias", "float32", num_rows=3, layout="dense"),
        ]
    )
    embedding, bias = update_data(spec, module)
    assert embedding.keys.tolist() == [4, 4, 1]  # uncoalesced: the sums are the server's
    assert rows_of(embedding) == {4: [4.0, 6.0], 1: [5.0, 6.0]}
    assert bias.keys is None
    assert bias.values.tolist() == [[1.0], [2.0], [3.0]]
    parameters["other"] = dense
    with pytest.raises(sa.InvalidArgumentError, match="'other'"):
        update_data(spec, module)


def test_update_data_module_sends_a_gradient_by_each_of_its_names_that_the_round_has():
    weight = types.SimpleNamespace(grad=FakeTorch(np.array([1.0, 2.0], np.float32)))

    def named_parameters(remove_duplicate=True):
        yield "wte", weight
        if not remove_duplicate:
            yield "head", weight

    module = types.SimpleNamespace(named_parameters=named_parameters)
    for names in (["wte"], ["head"], ["wte", "head"]):
        spec = sa.RoundSpec([sa.TensorSpec(name, "float32", num_rows=2) for name in names])
        assert [data.spec.name for data in update_data(spec, module)] == names
    with pytest.raises(sa.InvalidArgumentError, match="unknown tensor 'wte'"):
        update_data(sa.RoundSpec([tensor()]), module)


def test_tensor_data_torch_sparse_csr_is_read_by_rows():
    csr = FakeTorch(csr=([0, 1, 1, 3], [1, 0, 1], [5.0, 6.0, 7.0]), shape=(3, 2))
    assert rows_of(tensor_data(tensor(num_rows=3, row_width=2), csr)) == {0: [0.0, 5.0], 2: [6.0, 7.0]}


def test_tensor_data_tensor_flow_is_read_by_indices():
    slices = types.SimpleNamespace(
        indices=FakeTensorFlow([4, 1]), values=FakeTensorFlow([[1.0, 2.0], [3.0, 4.0]]), dense_shape=None
    )
    assert rows_of(tensor_data(tensor(row_width=2), slices)) == {4: [1.0, 2.0], 1: [3.0, 4.0]}
    sparse = types.SimpleNamespace(
        indices=FakeTensorFlow([[4], [1]]), values=FakeTensorFlow([1.0, 2.0]), dense_shape=FakeTensorFlow([10])
    )
    assert rows_of(tensor_data(tensor(), sparse)) == {4: [1.0], 1: [2.0]}
    assert rows_of(tensor_data(tensor("float64"), (FakeTensorFlow([1]), FakeTensorFlow([0.1])))) == {1: [0.1]}


def test_tensor_data_scipy_duplicates_stay_separate_rows():
    matrix = scipy.sparse.coo_array(([1.0, 2.0, 4.0, 8.0], ([3, 3, 3, 3], [1, 1, 0, 1])), shape=(10, 2))
    data = tensor_data(tensor(row_width=2), matrix)
    assert data.keys.tolist() == [3, 3, 3]
    assert data.values.tolist() == [[4.0, 1.0], [0.0, 2.0], [0.0, 8.0]]


@pytest.mark.parametrize("shape", [(10, 1), (1, 10)])
def test_tensor_data_scipy_vector_is_a_vector(shape):
    vector = scipy.sparse.coo_matrix(([1.0, 2.0, 4.0], ([7, 2, 7], [0, 0, 0])), shape=(10, 1))
    vector = vector if shape == (10, 1) else vector.T
    data = tensor_data(tensor(), vector)
    assert data.keys.tolist() == [7, 2, 7]
    assert data.values.tolist() == [[1.0], [2.0], [4.0]]


@pytest.mark.parametrize(
    ("indices", "words"),
    [
        ([[1, 10], [0, 1]], r"coordinate 10 of axis 0 at position 1 is not in \[0, 10\)"),
        ([[1, -1], [0, 1]], r"coordinate -1 of axis 0 at position 1 is not in \[0, 10\)"),
        ([[1, 1], [2, 1]], r"coordinate 2 of axis 1 at position 0 is not in \[0, 2\)"),
    ],
)
def test_tensor_data_coordinates_outside_the_shape_are_refused(indices, words):
    sparse = FakeTorch(indices=indices, values=[1.0, 2.0], shape=(10, 2))
    with pytest.raises(sa.InvalidArgumentError, match=f"'v': {words}"):
        tensor_data(tensor(row_width=2), sparse)


@pytest.mark.parametrize("shape", [(2, 6), (3, 4), (4, 3), (1, 12), (12, 1)])
def test_tensor_data_sparse_axes_other_than_keys_and_columns_are_refused(shape):
    # As a transposed array has them: row-major, its entries would be those of other keys.
    given = [scipy.sparse.csr_matrix(np.ones(shape)), scipy.sparse.coo_array(shape)]
    given.append(FakeTorch(indices=[[0], [0]], values=[1.0], shape=shape))
    for sparse in given:
        with pytest.raises(
            sa.InvalidArgumentError, match=rf"'v': the first axes of .* shape {re.escape(str(shape))} do not"
        ):
            tensor_data(tensor(num_rows=6, row_width=2), sparse)


@pytest.mark.parametrize("shape", [(12,), (6, 2), (2, 3, 2), (6, 1, 2), (3, 2, 1, 2)])
def test_tensor_data_sparse_axes_may_be_several(shape):
    values = np.arange(1.0, 13.0)
    sparse = FakeTorch(indices=np.unravel_index(np.arange(12), shape), values=values, shape=shape)
    expected = dict(enumerate(values.reshape(6, 2).tolist()))
    assert rows_of(tensor_data(tensor(num_rows=6, row_width=2), sparse)) == expected
    hybrid = FakeTorch(indices=[[0, 1], [2, 0]], values=values[:8].reshape(2, 2, 2), shape=(2, 3, 2, 2))
    assert rows_of(tensor_data(tensor(num_rows=6, row_width=4), hybrid)) == {2: [1, 2, 3, 4], 3: [5, 6, 7, 8]}


def test_tensor_data_sparse_without_entries_has_to_fit_as_well():
    empty = FakeTorch(indices=np.empty((1, 0), np.int64), values=np.empty((0, 3)), shape=(10, 3))
    with pytest.raises(sa.InvalidArgumentError, match="does not fit num_rows 10 × row_width 2"):
        tensor_data(tensor(row_width=2), empty)
    assert tensor_data(tensor(row_width=3), empty).num_keys == 0


class Unreadable(FakeTorch):
    """As torch tensors in compressed columns or in blocks, or on the device "meta"."""

    def numpy(self):
        raise NotImplementedError("no data!")


def test_update_data_what_its_library_cannot_convert_is_refused():
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=2)])
    for update in (Unreadable(), ([0, 1], Unreadable()), ([0, 1], [[1.0, 2.0], [3.0]])):
        with pytest.raises(sa.InvalidArgumentError, match="tensor 'v': cannot read"):
            update_data(spec, update)


class Negated(FakeTorch):
    """As the imaginary part of a conjugate: a view that is negated when it is read."""

    def resolve_neg(self):
        return FakeTorch(-self.array)

    def numpy(self):
        raise RuntimeError("Can't call numpy() on Tensor that has negative bit set.")


def test_update_data_torch_views_that_are_negated_are_read():
    (data,) = update_data(sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=2)]), Negated(np.array([1.0, -2.0])))
    assert data.values.tolist() == [[-1.0], [2.0]]


@pytest.mark.parametrize("make", [scipy.sparse.dok_matrix, scipy.sparse.dok_array])
def test_dictionary_of_keys_is_a_tensor_and_no_mapping_of_tensors(client, make):
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=3, row_width=2)], weighting="by_weight")
    update = make(np.array([[0, 1], [0, 0], [2, 0]], np.float32))
    for aggregate in (client.aggregate, sa.aggregate):
        for pair in ((update, 2.0), ({"v": update}, 2.0)):
            merged = aggregate([pair], spec)["v"]
            assert (merged.keys.tolist(), merged.values.tolist()) == ([0, 2], [[0, 2], [4, 0]])


def test_tensor_data_jax_bcoo_is_read_without_its_padding():
    def bcoo(data, indices, shape, n_batch=0):
        indices = np.array(indices)
        return types.SimpleNamespace(
            data=np.array(data), indices=indices, shape=shape, n_batch=n_batch, n_sparse=indices.shape[-1]
        )

    entries = bcoo([5.0, 6.0, 7.0, 0.0], [[0, 1], [2, 0], [2, 1], [3, 2]], (3, 2))
    assert rows_of(tensor_data(tensor(num_rows=3, row_width=2), entries)) == {0: [0.0, 5.0], 2: [6.0, 7.0]}
    rows = bcoo([[1.0, 2.0], [3.0, 4.0]], [[2], [0]], (3, 2))
    assert tensor_data(tensor(num_rows=3, row_width=2), rows).keys.tolist() == [2, 0]
    batches = bcoo([[1.0], [2.0], [3.0]], [[[1]], [[0]], [[2]]], (3, 2), n_batch=1)
    assert rows_of(tensor_data(tensor(num_rows=3, row_width=2), batches)) == {0: [0.0, 1.0], 1: [2.0, 0.0]}
    part = bcoo([5.0, 6.0], [[1, 2], [0, 1]], (3, 2))  # padding: one index is the size of its axis
    assert rows_of(tensor_data(tensor(num_rows=3, row_width=2), part)) == {0: [0.0, 6.0]}
    for index, words in [
        ((-1, 1), r"-1 of axis 0"),
        ((-1, 2), r"-1 of axis 0"),
        ((4, 1), "4 of axis 0"),
        ((0, 9), "9"),
    ]:
        with pytest.raises(sa.InvalidArgumentError, match=rf"coordinate {words}.* at position 1 is not in"):
            tensor_data(tensor(num_rows=3, row_width=2), bcoo([5.0, 6.0], [[0, 1], index], (3, 2)))


def test_tensor_data_rows_of_a_sparse_array_become_elements_where_keys_are_elements():
    hybrid = FakeTorch(indices=[[2, 0, 2]], values=np.arange(6.0).reshape(3, 2), shape=(3, 2))
    data = tensor_data(sa.TensorSpec("v", "float32", shape=(3, 2), row_width=1), hybrid)
    assert data.keys.tolist() == [4, 5, 0, 1, 4, 5]
    assert data.values.reshape(-1).tolist() == [0, 1, 2, 3, 4, 5]
    entries = scipy.sparse.coo_array(([1.0, 0.0], ([2, 0], [1, 0])), shape=(3, 2))
    data = tensor_data(sa.TensorSpec("v", "float32", shape=(3, 2), row_width=1), entries)
    assert dict(zip(data.keys.tolist(), data.values[:, 0].tolist())) == {5: 1.0, 0: 0.0}


class Frame:
    """A table, as NumPy sees those of Polars and others."""

    columns = ("key", "v")

    def __array__(self, dtype=None, copy=None):
        return np.array([[1.0, 2.0]])


class Masked:
    """As variables of netCDF4."""

    def __array__(self, dtype=None, copy=None):
        return np.ma.masked_array([1.0, 2.0], [False, True])


class Nullable:
    """As arrays of Arrow."""

    null_count = 1

    def is_null(self):
        return np.array([False, True])

    def __array__(self, dtype=None, copy=None):
        return np.array([1.0, np.nan])


class Labelled:
    """As arrays of xarray."""

    dims = ("key",)
    indexes = types.MappingProxyType({"key": [7, 9]})

    def __array__(self, dtype=None, copy=None):
        return np.array([1.0, 2.0])


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (Frame(), "it is a table without __arrow_c_stream__"),
        ([Frame()], "it is a table"),
        ([[1.0], Frame()], "it is a table"),
        (Masked(), "some of its entries are masked"),
        (Nullable(), "it has a missing value at position 1"),
        (Labelled(), "its axes have labels"),
        # NumPy reads the keys of a mapping that is no dict, and the bytes of a bytearray.
        (collections.UserDict({0: 5.0, 1: 6.0}), "it is a mapping"),
        ({0: 5.0, 1: 6.0}, "it is a mapping"),
        (bytearray(2), "it is text or raw bytes"),
        (b"ab", "it is text or raw bytes"),
        ({1.0, 2.0}, "it is no array"),
        (iter([1.0, 2.0]), "it is no array"),
        (np.array([1.0, 2.0], object), "it is no array of numbers"),
    ],
)
def test_what_numpy_would_misread_is_refused(thing, words):
    with pytest.raises(sa.InvalidArgumentError, match=f"tensor 'v': cannot read .*: {words}"):
        tensor_data(tensor(num_rows=2), thing)
    with pytest.raises(sa.InvalidArgumentError, match="tensor 'v': cannot read rows of "):
        tensor_data(tensor(num_rows=2), ([0, 1], thing))
    with pytest.raises(sa.InvalidArgumentError, match="tensor 'v': cannot read keys of "):
        tensor_data(tensor(num_rows=2), (thing, [1.0, 2.0]))


def test_lists_of_arrays_are_arrays():
    rows = [FakeTorch(np.array([1.0, 2.0])), np.array([3.0, 4.0]), [np.float32(5.0), 6]]
    assert tensor_data(tensor(num_rows=3, row_width=2), rows).values.tolist() == [[1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize("thing", [Frame(), {"a": 1.0}, b"ab"])
def test_like_refuses_what_numpy_would_misread(thing):
    with pytest.raises(sa.InvalidArgumentError, match="tensor 'v' is no array but"):
        sa.RoundSpec.like({"v": thing})


@pytest.mark.parametrize(
    ("indices", "values", "shape", "words"),
    [
        ([[1, 2]], [1.0], (10,), r"it has 1 values, but indices of shape \(2,\) for axis 0"),
        ([[1], [0], [0]], [1.0], (10, 1), r"it has indices for 3 axes, but shape \(10, 1\)"),
        ([[1]], [[1.0, 2.0]], (10, 1), r"its values of shape \(1, 2\) do not go with shape \(10, 1\)"),
        ([[1.0]], [1.0], (10,), "its indices must be integers, got float64"),
    ],
)
def test_entries_that_do_not_go_together_are_refused(indices, values, shape, words):
    with pytest.raises(sa.InvalidArgumentError, match=f"tensor 'v': cannot read .*: {words}"):
        tensor_data(tensor(), FakeTorch(indices=indices, values=values, shape=shape))


DAMAGE = pathlib.Path(__file__).parents[1] / "support" / "foreign_damage.py"


def test_damaged_scipy_is_read_right_or_refused():
    command = [sys.executable, str(DAMAGE), "scipy", "1", "1500"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-300:]}\n{done.stderr[-1000:]}"


def csr(pointers, indices, values):
    matrix = scipy.sparse.csr_matrix((3, 2), dtype=np.float32)
    matrix.indptr, matrix.indices, matrix.data = np.array(pointers), np.array(indices), np.array(values)
    return matrix


@pytest.mark.parametrize(
    ("pointers", "indices", "words"),
    [
        ([0, 9, 9, 9], [0], r"must end at 1 entries; got 9"),
        ([0, 1 << 62, 1, 1], [0], r"must not descend"),
        ([1, 1, 1, 1], [0], r"must begin with 0; got 1"),
        ([0, 1, 1], [0], r"has 3 entries, but 3 lines need 4"),
        ([0, 1, 1, 1], [2], r"indices must be in \[0, 2\); got 2 at position 0"),
        ([0, 1, 1, 1], [-1], r"indices must be in \[0, 2\); got -1 at position 0"),
        ([0.0, 1.0, 1.0, 1.0], [0], r"must be integers, got float64"),
    ],
)
def test_inconsistent_pointers_are_refused(pointers, indices, words):
    given = [csr(pointers, indices, [5.0]), FakeTorch(csr=(pointers, indices, [5.0]), shape=(3, 2))]
    for matrix in given:
        with pytest.raises(sa.InvalidArgumentError, match=f"tensor 'v': cannot read .*{words}"):
            tensor_data(sa.TensorSpec("v", "float32", num_rows=3, row_width=2), matrix)


def test_scipy_room_behind_the_last_entry_is_not_read():
    data = tensor_data(
        sa.TensorSpec("v", "float32", num_rows=3, row_width=2), csr([0, 1, 1, 2], [1, 0, 7], [5.0, 6.0, 7.0])
    )
    assert (data.keys.tolist(), data.values.tolist()) == ([0, 2], [[0.0, 5.0], [6.0, 0.0]])
