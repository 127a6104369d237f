"""Updates made of the tensors of other libraries, against their dense forms. Tests of missing libraries are skipped."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import sparseagg as sa
from sparseagg._internal.updates.arrays import TensorData, tensor_data

SEED = 26
SHAPE = (12, 6)


def matrix(density: float = 0.3) -> np.ndarray:
    rng = np.random.default_rng(SEED)
    return (rng.integers(1, 9, SHAPE) * (rng.random(SHAPE) < density)).astype(np.float32)


def by_row(**options: Any) -> sa.TensorSpec:
    return sa.TensorSpec("v", "float32", shape=SHAPE, **options)


def by_element() -> sa.TensorSpec:
    return by_row(row_width=1)


def dense(data: TensorData) -> np.ndarray:
    """What the tuples denote, as an array of the tensor's shape."""
    total = np.zeros((data.spec.num_rows, data.spec.row_width), np.float64)
    np.add.at(total, np.arange(data.num_keys) if data.keys is None else data.keys.astype(np.int64), data.values)
    return total.reshape(data.spec.shape or total.shape)


def check(tensor: Any, expected: np.ndarray, elements: int | None = None) -> None:
    """Checks an update by row and by element; ``elements`` is how many elements are stored."""
    by_rows, by_elements = tensor_data(by_row(), tensor), tensor_data(by_element(), tensor)
    assert np.array_equal(dense(by_rows), expected), f"seed {SEED}"
    assert np.array_equal(dense(by_elements), expected), f"seed {SEED}"
    if elements is not None:
        assert by_elements.num_keys == elements
        assert by_rows.num_keys < elements


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr", "bsc", "hybrid", "uncoalesced", "bfloat16", "strided"])
@pytest.mark.filterwarnings("ignore:Sparse")
def test_torch(layout: str) -> None:
    torch = pytest.importorskip("torch")
    array = matrix()
    tensor, stored = torch.from_numpy(array), np.count_nonzero(array)
    if layout == "strided":
        assert tensor_data(by_row(), tensor).keys is None
        return check(tensor, array)
    if layout == "uncoalesced":
        one = tensor.to_sparse()
        indices, values = torch.cat([one.indices()] * 2, 1), torch.cat([one.values()] * 2)
        return check(torch.sparse_coo_tensor(indices, values, SHAPE), 2 * array, 2 * stored)
    if layout == "hybrid":
        rows = np.flatnonzero(array.any(axis=1))
        assert tensor_data(by_row(), tensor.to_sparse(1)).keys.tolist() == rows.tolist()
        return check(tensor.to_sparse(1), array, len(rows) * SHAPE[1])
    if layout in ("bsr", "bsc"):
        blocks = array.reshape(6, 2, 2, 3).any(axis=(1, 3)).sum()  # a block's zeros are stored, too
        return check(getattr(tensor, f"to_sparse_{layout}")((2, 3)), array, blocks * 6)
    if layout == "bfloat16":
        return check(tensor.bfloat16().to_sparse(), array, stored)
    made = tensor.to_sparse() if layout == "coo" else getattr(tensor, f"to_sparse_{layout}")()
    return check(made, array, stored)


def test_torch_module_sends_its_gradients_where_like_made_the_spec() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(SEED)
    module = torch.nn.Sequential(torch.nn.EmbeddingBag(20, 4, sparse=True), torch.nn.Linear(4, 1))
    spec = sa.RoundSpec.like(module, op="mean")
    assert [(tensor.name, tensor.layout) for tensor in spec.tensors] == [
        ("0.weight", "sparse"),
        ("1.weight", "dense"),
        ("1.bias", "dense"),
    ]
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    aggregator = sa.Aggregator(spec)
    gradients = []
    for client in range(3):
        module.zero_grad()
        module(torch.randint(0, 10, (5, 3))).square().mean().backward()
        gradients.append({name: p.grad.to_dense().double() for name, p in module.named_parameters()})
        aggregator.add(str(client), module)
    result = aggregator.finish()
    assert (result["1.weight"].dense().shape, result["0.weight"].layout) == ((1, 4), "sparse")
    versions = [parameter._version for parameter in module.parameters()]
    result.add_to(module, -0.1)
    for name, parameter in module.named_parameters():
        mean = sum(gradient[name] for gradient in gradients) / 3
        assert torch.allclose(parameter.double(), before[name].double() - 0.1 * mean, rtol=1e-6, atol=1e-7), name
    assert torch.equal(module[0].weight[10:], before["0.weight"][10:])
    assert all(now._version > version for now, version in zip(module.parameters(), versions))


