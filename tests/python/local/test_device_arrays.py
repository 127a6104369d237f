"""Arrays in a GPU's memory as keys and values of updates in this process: the same results as of arrays on the host."""

from __future__ import annotations

import ctypes
import types
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import sparseagg as sa
from every_client import digest, one
from fake_device import (
    DlpackArray,
    ExchangeTensor,
    InterfaceArray,
    Library,
    TorchCoo,
    TorchTensor,
    exchange_api,
)
from random_rounds import here_and_there, random_spec
from sparseagg._internal.local import cuda_plugin
from test_engine import floats

KEYS = np.array([5, 2, 9, 5])
ROWS = floats(1, 2, 4, 8)


def outcome(updates: Any, spec: sa.RoundSpec, **options: Any) -> Any:
    """What a merge comes to: everything about its result, or its error."""
    try:
        result = sa.aggregate(updates, spec, **options)
    except sa.SparseaggError as error:
        return type(error), str(error)
    return digest(result)


def engine_of(result: sa.Result) -> str:
    return result.info.engine.split()[0]


@pytest.mark.parametrize("seed", range(80))
def test_random_updates_on_a_device_end_as_on_the_cpu(seed: int, on_host: None) -> None:
    print("seed", seed)
    rng = np.random.default_rng([20261127, seed])
    spec = random_spec(rng)
    print(spec)
    library = Library(version=rng.choice([None, 1]))

    def lend(array: np.ndarray) -> Any:
        if array.dtype == ml_dtypes.bfloat16:
            return library.array(array)
        kind = rng.integers(4)
        if kind == 0:
            return InterfaceArray(array, library, rng.choice([None, 1, 2, 12345]))
        return ExchangeTensor(array, library) if kind == 1 else library.array(array)

    def moved(tensor: str, data: Any) -> Any:
        """The same tensor on the device, with keys of any type that holds them."""
        if rng.random() < 0.2:
            return data
        keys, rows = data if isinstance(data, tuple) else (None, data)
        if spec.tensor(tensor).dtype == "bfloat16" and rng.random() < 0.5:
            rows = rows.view(ml_dtypes.bfloat16)
        if keys is None:
            return lend(rows)
        most = int(keys.max()) if len(keys) else 0
        fitting = [t for t in (np.int32, np.int64, np.uint32, np.uint64) if most <= np.iinfo(t).max]
        return lend(keys.astype(rng.choice(fitting))), lend(rows)

    here, there = here_and_there(rng, spec, moved)
    assert outcome(there, spec, device="cuda") == outcome(here, spec, device="cpu")
    del there
    assert library.all_are_back, library.returned


def test_limits_count_bytes_on_a_device_as_on_the_host(library: Library) -> None:
    spec = one(max_bytes_per_submission=31)
    update = library.array(KEYS), library.array(ROWS)
    assert outcome([update], spec, device="cuda") == outcome([(KEYS, ROWS)], spec, device="cpu")
    result = sa.aggregate([update], one(max_bytes_per_submission=32), device="cuda")
    assert result.info.num_bytes == 32
    assert result.info.num_tuples == 4


@pytest.mark.parametrize("num_keys", [0, 1])
def test_update_of_no_keys_and_of_one(num_keys: int, library: Library) -> None:
    keys, rows = KEYS[:num_keys], ROWS[:num_keys].reshape(num_keys, 1)
    update = library.array(keys), library.array(rows)
    assert outcome([update], one(), device="cuda") == outcome([(keys, rows)], one(), device="cpu")
    if num_keys == 0:
        assert len(sa.aggregate([(library.array(floats()), library.array(rows))], one(), device="cuda")["v"]) == 0


def test_union_takes_keys_without_rows(library: Library) -> None:
    spec = one(op="union")
    assert outcome([(library.array(KEYS), None)], spec, device="cuda") == outcome([(KEYS, None)], spec, device="cpu")


@pytest.mark.parametrize("layout", ["offset", "axis of size 1", "no entries", "managed memory"])
def test_contiguous_arrays_of_any_description(layout: str, library: Library) -> None:
    keys, rows = KEYS, ROWS
    if layout == "axis of size 1":
        rows = np.lib.stride_tricks.as_strided(ROWS, (4, 1), (4, 400))
    elif layout == "no entries":
        keys, rows = KEYS[:0], np.lib.stride_tricks.as_strided(ROWS, (0, 1), (12, 400))
    elif layout == "managed memory":
        library.kind = 13
    update = library.array(keys), library.array(rows)
    assert outcome([update], one(), device="cuda") == outcome([(keys, rows)], one(), device="cpu")


