"""What the engine in this process takes, what it refuses, and that it copies nothing it need not."""

from __future__ import annotations

import math
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import sparseagg as sa
from every_client import digest, one
from sparseagg._internal.base import extension
from test_engine import floats

KEYS = [np.uint32, np.uint64, np.int32, np.int64, np.int16, np.uint8]


@pytest.mark.parametrize("num_rows", [100, 1 << 40, 0])
@pytest.mark.parametrize("dtype", KEYS)
def test_engine_takes_keys_of_any_integer_type(dtype, num_rows):
    result = sa.aggregate([{"v": (np.array([99, 7], dtype), floats(1, 2))}], one(num_rows=num_rows))["v"]
    assert result.keys.dtype == (np.uint32 if num_rows == 100 else np.uint64)
    assert result.keys.tolist() == [7, 99]
    assert result.values.tolist() == [2, 1]


LAYOUTS = {
    "strided": lambda array: np.repeat(array, 2, axis=0)[::2],
    "reversed": lambda array: array[::-1][::-1].copy()[::-1][::-1],
    "fortran": np.asfortranarray,
    "big-endian": lambda array: array.astype(array.dtype.newbyteorder(">")),
    "read-only": lambda array: np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape),
    "of bytes": lambda array: of_bytes(array),
    "unaligned": lambda array: unaligned(array),
    "subclass": lambda array: array.view(Subclass),
    "memoryview": memoryview,
    "dlpack": lambda array: Exporter(array),
    "wider": lambda array: array.astype(np.float64 if array.dtype.kind == "f" else np.int64),
}


class Subclass(np.ndarray):
    """Not exactly numpy's."""


