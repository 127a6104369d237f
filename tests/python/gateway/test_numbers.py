"""?numbers=1 of the HTTP gateway: keys and values as numbers of JSON, both ways, and what JSON does not hold."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
from http_calls import request

INTEGER = 2**53
FLOATS = [0.1, -0.0, 1.5, -3e38, 1e-40, 65504.0, 2.0**-24, 0.0, 1 / 3, 1.0]
DTYPES = {
    "float32": (np.float32, FLOATS),
    "float64": (np.float64, [*FLOATS[:-2], 1.7e308, 5e-324]),
    "float16": (np.float16, [0.1, -0.0, 65504.0, 2.0**-24, 1 / 3, -1.0]),
    "bfloat16": (ml_dtypes.bfloat16, [*FLOATS[:4], 1 / 3, 1.0]),
    "int32": (np.int32, [2**31 - 1, -(2**31), 0, 7]),
    "int64": (np.int64, [INTEGER, -INTEGER, 0, 7]),
    "uint32": (np.uint32, [2**32 - 1, 0]),
    "uint64": (np.uint64, [INTEGER, 0]),
}


def opened(address: str, dtype: str, nonfinite: str = "reject", **options) -> str:
    tensor = {"name": "w", "dtype": dtype, "rowWidth": 2, "modular": dtype.startswith("uint")}
    spec = {"tensors": [{**tensor, **options}], "aggregation": {"returnCounts": True, "onNonfinite": nonfinite}}
    answer = request(address, "POST", "/v1/rounds", {"spec": spec})
    assert answer.status == 200, answer.body
    return f"/v1/{answer.json['name']}"


def put(address: str, path: str, slice_: str, numbers: str = "numbers=1"):
    """Sends a slice in the JSON of a chunk."""
    body = f'{{"clientId": "a", "submissionId": "s", "last": true, "slices": [{{"tensor": "w", {slice_}}}]}}'.encode()
    return request(address, "POST", f"{path}/chunks?{numbers}", body, content_type="application/json")


def finish(address: str, path: str) -> None:
    assert request(address, "POST", f"{path}/submissions", {"clientId": "a", "submissionId": "s"}).status == 200
    request(address, "POST", f"{path}:close")
    assert request(address, "GET", f"{path}:wait").json["state"] == "ROUND_STATE_DONE"


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_go_through_a_round_exactly(server, dtype):
    numpy, numbers = DTYPES[dtype]
    values = np.array(numbers).astype(numpy)
    keys = [*range(3, 3 + len(values) // 2 - 1), INTEGER]
    address, path = server.http_address, opened(server.http_address, dtype)
    slice_ = f'"keys": {json.dumps(keys)}, "values": {json.dumps(numbers)}, "valueEncoding": "{dtype}"'
    sent = put(address, path, slice_)
    assert sent.status == 200, sent.body
    finish(address, path)
    page = request(address, "GET", f"{path}/result?numbers=1").json
    assert page["slice"]["keys"] == keys
    found = np.array(page["slice"]["values"]).astype(numpy)
    assert np.array_equal(found, values)
    assert (page["counts"], page["weights"], page["moments"]) == ([1] * len(keys), [], [])
    assert page["summary"]["numKeys"] == str(len(keys))


@pytest.mark.parametrize(
    ("dtype", "slice_", "text"),
    [
        ("float32", '"keys": [1], "values": [1, 1e39], "valueEncoding": "float32"', "slices[0].values[1] is 1e39"),
        ("float32", '"keys": [1], "values": [1, NaN], "valueEncoding": "float32"', "malformed"),
        ("float16", '"valueEncoding": "float16", "keys": [1], "values": [65520, 1]', "slices[0].values[0] is 65520"),
        ("int32", '"keys": [1], "values": [1, 1.0], "valueEncoding": "int32"', "slices[0].values[1] is 1.0"),
        ("int32", '"keys": [1], "values": [1, 2147483648], "valueEncoding": "int32"', "values[1] is 2147483648"),
        ("int64", f'"keys": [1], "values": [-{INTEGER + 1}, 1], "valueEncoding": "int64"', f"is -{INTEGER + 1}"),
        ("float32", f'"keys": [{INTEGER + 1}], "values": [1, 1], "valueEncoding": "float32"', f"s[0] is {INTEGER + 1}"),
        ("float32", '"keys": [-1], "values": [1, 1], "valueEncoding": "float32"', "slices[0].keys[0] is -1"),
        ("float32", '"keys": [1], "values": [1, 1]', "slices[0].values as numbers need a valueEncoding"),
        ("float32", '"keys": [1], "values": [1, 1], "valueEncoding": "INT8_SCALED"', "a valueEncoding that is a dtype"),
        ("float32", '"keys": [1], "keyEncoding": "U32", "values": [1, 1], "valueEncoding": "float32"', "keyEncoding"),
        ("float32", '"keys": [1, "2"], "values": [1, 1], "valueEncoding": "float32"', "malformed"),
        ("float32", '"keys": [1, [2]], "values": [1, 1], "valueEncoding": "float32"', "malformed"),
        ("float32", '"keys": [1 2], "values": [1, 1], "valueEncoding": "float32"', "a comma or the end of the list"),
        ("float32", '"keys": [1], "keys": [1], "valueEncoding": "float32"', "keys is given twice"),
    ],
)  # fmt: skip
def test_numbers_that_json_or_the_encoding_does_not_hold_are_refused(server, dtype, slice_, text):
    answer = put(server.http_address, opened(server.http_address, dtype), slice_)
    assert (answer.status, answer.json["code"]) == (400, "INVALID_ARGUMENT")
    assert text in answer.json["detail"]


def test_lists_need_the_parameter_and_base64_is_still_taken_with_it(server):
    address, path = server.http_address, opened(server.http_address, "float32")
    numbers = '"keys": [1], "values": [1, 1], "valueEncoding": "float32"'
    assert "slices[0].keys must be a string" in put(address, path, numbers, "").json["detail"]
    assert "'numbers' is 1 or 0" in put(address, path, numbers, "numbers=2").json["detail"]
    assert "unknown parameter" in request(address, "GET", f"{path}?numbers=1").json["detail"]
    bytes_ = '"keyEncoding": "U32", "keys": "AQAAAA==", "values": "AACAPwAAAEA=", "valueEncoding": "float32"'
    assert put(address, path, bytes_).status == 200
    finish(address, path)
    assert request(address, "GET", f"{path}/result").json["slice"]["values"] == "AACAPwAAAEA="


@pytest.mark.parametrize("bytes_", ["AADAfwAAgD8=", "AACAPwAAgP8="], ids=["NaN", "-Infinity"])
def test_a_page_with_values_that_json_does_not_have_says_which(server, bytes_):
    address, path = server.http_address, opened(server.http_address, "float32", "propagate")
    put(address, path, f'"keyEncoding": "U32", "keys": "AQAAAA==", "values": "{bytes_}", "valueEncoding": "float32"')
    finish(address, path)
    answer = request(address, "GET", f"{path}/result?numbers=1")
    assert (answer.status, answer.json["code"]) == (400, "INVALID_ARGUMENT")
    assert "which JSON does not hold; ask without 'numbers'" in answer.json["detail"]


def test_a_dense_result_has_no_keys_and_packed_pages_are_refused(server):
    address, path = server.http_address, opened(server.http_address, "float32", numRows="3", layout="dense")
    assert (
        put(address, path, '"keyEncoding": "IMPLICIT", "values": [1,2,3,4,5,6], "valueEncoding": "float32"').status
        == 200
    )
    finish(address, path)
    page = request(address, "GET", f"{path}/result?numbers=1").json
    assert (page["slice"]["keys"], page["slice"]["values"]) == ([], [1, 2, 3, 4, 5, 6])
    packed = request(address, "GET", f"{path}/result?numbers=1&format.value_encoding=INT8_SCALED")
    assert (packed.status, packed.json["code"]) == (400, "INVALID_ARGUMENT")