@pytest.mark.parametrize("n_batch", [0, 1, 2])
@pytest.mark.parametrize("n_dense", [0, 1])
def test_jax_bcoo(n_batch: int, n_dense: int) -> None:
    jax = pytest.importorskip("jax")
    sparse = pytest.importorskip("jax.experimental.sparse")
    if n_batch + n_dense > 2:
        pytest.skip("an array of two axes")
    array = matrix()
    made = sparse.BCOO.fromdense(jax.numpy.asarray(array), n_batch=n_batch, n_dense=n_dense)
    check(made, array)
    if n_batch == 0:
        padded = sparse.BCOO.fromdense(jax.numpy.asarray(array), nse=70, n_dense=n_dense)
        check(padded, array, np.count_nonzero(array) if n_dense == 0 else array.any(axis=1).sum() * SHAPE[1])


def test_jax_bcoo_whose_batches_share_their_indices() -> None:
    jax = pytest.importorskip("jax")
    sparse = pytest.importorskip("jax.experimental.sparse")
    data = jax.numpy.arange(1.0, 25.0).reshape(12, 2)
    shared = sparse.BCOO((data, jax.numpy.array([[[1], [4]]])), shape=SHAPE)
    assert shared.n_batch == 1
    check(shared, np.asarray(shared.todense()), 24)


def frame(pandas: Any, array: np.ndarray) -> Any:
    keys = np.flatnonzero(array.any(axis=1))
    return pandas.DataFrame(array[keys], index=keys)


def test_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    array = matrix()
    indexed = frame(pandas, array)
    with_keys = indexed.rename(columns=str).rename_axis("key").reset_index()
    shuffled = with_keys[[*with_keys.columns[::-1]]].iloc[::-1, ::-1]
    nullable = indexed.convert_dtypes().astype({0: "Float32", 1: "Int64"})
    everywhere = pandas.DataFrame(array, index=pandas.RangeIndex(len(array), name="row"))
    for made in (indexed, with_keys, shuffled, nullable, everywhere):
        assert np.array_equal(dense(tensor_data(by_row(), made)), array), f"seed {SEED}"
    assert tensor_data(by_row(), indexed).num_keys == len(indexed)
    series = pandas.Series(array.reshape(-1))
    series = series[series != 0]
    for made in (series, series.to_frame(), pandas.DataFrame({"key": series.index, "v": series.array})):
        data = tensor_data(by_element(), made)
        assert np.array_equal(dense(data), array)
        assert data.num_keys == len(series)
    keys = tensor_data(sa.TensorSpec("v", "float32", num_rows=9), pandas.DataFrame({"key": [3, 1]}))
    assert (keys.keys.tolist(), keys.values) == ([3, 1], None)


def test_pandas_that_makes_no_sense_says_where() -> None:
    pandas = pytest.importorskip("pandas")
    spec = sa.TensorSpec("v", "float32", num_rows=9, row_width=2)
    for made, text in [
        (pandas.DataFrame({"key": [1], "a": [1.0]}), r"tensor 'v': values of shape \(1, 1\) do not go with 1 keys"),
        (pandas.DataFrame({"key": [1.5], "a": [1.0], "b": [1.0]}), "tensor 'v': keys must be integers, not float64"),
        (pandas.DataFrame({"key": [-1], "a": [1.0], "b": [1.0]}), "key -1 at position 0"),
        (
            pandas.DataFrame({"key": [1, 2], "a": pandas.array([1, None], "Int64"), "b": [1, 2]}),
            "column 'a' has a missing value at position 1, key 2",
        ),
        (pandas.DataFrame({"key": [1], "a": ["x"], "b": [1.0]}), "column 'a' is of .*, not of numbers"),
        (pandas.DataFrame([[1, 2, 3.0]], columns=["key", "key", "a"]), "2 of its columns are named 'key'"),
        (
            pandas.DataFrame({"key": pandas.array([1, None], "Int64"), "a": [1, 1], "b": [1, 2]}),
            "column 'key' has a missing value at position 1",
        ),
    ]:
        with pytest.raises(sa.InvalidArgumentError, match=text):
            tensor_data(spec, made)