class Exporter:
    """Something that only speaks DLPack, as another library's tensor might."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


def of_bytes(array: np.ndarray) -> np.ndarray:
    """As the keys of a message that has come."""
    return np.frombuffer(memoryview(array.tobytes()), array.dtype).reshape(array.shape)


def unaligned(array: np.ndarray) -> np.ndarray:
    memory = np.empty(array.nbytes + 1, np.uint8)
    out = memory[1:].view(array.dtype).reshape(array.shape)
    out[...] = array
    assert not out.flags.aligned
    return out


@pytest.mark.parametrize("layout", LAYOUTS)
def test_engine_takes_arrays_as_they_lie(layout):
    keys, rows = np.array([5, 2, 5], np.uint32), np.arange(6, dtype=np.float32).reshape(3, 2)
    spec = one(row_width=2)
    expected = sa.aggregate([{"v": (keys, rows)}], spec)
    lay = LAYOUTS[layout]
    assert digest(sa.aggregate([{"v": (lay(keys), lay(rows))}], spec)) == digest(expected)
    assert expected["v"].keys.tolist() == [2, 5]
    assert expected["v"].values.tolist() == [[2, 3], [4, 6]]
    dense = np.arange(20, dtype=np.float32).reshape(10, 2)
    assert digest(sa.aggregate([{"v": lay(dense)}], spec)) == digest(sa.aggregate([{"v": dense}], spec))


@pytest.mark.parametrize("rows", [[1.5, 2.5], [[1.5], [2.5]]])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16, np.float64])
def test_engine_bfloat16_from_any_float(dtype, rows):
    result = sa.aggregate([(np.array([1, 2]), np.array(rows, dtype))] * 2, one("bfloat16"))["v"]
    assert result.values.dtype == ml_dtypes.bfloat16
    assert result.values.astype(np.float32).tolist() == [3, 5]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int32])
@pytest.mark.parametrize("place", [0, 2500, 4999])
def test_engine_names_bad_keys_as_they_lie(place, dtype, layout):
    for key, words in (
        (-3, "key -3 at position {} is not in [0, 10)"),
        ((1 << 32) + 2, "key 4294967298 at position {} is not in [0, 10)"),
        (10, "position {}: key 10 is not below num_rows 10"),
    ):
        if not np.iinfo(dtype).min <= key <= np.iinfo(dtype).max:
            continue
        keys = np.ones(5000, dtype)
        keys[place] = key
        with pytest.raises(sa.InvalidArgumentError) as refused:
            sa.aggregate({"a": (LAYOUTS[layout](keys), np.ones(5000, np.float32))}, one())
        assert str(refused.value).startswith("client 'a': tensor 'v'")
        assert str(refused.value).endswith(words.format(place))


BAD = {
    "key below 0": ((np.array([1, -3]), floats(1, 2)), "key -3 at position 1"),
    "narrow key below 0": ((np.array([1, -3], np.int32), floats(1, 2)), "key -3 at position 1"),
    "small key below 0": ((np.array([1, -3], np.int8), floats(1, 2)), "key -3 at position 1"),
    "key beyond 32 bits": ((np.array([1, 1 << 32]), floats(1, 2)), "key 4294967296 at position 1"),
    "key not below num_rows": ((np.array([1, 10]), floats(1, 2)), "position 1: key 10"),
    "keys that are no integers": ((floats(1, 2), floats(1, 2)), "float32"),
    "keys in two dimensions": ((np.array([[1, 2]]), floats(1, 2)), r"\(1, 2\)"),
    "too few values": ((np.array([1, 2]), floats(1)), "2 keys"),
    "too many values": ((np.array([1, 2]), floats(1, 2, 3)), "2 keys"),
    "no values": ((np.array([1, 2]), None), "2 keys without values"),
    "NaN": ((np.array([1, 2]), floats(1, math.nan)), "key 2, position 1: value nan"),
    "infinity": ((np.array([1, 2]), floats(-math.inf, 1)), "position 0: value -inf"),
    "complex values": ((np.array([1]), np.array([1j])), "complex128"),
    "a value that does not fit": ((np.array([1, 2]), np.array([1.0, 1e300])), "key 2, position 1: value 1e[+]300"),
    "a dense array of another size": (np.zeros(9, np.float32), "9 values"),
    "three of a tuple": ((1, 2, 3), "3"),
    "another tensor": ({"w": (np.array([1]), floats(1))}, "unknown tensor 'w'"),
    "no mapping": (object(), "object"),
}


@pytest.mark.parametrize("flaw", BAD)
def test_engine_refuses_bad_updates_by_place_and_value(flaw):
    update, text = BAD[flaw]
    good = (np.array([1]), floats(1))
    with pytest.raises(sa.InvalidArgumentError, match=text) as refused:
        sa.aggregate({"good": good, "bad": update}, one())
    assert str(refused.value).startswith("client 'bad': ")
    aggregator = sa.Aggregator(one())
    aggregator.add("good", good)
    with pytest.raises(sa.InvalidArgumentError, match=text):
        aggregator.add("bad", update)
    assert aggregator.num_submissions == 1
    aggregator.add("bad", good)  # as if nothing had been sent
    assert aggregator.finish()["v"].values.tolist() == [2]


@pytest.mark.parametrize("flaw", BAD)
@pytest.mark.parametrize("kind", ["list", "iterator", "mapping"])
def test_add_all_adds_those_before_the_first_that_is_refused(kind, flaw):
    bad, text = BAD[flaw]
    good = (np.array([1]), floats(1))
    updates = [good, good, bad, good, ({"w": good}, 1)]
    aggregator = sa.Aggregator(one())
    given = {"list": updates, "iterator": iter(updates), "mapping": {f"{i:020}": u for i, u in enumerate(updates)}}[
        kind
    ]
    with pytest.raises(sa.InvalidArgumentError, match=text) as refused:
        aggregator.add_all(given)
    assert str(refused.value).startswith("client '00000000000000000002': ")
    assert aggregator.num_submissions == 2
    assert aggregator.finish()["v"].values.tolist() == [2]


def transposed(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(math.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize("shape", [(2, 3), (1, 6), (6, 1), (2, 3, 1)])
def test_engine_refuses_rows_whose_axes_are_in_another_order(shape):
    with pytest.raises(
        sa.InvalidArgumentError, match=rf"'v': values of shape {re.escape(str(shape))} do not go with 3 keys"
    ):
        sa.aggregate([(np.array([1, 2, 3]), transposed(shape))], one(row_width=2))
    with pytest.raises(
        sa.InvalidArgumentError, match=rf"'v': the first axes .* {re.escape(str(shape))} do not make num_rows"
    ):
        sa.aggregate([transposed(shape)], one(num_rows=3, row_width=2))


@pytest.mark.parametrize("weight", [None, -1.0, math.nan, math.inf, True, "1", 1 << 2000])
def test_engine_refuses_bad_weights(weight):
    update = (np.array([1]), floats(1))
    with pytest.raises(sa.InvalidArgumentError, match="weight"):
        sa.Aggregator(one(weighting="by_weight")).add("a", update, weight)
    with pytest.raises(sa.InvalidArgumentError):  # which takes what is no weight for a part of the update
        sa.aggregate([(update, weight)], one(weighting="by_weight"))


def test_engine_refuses_bad_arguments():
    update = (np.array([1]), floats(1))
    for name in ("", "x" * 257):
        with pytest.raises(sa.InvalidArgumentError, match="client_id"):
            sa.Aggregator(one()).add(name, update)
    aggregator = sa.Aggregator(one())
    aggregator.add("a", update)
    with pytest.raises(sa.errors.AlreadyExistsError, match="'a'"):
        aggregator.add("a", update)
    with pytest.raises(sa.errors.OutOfRangeError, match="tensor 'v', key 1"):
        sa.aggregate([(np.array([1]), np.array([2**62]))] * 2, one("int64"))


def test_engine_union_checks_values_and_then_ignores_them():
    huge = np.array([2**62, 2**62, 2**62], np.int64)
    result = sa.aggregate([(np.array([4, 4, 1]), huge)] * 2, one("int64", op="union"))["v"]
    assert (result.keys.tolist(), result.counts.tolist(), result.values) == ([1, 4], [2, 2], None)
    with pytest.raises(sa.InvalidArgumentError, match="position 0: value nan"):
        sa.aggregate([(np.array([4]), floats(math.nan))], one(op="union"))


def test_engine_converting_code_may_change_the_list():
    updates: list[Any] = []

    class Vandal:
        """Changes the list while it is read."""

        def __array__(self, *_: Any, **__: Any) -> np.ndarray:
            updates.clear()
            return floats(1)

    updates += [(np.array([1]), Vandal()), (np.array([2]), floats(2))]
    assert sa.aggregate(updates, one())["v"].keys.tolist() == [1]


def test_results_are_updates_of_further_merges(client):
    tensors = [
        sa.TensorSpec("e", "bfloat16", num_rows=9, row_width=2),
        sa.TensorSpec("b", "float64", num_rows=3, layout="dense"),
    ]
    spec = sa.RoundSpec(tensors, return_counts=True)
    parts = [{"e": ([5, 2], [[1, 2], [3, 4]]), "b": np.arange(3.0)}, {"e": ([2], [[0.5, 8]]), "b": np.ones(3)}]
    expected = sa.aggregate(parts, spec)
    halves = [sa.aggregate([part], spec) for part in parts]
    opened = client.create_round(spec)
    for name, half in zip("xy", halves):
        opened.submit(name, half)
    for merged in (sa.aggregate(halves, spec), client.aggregate(halves, spec), opened.finish()):
        for name, tensor in expected.items():
            assert merged[name].keys.tolist() == tensor.keys.tolist()
            assert merged[name].values.tolist() == tensor.values.tolist()
    part = opened.result(keys=(1, 3))
    alone = sa.RoundSpec([sa.TensorSpec("b", "float64", num_rows=3)])
    assert sa.aggregate([part["b"]], alone)["b"].keys.tolist() == [1, 2]
    with pytest.raises(sa.InvalidArgumentError, match="num_rows 4"):
        sa.aggregate([expected["b"]], sa.RoundSpec([sa.TensorSpec("b", "float64", num_rows=4)]))


def test_bytes_that_are_no_spec_are_refused_as_a_server_does():
    engine = extension.load()
    for malformed in (b"\xff", b"\x0a\x05v", b"\x0a\x03\x0a\x01\xff"):
        for call in (engine.check_spec, engine.MemoryRounds(0).create_private):
            with pytest.raises(engine.EngineError, match="not a valid RoundSpec: malformed, or with a string"):
                call(malformed)
    with pytest.raises(engine.EngineError, match=r"RoundSpec of 100000000 bytes; up to 67108864 are allowed"):
        engine.check_spec(bytes(100_000_000))
    message = one()._to_proto()
    message.tensors[0].dtype = 99
    with pytest.raises(engine.EngineError, match="tensor 'v': dtype 99 is unknown here"):
        engine.check_spec(message.SerializeToString())
