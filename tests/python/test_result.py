"""Results: pages put together, and the forms they can take."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import sys
import types

import ml_dtypes
import numpy as np
import pytest
import sparseagg as sa
from sparseagg._internal.base.foreign import float_from_bits
from sparseagg._internal.client.result_reader import ResultReader
from sparseagg._internal.results.info import RoundInfo
from sparseagg._internal.results.result import TensorResult
from sparseagg._internal.wire.columns import Page
from sparseagg.v1 import aggregation_pb2 as pb

INFO = RoundInfo._from_proto(pb.Round(name="rounds/r"))


def result(keys, values, *, num_rows=5, layout="sparse", dtype="float32", row_width=1) -> TensorResult:
    keys, values = (None if part is None else np.array(part, t) for part, t in ((keys, np.uint32), (values, None)))
    return TensorResult("v", layout, dtype, num_rows, row_width, keys, values, None, None)


def test_round_info_of_a_newer_server_is_read():
    proto = pb.Round(name="rounds/r", state=9)
    proto.spec.tensors.add(name="v", dtype=pb.DTYPE_FLOAT32, num_rows=5).aggregation.op = 77
    proto.spec.aggregation.numerics = 8
    proto.results.add(name="v", dtype=99)
    info = RoundInfo._from_proto(proto)
    assert (info.state, info.ended) == ("round_state_9", False)
    assert (info.spec.tensors[0].op, info.spec.numerics) == ("op_77", "numerics_8")
    assert info.results[0].dtype == "dtype_99"
    proto.spec.tensors[0].dtype = 99
    with pytest.raises(sa.InvalidArgumentError, match="unknown dtype 'dtype_99'"):
        RoundInfo._from_proto(proto)


def test_dense_sparse_result_fills_the_rest():
    assert result([1, 3], [2.0, 4.0]).dense().tolist() == [0.0, 2.0, 0.0, 4.0, 0.0]
    assert result([1], [2.0]).dense(fill=-1.0).tolist() == [-1.0, 2.0, -1.0, -1.0, -1.0]
    rows = result([1, 3], [[1.0, 2.0], [3.0, 4.0]], row_width=2).dense()
    assert rows.tolist() == [[0.0, 0.0], [1.0, 2.0], [0.0, 0.0], [3.0, 4.0], [0.0, 0.0]]


def test_tensor_is_a_sequence_of_rows_and_an_array():
    tensor = result([1, 3, 4], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], row_width=2)
    assert [(int(key), row.tolist()) for key, row in tensor] == [(1, [1, 2]), (3, [3, 4]), (4, [5, 6])]
    assert [(int(key), row) for key, row in result([1, 3], None)] == [(1, None), (3, None)]
    for rows in (slice(2), slice(1, None), slice(None, None, -2), slice(9, 12)):
        part = tensor[rows]
        assert (part.keys.tolist(), part.values.tolist()) == (tensor.keys[rows].tolist(), tensor.values[rows].tolist())
    assert np.shares_memory(tensor[:1].values, tensor.values)
    assert np.array_equal(np.asarray(tensor), tensor.dense())
    assert np.asarray(tensor, "float64").dtype == np.float64
    with pytest.raises(TypeError, match=r"with a slice, as \[:10\], got 3; the row of a key k is"):
        _ = tensor[3]
    dense = result(None, [0.5, 1.0, 2.0, 3.0, 4.0], layout="dense")
    assert (dense[3:].keys.tolist(), dense[3:].values.tolist(), "keys" in vars(dense)) == ([3, 4], [3, 4], False)
    assert np.shares_memory(np.asarray(dense), dense.values)
    assert not np.shares_memory(dense.__array__(copy=True), dense.values)
    with pytest.raises(ValueError, match="copy=False"):
        tensor.__array__(copy=False)


def test_dense_without_bound_or_values_is_refused():
    with pytest.raises(sa.errors.FailedPreconditionError, match="num_rows 0"):
        result([1], [2.0], num_rows=0).dense()
    with pytest.raises(sa.errors.FailedPreconditionError, match="union"):
        result([1], None).dense()


@pytest.mark.parametrize("num_rows", [1 << 45, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("form", ["dense", "to_scipy"])
def test_dense_of_more_rows_than_fit_names_the_tensor(form, num_rows):
    big = result([1], [[2.0, 3.0]], num_rows=num_rows, row_width=2)
    with pytest.raises(sa.errors.FailedPreconditionError, match=f"tensor 'v' of num_rows {num_rows}"):
        getattr(big, form)()


@pytest.mark.parametrize("library", ["torch", "tf"])
def test_sparse_of_a_num_rows_beyond_int64_names_the_tensor(monkeypatch, library):
    fake = types.SimpleNamespace(from_numpy=lambda array: array, convert_to_tensor=np.asarray, int64="int64")
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setitem(sys.modules, "tensorflow", fake)
    with pytest.raises(
        sa.errors.FailedPreconditionError, match=f"tensor 'v' of num_rows {1 << 63}, which does not fit int64"
    ):
        getattr(result([1], [2.0], num_rows=1 << 63), f"to_{library}")()


def test_to_scipy_keeps_every_key():
    matrix = result([1, 3], [[0.0, 2.0], [0.0, 0.0]], row_width=2).to_scipy()
    assert matrix.shape == (5, 2)
    assert matrix.toarray().tolist() == [[0, 0], [0, 2], [0, 0], [0, 0], [0, 0]]
    assert np.diff(matrix.indptr).tolist() == [0, 2, 0, 2, 0]
    vector = result([0, 4], [1.0, 2.0]).to_scipy()
    assert vector.toarray().reshape(-1).tolist() == [1, 0, 0, 0, 2]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_to_scipy_of_16_bits_can_be_reckoned_with(dtype):
    values = np.array([1.5, 2.0], dtype if dtype == "float16" else ml_dtypes.bfloat16)
    matrix = result([0, 4], values, dtype=dtype).to_scipy()
    assert matrix.dtype == np.float32
    assert (matrix + matrix).toarray().reshape(-1).tolist() == [3, 0, 0, 0, 4]


def test_to_torch_passes_keys_rows_and_shape(monkeypatch):
    def sparse_coo_tensor(keys, rows, shape):
        return types.SimpleNamespace(coalesce=lambda: (keys.tolist(), rows.tolist(), shape))

    torch = types.SimpleNamespace(from_numpy=lambda array: array, sparse_coo_tensor=sparse_coo_tensor)
    monkeypatch.setitem(sys.modules, "torch", torch)
    merged = result([1, 3], [[1.0, 2.0], [3.0, 4.0]], row_width=2)
    assert merged.to_torch() == ([[1, 3]], [[1.0, 2.0], [3.0, 4.0]], (5, 2))
    dense = result(range(2), [1.0, 2.0], num_rows=2, layout="dense")
    assert np.shares_memory(dense.to_torch(), dense.values)
    part = result([1, 2], [1.0, 2.0], layout="dense")
    assert part.to_torch().tolist() == [0, 1, 2, 0, 0]


def test_to_tf_passes_keys_rows_and_shape(monkeypatch):
    tf = types.SimpleNamespace(
        convert_to_tensor=lambda array, dtype=None: np.asarray(array).tolist(),
        int64="int64",
        IndexedSlices=lambda *arguments: arguments,
    )
    monkeypatch.setitem(sys.modules, "tensorflow", tf)
    assert result([1, 3], [1.0, 2.0]).to_tf() == ([1.0, 2.0], [1, 3], [5])
    assert result([1], [1.0], num_rows=0).to_tf() == ([1.0], [1])
    assert result(range(2), [1.0, 2.0], num_rows=2, layout="dense").to_tf() == [1.0, 2.0]
    assert result([1, 2], [1.0, 2.0], layout="dense").to_tf() == [0.0, 1.0, 2.0, 0.0, 0.0]


def page(name="v", *, keys=b"", values=b"", num_keys=0, first=None, counts=b"", **summary) -> pb.ResultPage:
    made = pb.ResultPage(slice=pb.TensorSlice(tensor=name, keys=keys, values=values, num_keys=num_keys), counts=counts)
    made.slice.key_encoding = pb.KEY_ENCODING_U32 if first is None else pb.KEY_ENCODING_IMPLICIT
    made.slice.first_key = first or 0
    if summary:
        made.summary.CopyFrom(pb.TensorSummary(name=name, row_width=1, has_values=True, **summary))
    return made


def read(pages: list[pb.ResultPage]) -> sa.Result:
    reader = ResultReader()
    for one in pages:
        reader.add(Page.of(one))
    return reader.result(INFO)


def test_result_reader_pages_are_put_together():
    keys, values = np.array([1, 4, 7], "<u4"), np.array([1, 2, 3], "<f4")
    first = page(keys=keys[:2].tobytes(), values=values[:2].tobytes(), num_keys=2, num_rows=9, dtype=1)
    tensor = read([first, page(keys=keys[2:].tobytes(), values=values[2:].tobytes())])["v"]
    assert tensor.keys.tolist() == [1, 4, 7]
    assert tensor.values.tolist() == [1.0, 2.0, 3.0]
    assert tensor.values.flags.writeable
    assert (tensor.counts, tensor.weights) == (None, None)


def test_result_reader_dense_range_starts_at_its_first_key():
    dense = {"num_rows": 9, "dtype": 1, "layout": pb.TENSOR_LAYOUT_DENSE}
    pages = [page(first=3, num_keys=2, values=bytes(8), **dense), page(first=5, num_keys=1, values=bytes(4))]
    tensor = read(pages)["v"]
    assert tensor.keys.tolist() == [3, 4, 5]
    assert tensor.keys.dtype == np.uint32
    assert tensor.dense(fill=1.0).tolist() == [1, 1, 1, 0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    "pages",
    [
        [page(keys=bytes(4), values=bytes(4))],
        [page(keys=bytes(4), values=bytes(8), num_rows=9, dtype=1)],
        [page(keys=bytes(4), values=bytes(4), counts=bytes(8), num_rows=9, dtype=1, has_counts=True)],
        [page(keys=bytes(4), values=bytes(4), num_keys=2, num_rows=9, dtype=1)],
    ],
)
def test_result_reader_pages_that_disagree_are_the_servers_fault(pages):
    with pytest.raises(sa.errors.InternalError):
        read(pages)


def test_float_from_bits_with_and_without_the_package_is_exact(monkeypatch):
    bits = np.array([0x3FC0, 0x8001, 0x7F80], np.uint16)
    expected = [1.5, -(2.0**-133), np.inf]
    assert float_from_bits(bits).astype(np.float64).tolist() == expected
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    widened = float_from_bits(bits)
    assert widened.dtype == np.float32
    assert widened.tolist() == expected


def test_results_are_equal_to_themselves_alone() -> None:
    one, other = (
        sa.aggregate([([1, 2], [1.0, 2.0])], sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=3)])) for _ in "ab"
    )
    assert one["v"] == one["v"]
    assert one["v"] != other["v"]
    assert len({one["v"], other["v"]}) == 2


def test_results_show_themselves_in_outline_and_make_no_keys_for_it():
    dense = result(None, [[1.0, 2.0]], num_rows=1 << 40, layout="dense", row_width=2)
    assert repr(dense) == "TensorResult('v', dense, float32, 1099511627776 rows of 2, num_rows 1099511627776)"
    assert repr(result([1, 3], [2.0, 4.0])) == "TensorResult('v', sparse, float32, 2 rows of 1, num_rows 5)"
    assert repr(result([1], None)) == "TensorResult('v', sparse, float32, 1 keys, num_rows 5)"


def test_tensor_result_of_all_keys_is_copied_and_replaced_as_any_other():
    whole = result(None, [0.5, 1.0, 2.0, 3.0, 4.0], layout="dense")
    assert [field.name for field in dataclasses.fields(whole)][5:7] == ["keys", "values"]
    assert (len(whole), "keys" in vars(whole)) == (5, False)
    with pytest.raises(dataclasses.FrozenInstanceError):
        whole.keys = None
    for copied in (
        copy.copy(whole),
        pickle.loads(pickle.dumps(whole)),
        copy.deepcopy(whole),
        dataclasses.replace(whole, name="w"),
    ):
        assert copied.keys.tolist() == [0, 1, 2, 3, 4]
        assert copied.keys.dtype == np.uint32
        assert copied.keys is copied.keys
    part = dataclasses.replace(whole, keys=np.array([1, 4], np.uint32), values=np.ones(2))
    assert (len(part), part.keys.tolist()) == (2, [1, 4])
    assert dataclasses.asdict(part)["keys"].tolist() == [1, 4]
    with pytest.raises(AttributeError, match="'TensorResult' object has no attribute 'key'"):
        _ = whole.key