def test_a_default_index_of_pandas_is_no_keys() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"item": [7, 9, 7], "grad": [1.0, 2.0, 3.0]})
    spec = sa.TensorSpec("v", "float32", shape=(10000, 2))
    for made in (frame, frame[1:], frame["grad"], frame[::-1]):
        with pytest.raises(sa.InvalidArgumentError, match=r"its index only counts rows.* give keys as .*to_numpy\(\)"):
            tensor_data(spec, made)
    single = sa.TensorSpec("v", "float32", num_rows=10)
    for made in (frame.set_index("item"), frame.rename(columns={"item": "key"}), (frame["item"], frame["grad"])):
        data = tensor_data(single, made)
        assert (data.keys.tolist(), data.values.tolist()) == ([7, 9, 7], [[1.0], [2.0], [3.0]])


def table_libraries() -> list[Any]:
    pandas, arrow, polars = (pytest.importorskip(name) for name in ("pandas", "pyarrow", "polars"))
    return [pandas.DataFrame, arrow.table, polars.DataFrame]


def test_value_columns_go_by_name() -> None:
    spec = sa.TensorSpec("v", "float32", num_rows=5, row_width=2)
    tables = table_libraries()
    for table, other in zip(tables, tables[1:] + tables[:1]):
        clients = [
            table({"key": [1], "x": [1.0], "y": [100.0]}),
            table({"y": [100.0], "key": [1], "x": [1.0]}),
            ([1], other({"y": [100.0], "x": [1.0]})),
            table({"key": [], "z": []}),  # without rows
            ([1], [[1.0, 100.0]]),
        ]
        round_spec = sa.RoundSpec([spec], op="sum")
        assert sa.aggregate(clients, round_spec)["v"].values.tolist() == [[4.0, 400.0]]
        renamed = table({"key": [1], "x": [1.0], "z": [1.0]})
        message = r"\['x', 'z'\], but those of the first table for this tensor are \['x', 'y'\]"
        with pytest.raises(sa.InvalidArgumentError, match=message):
            sa.aggregate([clients[0], renamed], round_spec)
        assert sa.aggregate([renamed], round_spec)["v"].values.tolist() == [[1.0, 1.0]], "each round has its own names"
        one, two = sa.Aggregator(round_spec), sa.Aggregator(round_spec)
        one.add("a", clients[0])
        two.add("b", clients[1])
        with pytest.raises(sa.InvalidArgumentError, match="the aggregators differ in the columns of the tables"):
            one.merge(two)
        with sa.Client(":memory:") as client:
            rnd = client.create_round(round_spec)
            for name, update in enumerate(clients):
                rnd.submit(name, update)
                rnd.refresh()
            rnd.submit_batch(["p", "q"], {"v": ([0, 1, 1], *clients[2])})
            with pytest.raises(sa.InvalidArgumentError, match=message):
                rnd.submit("r", renamed)
            assert rnd.finish()["v"].values.tolist() == [[5.0, 500.0]]


def test_tables_without_rows_touch_nothing() -> None:
    pandas, arrow, polars = (pytest.importorskip(name) for name in ("pandas", "pyarrow", "polars"))
    pytest.importorskip("pyarrow.csv")
    text = b"key,x,y\n"
    spec = sa.TensorSpec("v", "float32", num_rows=5, row_width=2)
    read = [pandas.read_csv(io.BytesIO(text)), arrow.csv.read_csv(io.BytesIO(text)), polars.read_csv(text)]
    for table in (*read, arrow.table({"key": [], "x": [], "y": []}), pandas.DataFrame(), arrow.table({})):
        data = tensor_data(spec, table)
        assert (data.num_keys, data.values.shape) == (0, (0, 2))
    for table in read:
        rows = table.drop("key", axis=1) if isinstance(table, pandas.DataFrame) else table.drop(["key"])
        data = tensor_data(spec, (table["key"], rows))
        assert (data.num_keys, data.values.shape) == (0, (0, 2))


def test_columns_of_different_dtypes_are_rounded_once() -> None:
    beside = (1 << 60) + (1 << 36) + 1  # float64 rounds it down to half-way between two float32
    once = float((1 << 60) + (1 << 37))
    for table in table_libraries():
        columns = {"a": np.array([beside]), "b": np.array([0.5], np.float32)}
        for made in (table({"key": [1], **columns}), ([1], table(columns))):
            data = tensor_data(sa.TensorSpec("v", "float32", num_rows=5, row_width=2), made)
            assert data.values.tolist() == [[once, 0.5]]
        exact = sa.TensorSpec("v", "int64", num_rows=5, row_width=2)
        mixed = {"key": [1, 2], "a": np.array([-3, 4]), "b": np.array([2**53 + 1, 7], np.uint64)}
        assert tensor_data(exact, table(mixed)).values.tolist() == [[-3, 2**53 + 1], [4, 7]]
        mixed["b"] = np.array([1, 2**63], np.uint64)
        with pytest.raises(sa.InvalidArgumentError, match="key 2, position 1, column 1: value 9223372036854775808"):
            tensor_data(exact, table(mixed))


