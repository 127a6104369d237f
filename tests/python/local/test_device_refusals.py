"""Arrays in a GPU's memory that are refused, in which words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sparseagg as sa
from every_client import one
from fake_device import DlpackArray, InterfaceArray, Library, TorchTensor
from test_device_arrays import KEYS, ROWS, outcome
from test_engine import floats

WRONG_UPDATES: dict[str, tuple[Any, Any]] = {
    "key beyond": (np.array([5, 2, 10, 5]), ROWS),
    "negative key": (np.array([5, 2, -1, 5]), ROWS),
    "negative key of 32 bits": (np.array([5, 2, -1, 5], np.int32), ROWS),
    "not finite": (KEYS, floats(1, 2, np.nan, 8)),
    "infinite": (KEYS, floats(1, 2, 3, -np.inf)),
    "too few rows": (KEYS, ROWS[:3]),
    "rows too wide": (KEYS, np.ones((4, 2), np.float32)),
    "rows transposed": (KEYS, ROWS.reshape(1, 4)),
    "keys on two axes": (KEYS.reshape(2, 2), ROWS),
    "keys on no axis": (np.array(5), ROWS[:1]),
    "no rows": (KEYS, None),
    "dense of another size": (None, ROWS),
    "dense on other axes": (None, np.ones((2, 5), np.float32)),
    "dense, not finite": (None, floats(*range(9), np.inf)),
}


@pytest.mark.parametrize("wrong", WRONG_UPDATES)
@pytest.mark.parametrize("shape", [None, (10,)])
def test_wrong_keys_and_values_are_refused_in_the_words_of_the_cpu(wrong: str, shape: Any, library: Library) -> None:
    keys, rows = WRONG_UPDATES[wrong]
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", **({"num_rows": 10} if shape is None else {"shape": shape}))])
    lent = None if rows is None else library.array(rows)
    on_host: Any = {"v": rows if keys is None else (keys, rows)}
    on_device: Any = {"v": lent if keys is None else (library.array(keys), lent)}
    good = {"v": (KEYS, ROWS)}
    expected = outcome([good, on_host, good], spec, device="cpu")
    assert outcome([good, on_device, good], spec, device="cuda") == expected
    if wrong == "dense on other axes" and shape is None:
        return  # they make the 10 rows
    assert expected[0] is sa.InvalidArgumentError
    aggregator = sa.Aggregator(spec, device="cuda")
    with pytest.raises(sa.InvalidArgumentError) as error:
        aggregator.add(f"{1:020}", on_device)
    assert str(error.value) == expected[1]
    assert aggregator.num_submissions == 0
    del error


def refusal(update: Any, spec: sa.RoundSpec | None = None) -> str:
    aggregator = sa.Aggregator(spec or one(), device="cuda")
    with pytest.raises(sa.InvalidArgumentError) as error:
        aggregator.add("me", update)
    assert aggregator.num_submissions == 0
    text = str(error.value)
    assert text.startswith("client 'me': tensor 'v': ")
    return text.removeprefix("client 'me': tensor 'v': ")


def test_arrays_of_another_device_are_refused(library: Library) -> None:
    other = Library(device=1)
    for update in ((library.array(KEYS), other.array(ROWS)), (other.array(KEYS), other.array(ROWS)), other.array(ROWS)):
        assert refusal(update).endswith("are on CUDA device 1, but the engine works on CUDA device 0")
    assert other.lent == 0
    # One that says another device than its capsule.
    liar = other.array(ROWS)
    liar.__class__ = type("Liar", (DlpackArray,), {"__dlpack_device__": lambda self: (2, 0)})
    assert "DLPack places it on device 1 of kind 2, but the engine reads CUDA device 0" in refusal(liar)
    assert other.all_are_back


def test_keys_and_rows_in_different_places_are_refused(library: Library) -> None:
    text = "keys are in host memory and rows on CUDA device 0; give both in one place"
    assert refusal((KEYS, library.array(ROWS))) == text
    assert refusal(([5, 2, 9, 5], InterfaceArray(ROWS, library))) == text
    text = "rows are in host memory and keys on CUDA device 0; give both in one place"
    assert refusal((library.array(KEYS), ROWS)) == text


def test_other_types_are_refused_with_what_converts_them(library: Library) -> None:
    halves = ROWS.astype(np.float16)
    text = "values on a GPU must be of the tensor's dtype float32, got "
    assert refusal((library.array(KEYS), library.array(halves))) == text + "float16"
    torch = TorchTensor(KEYS, library), TorchTensor(halves, library)
    assert refusal(torch) == text + "float16; .to(torch.float32) converts them"
    assert refusal((library.array(KEYS), library.array(ROWS.astype(">f4").view("<i4")))) == text + "int32"
    assert refusal((library.array(KEYS), InterfaceArray(ROWS.astype(">f4"), library))) == text + ">f4"
    assert refusal(library.array(np.zeros(10, np.complex64))) == text + "complex64"
    assert refusal(library.array(np.zeros(10, bool))) == text + "bool"
    text = "keys on a GPU must be int32, int64, uint32 or uint64, got "
    assert refusal((TorchTensor(KEYS.astype(np.int16), library), torch[1])) == (
        text + "int16; .to(torch.int64) converts them"
    )
    assert refusal((library.array(KEYS.astype(np.float32)), library.array(ROWS))) == text + "float32"


def test_arrays_with_gaps_are_refused_with_what_closes_them(library: Library) -> None:
    text = " on a GPU must be contiguous, row after row"
    assert refusal((library.array(np.repeat(KEYS, 2)[::2]), library.array(ROWS))) == "keys" + text
    wide = one(row_width=2)
    columns_first = np.asfortranarray(np.ones((4, 2), np.float32))
    assert refusal((library.array(KEYS), library.array(columns_first)), wide) == "values" + text
    assert refusal((library.array(KEYS), InterfaceArray(columns_first, library)), wide) == "values" + text
    assert refusal((TorchTensor(KEYS, library), TorchTensor(columns_first, library)), wide) == (
        "values" + text + "; .contiguous() makes them so"
    )
    cupy = library.array(columns_first)
    cupy.__class__ = type("ndarray", (DlpackArray,), {"__module__": "cupy"})
    assert refusal((library.array(KEYS), cupy), wide) == "values" + text + "; cupy.ascontiguousarray makes them so"


def test_descriptions_that_are_not_known_are_refused(library: Library) -> None:
    text = "cannot read fake_device.InterfaceArray: its __cuda_array_interface__ names the stream 0, which is ambiguous"
    assert refusal(InterfaceArray(floats(*range(10)), library, stream=0)).startswith(text)
    library.version = 2
    text = "cannot read fake_device.DlpackArray: it is described in version 2 of DLPack, but version 1 was asked for"
    assert refusal(library.array(floats(*range(10)))).startswith(text)

    class Masked(InterfaceArray):
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            return {**super().__cuda_array_interface__, "mask": self}

    assert "some of its entries are masked" in refusal(Masked(floats(*range(10)), library))

    class Failing(DlpackArray):
        def __dlpack__(self, **_: Any) -> Any:
            raise BufferError("not today")

    assert "cannot read keys of " in refusal((Failing(KEYS, library), library.array(ROWS)))
    assert "Failing: not today" in refusal(Failing(floats(*range(10)), library))