def test_torch_sparse_tensors_are_read_where_they_lie(library: Library) -> None:
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)
    cases = [
        # A hybrid tensor, as the gradient of an embedding: an entry is a row.
        (one(row_width=2), [KEYS], rows, (10, 2), True),
        (one(num_rows=0, row_width=2), [KEYS], rows, (10, 2), True),
        (one(), [KEYS], ROWS, (10,), True),
        # Keys on two axes.
        (one(num_rows=50), [KEYS % 5, KEYS], ROWS, (5, 10), True),
        (one(num_rows=50, row_width=2), [KEYS % 5, KEYS], rows, (5, 10, 2), True),
        # Entries that are parts of rows, or several, take the host's way.
        (one(row_width=2), [KEYS, KEYS % 2], ROWS, (10, 2), False),
        (one(num_rows=20), [KEYS], rows, (10, 2), False),
    ]
    for spec, indices, values, shape, is_lent in cases:
        lent = library.lent
        sparse = TorchCoo(indices, values, shape, library)
        on_host = sparse.cpu()
        assert outcome([sparse], spec, device="cuda") == outcome([on_host], spec, device="cpu"), shape
        assert (library.lent > lent) == is_lent
    wrongs = [
        (one(num_rows=50), [KEYS % 5, KEYS + 5], ROWS, (5, 10)),  # a coordinate outside
        (one(num_rows=50), [KEYS % 5, KEYS - 5], ROWS, (5, 10)),
        (one(num_rows=49), [KEYS % 5, KEYS], ROWS, (5, 10)),
        (one(row_width=2), [KEYS], ROWS.reshape(4, 1), (20, 1)),
    ]
    for spec, indices, values, shape in wrongs:
        sparse = TorchCoo(indices, values, shape, library)
        on_host = sparse.cpu()
        expected = outcome([on_host], spec, device="cpu")
        assert expected[0] is sa.InvalidArgumentError
        assert outcome([sparse], spec, device="cuda") == expected


@pytest.mark.parametrize(
    "kind", ["list", "mapping", "iterator", "weighted", "named", "interface", "torch coo", "module"]
)
def test_aggregate_merges_where_the_updates_are(kind: str, library: Library) -> None:
    spec = one(weighting="by_weight" if kind == "weighted" else None)
    pair = library.array(KEYS), library.array(ROWS)
    gradient = TorchCoo([KEYS], ROWS, (10,), library)
    module = types.SimpleNamespace(named_parameters=lambda: [("v", types.SimpleNamespace(grad=gradient))])
    updates: Any = {
        "list": [(KEYS, ROWS), pair],
        "mapping": {"a": (KEYS, ROWS), "b": pair},
        "iterator": iter([pair, (KEYS, ROWS)]),
        "weighted": [((KEYS, ROWS), 1.0), (pair, 1.0)],
        "named": [{"v": (KEYS, ROWS)}, {"v": pair}],
        "interface": [(KEYS, ROWS), (InterfaceArray(KEYS, library), InterfaceArray(ROWS, library))],
        "torch coo": [(KEYS, ROWS), gradient],
        "module": [(KEYS, ROWS), module],
    }[kind]
    result = sa.aggregate(updates, spec)
    assert engine_of(result) == "cuda"
    assert [value for value in result["v"].values.tolist() if value] == [4, 18, 8]
    assert engine_of(sa.aggregate([(KEYS, ROWS)], one())) == "cpu"
    assert engine_of(sa.aggregate([], one())) == "cpu"
    assert engine_of(sa.aggregate([(KEYS, ROWS), ([1, 2], [3.0, 4.0]), [0.0] * 10], one())) == "cpu"


def test_a_call_asks_a_library_with_the_c_functions_of_dlpack_once_for_its_stream(library: Library) -> None:
    updates = [(np.roll(KEYS, i), np.roll(ROWS, i)) for i in range(100)]
    lent = [(ExchangeTensor(keys, library), ExchangeTensor(rows, library)) for keys, rows in updates]
    for ExchangeTensor.stream in (None, 7):
        ExchangeTensor.asked.clear()
        assert outcome(lent, one(), device="cuda") == outcome(updates, one(), device="cpu")
        assert ExchangeTensor.asked == [(2, 0)]
    assert library.streams == []
    assert library.all_are_back, library.returned