def test_arrow() -> None:
    arrow = pytest.importorskip("pyarrow")
    array = matrix()
    keys = np.flatnonzero(array.any(axis=1))
    wide = arrow.table({"key": keys, **{f"c{at}": array[keys, at] for at in range(SHAPE[1])}})
    rows = arrow.FixedSizeListArray.from_arrays(arrow.array(array[keys].reshape(-1)), SHAPE[1])
    fixed = arrow.table({"row": rows, "key": keys})
    variable = arrow.table({"key": keys, "row": arrow.array(array[keys].tolist(), arrow.list_(arrow.float32()))})
    chunked = arrow.concat_tables([fixed[2:5], fixed[:2], fixed[5:], fixed[:0]])
    for made in (wide, fixed, variable, chunked, variable[:0], fixed.to_batches()[0], chunked[:0]):
        expected = array if len(made) else np.zeros(SHAPE)
        assert np.array_equal(dense(tensor_data(by_row(), made)), expected), f"seed {SEED}"
    keys_alone = tensor_data(sa.TensorSpec("v", "float32", num_rows=20), fixed.select(["key"]))
    assert (keys_alone.keys.tolist(), keys_alone.values) == (keys.tolist(), None)


def test_arrow_that_makes_no_sense_says_where() -> None:
    arrow = pytest.importorskip("pyarrow")
    spec = sa.TensorSpec("v", "float32", num_rows=9, row_width=2)
    ragged = arrow.array([[1.0, 2.0], [3.0]])
    for made, text in [
        (arrow.table({"k": [1]}), "tensor 'v': cannot read pyarrow.*: one of its columns must be 'key'; it has 'k'"),
        (arrow.table({"key": [1, None], "a": [1.0, 2.0], "b": [1.0, 2.0]}), "column 'key' has a null at position 1"),
        (arrow.table({"key": [1, 2], "a": [1.0, 2.0], "b": [None, 2.0]}), "column 'b' has a null at position 0, key 1"),
        (arrow.table({"key": [1, 2], "a": ragged}), "the lists of column 'a' differ in length"),
        (
            arrow.table({"key": [1, 2], "a": arrow.array([[1.0, 2.0], None])}),
            "column 'a' has a null at position 1, key 2",
        ),
        (arrow.table({"key": [1, 2], "a": arrow.array([[1.0, None], [1.0, 2.0]])}), "a list of column 'a' has a null"),
        (arrow.table({"key": [5, 6, 7], "a": arrow.chunked_array([[1.0], [2.0, None]])}), "at position 2, key 7"),
        (arrow.table({"key": [1], "a": [[1.0]], "b": [2.0]}), "column 'a' holds lists"),
        (arrow.table({"key": ["x"], "a": [1.0], "b": [2.0]}), "column 'key' is of string, not of numbers"),
        (arrow.table({"key": [1.5], "a": [1.0], "b": [2.0]}), "keys must be integers"),
    ]:
        with pytest.raises(sa.InvalidArgumentError, match=text):
            tensor_data(spec, made)


KEYS, VALUES = [8, 1, 3, 2, 5], [1.0, 2.0, 3.0, 4.0, 5.0]


def test_arrow_lists_with_wild_offsets_are_refused() -> None:
    arrow = pytest.importorskip("pyarrow")
    values = arrow.array([1.0, 2.0, 3.0, 4.0], arrow.float32())
    offsets = arrow.py_buffer(np.array([0, 1 << 30, 4], np.int32))
    lists = arrow.Array.from_buffers(arrow.list_(arrow.float32()), 2, [None, offsets], children=[values])
    with pytest.raises(sa.InvalidArgumentError, match="tensor 'v': cannot read pyarrow"):
        tensor_data(sa.TensorSpec("v", "float32", num_rows=9, row_width=2), arrow.table({"key": [1, 2], "a": lists}))


