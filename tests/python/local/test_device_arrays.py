"""Arrays in a GPU's memory as keys and values of updates in this process: the same results as of arrays on the host."""

from __future__ import annotations

import types
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import sparseagg as sa
from every_client import digest, one
from fake_device import InterfaceArray, Library, TorchCoo, TorchTensor
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
        kind = rng.integers(3)
        return library.array(array) if kind else InterfaceArray(array, library, rng.choice([None, 1, 2, 12345]))

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