def test_c_functions_of_an_unknown_version_are_not_called(library: Library) -> None:
    class Newer(ExchangeTensor):
        __dlpack_c_exchange_api__ = exchange_api(2)[1]

    class Older(ExchangeTensor):
        __dlpack_c_exchange_api__ = exchange_api(2, ctypes.addressof(exchange_api(1)[0]))[1]

    for kind, num_streams in ((Newer, 2), (Older, 0)):
        library.streams.clear()
        update = kind(KEYS, library), kind(ROWS, library)
        assert outcome([update], one(), device="cuda") == outcome([(KEYS, ROWS)], one(), device="cpu")
        assert len(library.streams) == num_streams
    failing = ExchangeTensor(floats(*range(10)), library)
    failing.fails = True
    assert "its DLPack function has failed without a reason" in refusal(failing)


@pytest.mark.parametrize("kind", [TorchTensor, ExchangeTensor])
def test_negations_that_torch_has_left_pending_are_done(kind: Any, library: Library) -> None:
    class Negated(kind):  # type: ignore[misc]
        def resolve_neg(self) -> Any:
            return kind(-self._contents, library)

    update = kind(KEYS, library), Negated(ROWS, library)
    assert outcome([update], one(), device="cuda") == outcome([(KEYS, -ROWS)], one(), device="cpu")


def test_results_on_a_device_are_updates_of_the_next_merge(library: Library) -> None:
    halves = []
    for _ in range(2):
        aggregator = sa.Aggregator(one(), device="cuda")
        aggregator.add("a", (library.array(KEYS), library.array(ROWS)))
        halves.append(aggregator.finish_on_device()["v"])
    result = sa.aggregate([(half.keys, half.values) for half in halves], one())
    assert engine_of(result) == "cuda"
    assert result["v"].keys.tolist() == [2, 5, 9]
    assert result["v"].values.tolist() == [4, 18, 8]


def test_without_the_plugin_torch_is_copied_and_others_are_refused_with_the_cure(
    monkeypatch: pytest.MonkeyPatch, library: Library
) -> None:
    monkeypatch.setattr(cuda_plugin, "find", lambda: None)
    torch = TorchTensor(KEYS, library), TorchTensor(ROWS, library)
    for merge in (sa.aggregate, lambda updates, spec: sa.aggregate(updates, spec, device="cpu")):
        result = merge([torch], one())
        assert engine_of(result) == "cpu"
        assert result["v"].values.tolist() == [2, 9, 4]
        with pytest.raises(sa.InvalidArgumentError, match=r"cannot read keys of .*make cuda-wheel"):
            merge([(library.array(KEYS), library.array(ROWS))], one())


# ---- arrays in a GPU's memory that are refused, in which words


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
@pytest.mark.parametrize(("shape", "kind"), [(None, DlpackArray), ((10,), DlpackArray), (None, ExchangeTensor)])
def test_wrong_keys_and_values_are_refused_in_the_words_of_the_cpu(
    wrong: str, shape: Any, kind: Any, library: Library
) -> None:
    keys, rows = WRONG_UPDATES[wrong]
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", **({"num_rows": 10} if shape is None else {"shape": shape}))])
    lent = None if rows is None else kind(rows, library)
    on_host: Any = {"v": rows if keys is None else (keys, rows)}
    on_device: Any = {"v": lent if keys is None else (kind(keys, library), lent)}
    good = {"v": (KEYS, ROWS)}
    good_on_device = {"v": (kind(KEYS, library), kind(ROWS, library))}
    also_wrong = {"v": (kind(KEYS + 100, library), kind(ROWS, library))}
    expected = outcome([good, good, on_host, good], spec, device="cpu")
    there = [good, good_on_device, on_device, good_on_device]
    assert outcome(there, spec, device="cuda") == expected
    if expected[0] is sa.InvalidArgumentError:  # the first one counts, wherever the others are
        for others in ([also_wrong, good], [{"v": (KEYS + 100, ROWS)}, also_wrong]):
            assert outcome(there[:3] + others, spec, device="cuda") == expected
    if wrong == "dense on other axes" and shape is None:
        return  # they make the 10 rows
    assert expected[0] is sa.InvalidArgumentError
    aggregator = sa.Aggregator(spec, device="cuda")
    with pytest.raises(sa.InvalidArgumentError) as error:
        aggregator.add(f"{2:020}", on_device)
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