def test_polars_frames_are_tables_of_keys_and_values() -> None:
    polars = pytest.importorskip("polars")
    pytest.importorskip("pyarrow")
    frame = polars.DataFrame({"v": VALUES, "key": KEYS})
    lists = polars.DataFrame({"key": KEYS, "row": [[value, 0.0] for value in VALUES]})
    # Of ten values, as many as a dense array of this tensor has.
    data = tensor_data(sa.TensorSpec("v", "float32", num_rows=10), frame)
    assert (data.keys.tolist(), data.values.reshape(-1).tolist()) == (KEYS, VALUES)
    assert tensor_data(sa.TensorSpec("v", "float32", num_rows=10, row_width=2), lists).values.tolist() == [
        [v, 0.0] for v in VALUES
    ]
    for pair in ((frame["key"], frame["v"]), (frame["key"], frame.select("v")), (KEYS, frame["v"])):
        data = tensor_data(sa.TensorSpec("v", "float32", num_rows=10), pair)
        assert (data.keys.tolist(), data.values.reshape(-1).tolist()) == (KEYS, VALUES)
    assert tensor_data(sa.TensorSpec("v", "float32", num_rows=5), frame["v"]).keys is None


def test_polars_that_makes_no_sense_says_why() -> None:
    polars = pytest.importorskip("polars")
    pytest.importorskip("pyarrow")
    frame = polars.DataFrame({"key": KEYS, "v": VALUES})
    spec = sa.TensorSpec("v", "float32", num_rows=10)
    for given, text in [
        (frame.lazy(), "a table without __arrow_c_stream__"),
        (frame.select("v"), "one of its columns must be 'key'; it has 'v'"),
        (polars.DataFrame({"key": [1, 2], "v": [1.0, None]}), "column 'v' has a null at position 1, key 2"),
        (polars.DataFrame({"key": [1], "v": ["x"]}), "column 'v' is of .*, not of numbers"),
        ([frame], "cannot read builtins.list: it is a table"),
        ((frame, frame["v"]), "cannot read keys of polars.*: it is a table"),
        ((frame["key"], frame), "its column 'key' is not a value"),
        ((KEYS[:2], polars.Series([1.0, None])), "it has a missing value at position 1"),
        (polars.Series([None, *VALUES, *VALUES[:4]]), "it has a missing value at position 0"),
    ]:
        with pytest.raises(sa.InvalidArgumentError, match=f"tensor 'v': .*{text}"):
            tensor_data(spec, given)
    with pytest.raises(sa.InvalidArgumentError, match="tensor 'v' is no array"):
        sa.RoundSpec.like({"v": frame})


def test_pandas_and_arrow_columns_in_a_pair() -> None:
    pandas, arrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"key": KEYS, "a": VALUES, "b": VALUES})
    spec = sa.TensorSpec("v", "float32", num_rows=10, row_width=2)
    table = arrow.Table.from_pandas(frame)
    for pair in (
        (frame["key"], frame[["a", "b"]]),
        (table["key"], table.select(["a", "b"])),
        (KEYS, frame[["b", "a"]]),
    ):
        data = tensor_data(spec, pair)
        assert (data.keys.tolist(), data.values.tolist()) == (KEYS, [[value, value] for value in VALUES])
    missing = pandas.DataFrame({"a": pandas.array([1.0, None], "Float64"), "b": [1.0, 2.0]})
    for pair, text in [
        ((frame["key"], frame[["key", "a"]]), "its column 'key' is not a value"),
        ((frame[["key"]], frame["a"]), "cannot read keys of pandas.*: it is a table"),
        (([1, 2], missing), "column 'a' has a missing value at position 1"),
        (([1, 2], missing["a"]), "missing value at position 1"),
        ((arrow.array([1, None]), [[1.0, 2.0], [1.0, 2.0]]), "cannot read keys of pyarrow.*: it has a missing value"),
        (([1, 2], arrow.chunked_array([[1.0], [None, 1.0, 1.0]])), "it has a missing value at position 1"),
    ]:
        with pytest.raises(sa.InvalidArgumentError, match=f"tensor 'v': .*{text}"):
            tensor_data(spec, pair)


def test_xarray_with_labels_is_refused() -> None:
    xarray = pytest.importorskip("xarray")
    spec = sa.TensorSpec("v", "float32", num_rows=5)
    assert tensor_data(spec, xarray.DataArray(VALUES)).values.reshape(-1).tolist() == VALUES
    labelled = xarray.DataArray(VALUES, coords={"key": KEYS}, dims="key")
    for given, text in [(labelled, "its axes have labels"), (xarray.Dataset({"v": labelled}), "it is a mapping")]:
        with pytest.raises(sa.InvalidArgumentError, match=f"tensor 'v': cannot read xarray.*: {text}"):
            tensor_data(spec, given)
