"""A round's spec in JSON: the names it takes, and errors that name the file and the field."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
import sparseagg as sa
from sparseagg._internal.commands.rounds import read_spec
from sparseagg.v1 import aggregation_pb2 as pb

TENSOR = {"name": "x", "dtype": "float32"}
DTYPES = "float32, float16, bfloat16, float64, int32, int64, uint32, uint64"


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "spec.json"


@pytest.mark.parametrize("dtype", ["float64", "DTYPE_FLOAT64", pb.DTYPE_FLOAT64])
@pytest.mark.parametrize("result", ["resultLayout", "result_layout"])
@pytest.mark.parametrize("layout", ["auto", "RESULT_LAYOUT_AUTO"])
def test_spec_takes_names_of_python_and_of_the_proto(path: pathlib.Path, dtype: Any, result: str, layout: str) -> None:
    tensor = {"name": "x", "dtype": dtype, "num_rows": "7", "aggregation": {result: layout}}
    path.write_text(json.dumps({"tensors": [tensor], "aggregation": None, "result_ttl": "1.5s"}))
    assert read_spec(path) == sa.RoundSpec(
        [sa.TensorSpec("x", "float64", num_rows=7, result_layout="auto")], result_ttl=1.5
    )


@pytest.mark.parametrize("shape", [[4, 3], {"sizes": ["4", "3"]}])
def test_spec_of_a_shape_has_sizes(path: pathlib.Path, shape: Any) -> None:
    path.write_text(json.dumps({"tensors": [{**TENSOR, "shape": shape}], "aggregation": {"on_empty": "keep"}}))
    assert read_spec(path) == sa.RoundSpec([sa.TensorSpec("x", "float32", shape=(4, 3))], on_empty="keep")
    path.write_text(json.dumps({"tensors": [{**TENSOR, "shape": shape, "layout": "dense"}, {**TENSOR, "shape": []}]}))
    dense, scalar = read_spec(path).tensors
    assert (dense.num_rows, dense.row_width, scalar.shape, scalar.num_rows) == (12, 1, (), 1)
    path.write_text(json.dumps({"tensors": [{**TENSOR, "shape": shape, "num_rows": 5}]}))
    with pytest.raises(sa.InvalidArgumentError, match=r"tensor 'x': shape \(4, 3\) has 12 values"):
        read_spec(path)


@pytest.mark.parametrize("name", ["x", "sum", "dense", "float32"])
def test_spec_leaves_other_strings_alone(path: pathlib.Path, name: str) -> None:
    path.write_text(json.dumps({"tensors": [{**TENSOR, "name": name}]}))
    assert read_spec(path).tensors[0].name == name


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (
            {"tensors": [TENSOR, {**TENSOR, "dtype": "float31"}]},
            f"tensors[1].dtype must be one of {DTYPES}, got 'float31'",
        ),
        ({"tensors": [{**TENSOR, "dtype": 99}]}, "tensors[0].dtype must be one of"),
        ({"tensors": [{**TENSOR, "dtype": ["float32"]}]}, "dtype"),
        ({"tensors": [{**TENSOR, "dtype": {}}]}, "tensors[0].dtype must be one of"),
        ({"tensors": {**TENSOR, "dtype": "float31"}}, "tensors.dtype must be one of"),
        (
            {"tensors": [{**TENSOR, "aggregation": {"op": "average"}}]},
            "tensors[0].aggregation.op must be one of sum, mean, coordinate_mean, union, min, max, median, "
            "trimmed_mean, quantile, got 'average'",
        ),
        ({"tensors": [{"name": "x"}]}, f"tensor 'x' has no dtype; known: {DTYPES}"),
        ({"tensors": [{"nme": "x"}]}, 'no field named "nme"'),
        ({"tensors": [TENSOR], "width": 2}, 'no field named "width"'),
        ({"tensors": [{**TENSOR, "num_rows": -1}]}, "-1"),
        ({"tensors": 5}, "tensors must be an object, got 5"),
        ({"tensors": [TENSOR, []]}, "tensors[1] must be an object, got []"),
        ({"tensors": [TENSOR, "x"]}, "tensors[1] must be an object, got 'x'"),
        ({"tensors": [TENSOR], "deadline": 60}, "deadline"),
        ({"tensors": [TENSOR], "minSubmissions": 1, "min_submissions": 2}, "min_submissions is given twice"),
        ({"tensors": [{**TENSOR, "aggregation": {"onEmpty": None, "on_empty": "keep"}}]},
         "tensors[0].aggregation.on_empty is given twice"),
        ({"tensors": [TENSOR], "aggregation": []}, "aggregation is no list"),
        ({"tensors": [TENSOR], "aggregation": {"op": True}}, "aggregation.op must be one of sum, mean"),
        ({"tensors": [TENSOR, None]}, "null"),
        ({"tensors": [{**TENSOR, "num_rows": 2.0**53}]}, "tensors[0].num_rows is too large an integer"),
        ({"tensors": [{**TENSOR, "shape": [2.0**53]}]}, "tensors[0].shape.sizes[0] is too large an integer"),
        ([], "RoundSpec must be an object, got []"),
        (None, "RoundSpec must be an object, got None"),
    ],
)  # fmt: skip
def test_spec_that_is_wrong_names_file_and_field(path: pathlib.Path, spec: Any, text: str) -> None:
    path.write_text(json.dumps(spec))
    with pytest.raises(sa.InvalidArgumentError) as refused:
        read_spec(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert text in str(refused.value)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"{", "line 1"),
        (b"", "line 1"),
        (b"\xff\xfe", "decode"),
        (b"[" * 100_000, "recursion"),
        (b'{"tensors": [{"name": "x", "dtype": "float32", "name": "y"}]}', "name is given twice"),
    ],
)
def test_file_that_is_no_json_is_named(path: pathlib.Path, data: bytes, text: str) -> None:
    path.write_bytes(data)
    with pytest.raises(sa.InvalidArgumentError) as refused:
        read_spec(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert text in str(refused.value)
