"""The shapes of callers' arrays, in specs and in results."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import sparseagg as sa
from sparseagg.v1 import aggregation_pb2 as pb


@pytest.mark.parametrize(
    ("options", "num_rows", "row_width"),
    [
        ({"shape": (1000, 64)}, 1000, 64),
        ({"shape": (10, 1)}, 10, 1),
        ({"shape": (7,)}, 7, 1),
        ({"shape": ()}, 1, 1),
        ({"shape": (), "layout": "dense"}, 1, 1),
        ({"shape": (3, 4, 5)}, 3, 20),
        ({"shape": (3, 4, 5), "layout": "dense"}, 60, 1),
        ({"shape": (3, 4, 5), "row_width": 1}, 60, 1),
        ({"shape": (3, 4, 5), "row_width": 5}, 12, 5),
        ({"shape": (3, 4, 5), "num_rows": 12}, 12, 5),
        ({"shape": (3, 4), "num_rows": 3, "row_width": 4, "layout": "dense"}, 3, 4),
        ({"shape": np.array([3, 2])}, 3, 2),
        ({"num_rows": 5}, 5, 1),
        ({"num_rows": 0, "row_width": 3}, 0, 3),
    ],
)
def test_spec_of_a_shape_has_sizes_and_survives_the_wire(
    options: dict[str, Any], num_rows: int, row_width: int
) -> None:
    spec = sa.TensorSpec("v", "float32", **options)
    assert (spec.num_rows, spec.row_width) == (num_rows, row_width)
    assert spec.shape == (tuple(options["shape"]) if "shape" in options else None)
    proto = spec._to_proto()
    assert proto.HasField("shape") == ("shape" in options)
    assert sa.TensorSpec._from_proto(pb.TensorSpec.FromString(proto.SerializeToString())) == spec


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "neither num_rows nor shape is given"),
        ({"shape": (0, 5)}, r"shape (0, 5) has no values"),
        ({"shape": 5}, "shape must be a tuple of integers, got 5"),
        ({"shape": (2.0,)}, "shape must be a tuple of integers, got (2.0,)"),
        ({"shape": (True, 2)}, "shape must be a tuple of integers from 1 on, got (True, 2)"),
        ({"shape": (-1, 2)}, "shape must be a tuple of integers from 1 on, got (-1, 2)"),
        ({"shape": (1,) * 33}, "shape must have 32 axes at most, got 33"),
        ({"shape": (2**40, 2**40)}, "has more values than there are keys"),
        ({"shape": (2, 2**33)}, "row_width must be a number of values from 1 to 2^32 - 1, got 8589934592"),
        ({"shape": (5, 3), "row_width": 2}, "shape (5, 3) has 15 values, which row_width 2 does not make"),
        ({"shape": (5, 3), "num_rows": 4}, "shape (5, 3) has 15 values, which num_rows 4 does not make"),
        ({"shape": (5, 3), "num_rows": 0}, "shape (5, 3) has 15 values, which num_rows 0 does not make"),
        ({"shape": (5, 3), "num_rows": 5, "row_width": 2}, "15 values, which num_rows 5 × row_width 2 does not make"),
    ],
)
def test_shape_that_no_tensor_can_have_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(sa.InvalidArgumentError, match="^tensor 'v': .*" + re.escape(text)):
        sa.TensorSpec("v", "float32", **options)


def test_message_with_a_shape_alone_has_its_sizes() -> None:
    proto = pb.TensorSpec(name="v", dtype=pb.DTYPE_FLOAT32, shape=pb.Shape(sizes=[10, 4]))
    assert sa.TensorSpec._from_proto(proto) == sa.TensorSpec("v", "float32", shape=(10, 4))
    proto.row_width = 1
    assert sa.TensorSpec._from_proto(proto).num_rows == 40


def result(keys: Any, values: Any, num_rows: int, row_width: int, shape: Any = None, **options: Any) -> sa.TensorResult:
    keys = None if keys is None else np.array(keys, np.uint32)
    fields = {
        "name": "v",
        "layout": "sparse",
        "dtype": "float32",
        "counts": None,
        "weights": None,
    }
    values = np.array(values, np.float32)
    return sa.TensorResult(
        **{"num_rows": num_rows, "row_width": row_width, "keys": keys, "values": values, "shape": shape},
        **{**fields, **options},
    )


def test_result_without_a_shape_has_that_of_its_rows() -> None:
    assert result([1], [2], 5, 1).shape == (5,)
    assert result([1], [[2, 3]], 5, 2).shape == (5, 2)
    assert result([1], [2], 0, 1).shape is None


def test_dense_has_the_shape_and_copies_no_whole_result() -> None:
    whole = result(None, range(6), 6, 1, (2, 3), layout="dense")
    assert whole.dense().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert np.shares_memory(whole.dense(), whole.values)
    assert result([1], [[1, 2, 3, 4]], 2, 4, (2, 2, 2)).dense(fill=9).tolist() == [[[9, 9], [9, 9]], [[1, 2], [3, 4]]]
    assert result([4], [5], 6, 1, (2, 3)).dense().tolist() == [[0, 0, 0], [0, 5, 0]]
    assert result([0], [5], 1, 1, ()).dense().tolist() == 5


def test_indices_are_int64_unless_a_key_does_not_fit() -> None:
    assert result([1, 3], [2, 4], 5, 1).indices.dtype == np.int64
    hashed = result([1], [2], 0, 1)
    object.__setattr__(hashed, "keys", np.array([7, 2**63], np.uint64))
    with pytest.raises(
        sa.errors.FailedPreconditionError,
        match=r"tensor 'v' has key 9223372036854775808, which does not fit int64; .* keys\.view",
    ):
        _ = hashed.indices
    object.__setattr__(hashed, "keys", np.array([7, 2**63 - 1], np.uint64))
    assert hashed.indices.tolist() == [7, 2**63 - 1]


@pytest.mark.parametrize("layout", ["sparse", "dense"])
@pytest.mark.parametrize("shape", [(3, 4), (4, 3), (12,), (12, 1), (1, 12), (3, 2, 2), (6, 2)])
def test_array_of_another_shape_is_refused_unless_it_is_flat_or_has_a_row_for_each_key(
    shape: tuple[int, ...], layout: str
) -> None:
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", shape=(3, 4), layout=layout)])
    array = np.arange(12, dtype=np.float32).reshape(shape)
    num_rows = spec.tensors[0].num_rows
    if shape == (3, 4) or len(shape) == 1 or shape[0] == num_rows:
        for values in (array, array.tolist() if len(shape) > 1 else array):
            assert sa.aggregate([{"v": values}], spec)["v"].dense().tolist() == np.arange(12).reshape(3, 4).tolist()
        return
    with pytest.raises(
        sa.InvalidArgumentError, match=re.escape(f"tensor 'v' has shape (3, 4), and this dense array {shape}")
    ):
        sa.aggregate([{"v": array}], spec)


@pytest.mark.parametrize("address", [":memory:", "server"])
def test_round_gives_back_the_shapes_that_went_in(server: Any, address: str) -> None:
    model = {"w": np.ones((10, 1), np.float32), "b": np.float32(2), "e": np.ones((6, 2, 2), np.float32)}
    spec = sa.RoundSpec.like(model, sparse=["e"], op="mean")
    with sa.Client(server.address if address == "server" else address) as client:
        opened = client.create_round(spec)
        opened.submit("a", {"w": model["w"], "b": 4.0, "e": ([3], model["e"][3:4])})
        opened.submit("b", {"w": 3 * model["w"], "b": np.float32(0), "e": ([3], model["e"][3:4])})
        result = opened.finish()
        assert {name: tensor.dense().shape for name, tensor in result.items()} == {
            "w": (10, 1),
            "b": (),
            "e": (6, 2, 2),
        }
        assert client.aggregate([model], spec)["w"].shape == (10, 1)
        assert opened.result(tensors=["w"])["w"].shape == (10, 1)
    arrays = {name: np.zeros(np.shape(array)) for name, array in model.items()}
    result.add_to(arrays)
    assert (arrays["w"] == 2).all()
    assert arrays["b"] == 2
    assert arrays["e"].sum(axis=(1, 2)).tolist() == [0, 0, 0, 4, 0, 0]


def test_list_of_arrays_is_an_update_where_the_spec_is_like_a_list() -> None:
    arrays = [np.ones((3, 2)), np.ones(())]
    spec = sa.RoundSpec.like(arrays)
    result = sa.aggregate({"a": (arrays, 1.0), "b": arrays}, spec)
    result.add_to(arrays)
    assert [array.max() for array in arrays] == [3.0, 3.0]
    assert sa.aggregate([arrays[:1]], sa.RoundSpec.like(arrays[:1]))["0"].dense().shape == (3, 2)
    with pytest.raises(
        sa.InvalidArgumentError, match="an update must be a mapping from tensor names to tensors, got builtins"
    ):
        sa.aggregate([arrays[:1]], spec)


# ---- rounds without submissions: sparse tensors have no rows; dense ones fail, or keep what there was ----


TENSORS = [sa.TensorSpec("e", "float32", shape=(5, 2)), sa.TensorSpec("w", "float32", shape=(4, 1), layout="dense")]


@pytest.fixture(params=["aggregate", ":memory:", "server"])
def empty_round(request: pytest.FixtureRequest, server: Any) -> Any:
    """Returns the result of a round of a spec without submissions."""

    def run(spec: sa.RoundSpec) -> sa.Result:
        if request.param == "aggregate":
            return sa.aggregate([], spec)
        with sa.Client(server.address if request.param == "server" else request.param) as client:
            return client.create_round(spec).finish()

    return run


def test_dense_tensor_without_submissions_fails_by_name(empty_round: Any) -> None:
    for spec in (sa.RoundSpec(TENSORS, op="mean"), sa.RoundSpec(TENSORS, result_layout="sparse", on_empty="fail")):
        with pytest.raises(sa.errors.FailedPreconditionError, match="tensor 'w': there are no submissions"):
            empty_round(spec)


def test_dense_tensor_without_submissions_may_keep_what_there_was(empty_round: Any) -> None:
    result = empty_round(sa.RoundSpec(TENSORS, op="mean", on_empty="keep", return_counts=True))
    merged = result["w"]
    assert (merged.layout, len(merged), merged.shape, merged.counts.tolist()) == ("sparse", 0, (4, 1), [])
    model = {"e": np.ones((5, 2)), "w": np.ones((4, 1))}
    result.add_to(model, alpha=-0.1)
    assert all((array == 1).all() for array in model.values())


def test_sparse_tensor_without_submissions_has_no_rows(empty_round: Any) -> None:
    assert len(empty_round(sa.RoundSpec(TENSORS[:1]))["e"]) == 0
    assert (
        empty_round(sa.RoundSpec(TENSORS[:1], result_layout="dense", fill=3.0))["e"].dense().tolist()
        == [[3.0, 3.0]] * 5
    )
