"""Results in a GPU's memory: the bits of results on the host, lent to other libraries."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import sys
import types
from typing import Any

import numpy as np
import pytest
import sparseagg as sa
from cuda_plugins import plugin
from every_client import digest, one
from fake_device import Library, TorchCoo, taken
from random_rounds import here_and_there, random_pools, random_spec, random_updates
from sparseagg._internal.local import cuda_plugin
from test_device_arrays import KEYS, ROWS
from test_engine import floats


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEAGG_CUDA_PLUGIN", plugin("test_plugin"))
    cuda_plugin.load()


def merged(updates: dict[str, Any], spec: sa.RoundSpec) -> tuple[Any, Any]:
    """The result on the host, by the CPU, and that on the device; or the errors of both."""
    outcomes: list[Any] = []
    for where in ("cpu", "cuda"):
        aggregator = sa.Aggregator(spec, device=where)
        try:
            for client_id, (update, weight) in updates.items():
                aggregator.add(client_id, update, weight)
            outcomes.append(aggregator.finish() if where == "cpu" else aggregator.finish_on_device())
        except sa.SparseaggError as error:
            outcomes.append((type(error), str(error)))
    return outcomes[0], outcomes[1]


def same_bits(on_device: Any, on_host: np.ndarray | None) -> bool:
    if on_host is None or on_device is None:
        return on_host is on_device
    copy = taken(on_device)
    if on_device.dtype == "bfloat16":  # the host has the numbers, as ml_dtypes or float32
        return copy.shape == on_host.shape and np.array_equal(
            (copy.astype(np.uint32) << 16).view(np.float32), on_host.astype(np.float32), equal_nan=True
        )
    return copy.dtype == on_host.dtype and copy.shape == on_host.shape and copy.tobytes() == on_host.tobytes()


@pytest.mark.parametrize("seed", range(60))
def test_results_on_the_device_have_the_bits_of_the_cpu(seed: int) -> None:
    print("seed", seed)
    rng = np.random.default_rng([20261128, seed])
    spec = random_spec(rng, takes_binned=False)  # the CPU has binned sums, and results of them
    print(spec)
    pools = random_pools(rng, spec)
    updates = random_updates(rng, spec, pools, rng.integers(0, 12))
    on_host, on_device = merged(updates, spec)
    if isinstance(on_host, tuple):
        assert on_device == on_host
        return
    assert list(on_device) == list(on_host)
    for name, expected in on_host.items():
        actual = on_device[name]
        for field in ("layout", "dtype", "num_rows", "row_width", "fill", "shape"):
            assert getattr(actual, field) == getattr(expected, field), field
        assert len(actual) == len(expected)
        keys = expected.keys if expected.layout == "sparse" else None
        assert same_bits(actual.keys, keys), name
        for column in ("values", "counts", "weights"):
            assert same_bits(getattr(actual, column), getattr(expected, column)), (name, column)


@pytest.fixture
def values() -> Any:
    aggregator = sa.Aggregator(one(num_rows=10, row_width=2), device="cuda")
    aggregator.add("a", (np.array([7, 3]), floats(1, 2, 3, 4).reshape(2, 2)))
    return aggregator.finish_on_device()["v"].values


def test_a_column_is_lent_in_every_way(values: Any) -> None:
    expected = floats(3, 4, 1, 2).reshape(2, 2)
    assert values.shape == (2, 2)
    assert values.dtype == "float32"
    assert values.__dlpack_device__() == (2, 0)
    for version in (None, (0, 8), (1, 0), (1, 1)):
        copy = taken(values, version=version if version is None or version >= (1, 0) else None)
        assert copy.tobytes() == expected.tobytes()
    fields = values.__cuda_array_interface__
    pointer, is_read_only = fields.pop("data")
    assert fields == {"shape": (2, 2), "typestr": "<f4", "strides": None, "stream": None, "version": 3}
    assert not is_read_only
    assert ctypes.string_at(pointer, 16) == expected.tobytes()


def test_a_column_refuses_what_it_cannot_lend(values: Any) -> None:
    with pytest.raises(BufferError, match="on CUDA device 0, and is lent only there"):
        values.__dlpack__(dl_device=(1, 0))
    with pytest.raises(BufferError, match="lent, not copied"):
        values.__dlpack__(copy=True)
    values.__dlpack__(stream=-1, dl_device=(2, 0), copy=False)
    aggregator = sa.Aggregator(one("bfloat16", num_rows=10), device="cuda")
    aggregator.add("a", (np.array([3]), floats(1)))
    column = aggregator.finish_on_device()["v"].values
    with pytest.raises(AttributeError, match="no bfloat16"):
        _ = column.__cuda_array_interface__
    assert taken(column).tolist() == [0x3F80]


def test_a_lent_column_outlives_its_result(values: Any) -> None:
    capsule = values.__dlpack__()
    fields = values.__cuda_array_interface__
    del values
    gc.collect()
    assert ctypes.string_at(fields["data"][0], 16) == floats(3, 4, 1, 2).tobytes()
    holder = types.SimpleNamespace(__dlpack__=lambda **_: capsule)
    assert taken(holder, version=None).tolist() == [[3, 4], [1, 2]]


def test_errors_of_finishing_on_a_device() -> None:
    with pytest.raises(sa.errors.FailedPreconditionError, match=r'need Aggregator\(spec, device="cuda"\)'):
        sa.Aggregator(one()).finish_on_device()
    aggregator = sa.Aggregator(one(), device="cuda")
    aggregator.add("a", (np.array([3]), floats(1)))
    aggregator.finish_on_device()
    with pytest.raises(sa.errors.FailedPreconditionError, match="finished or merged away"):
        aggregator.finish_on_device()


def drop_in_child(columns: list[Any]) -> None:
    columns.clear()
    gc.collect()


@pytest.mark.skipif(sys.platform == "darwin", reason="forks")
def test_a_forked_child_leaves_the_columns_alone(values: Any) -> None:
    columns = [values]
    child = multiprocessing.get_context("fork").Process(target=drop_in_child, args=(columns,))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert taken(values).tolist() == [[3, 4], [1, 2]]


def test_aggregate_leaves_results_where_it_is_asked_to(library: Library) -> None:
    spec, on_host = one(num_rows=10), [(np.array([7, 3]), floats(1, 2))]
    on_device = [(library.array(np.array([7, 3])), library.array(floats(1, 2)))]
    for updates in (on_host, on_device, on_host + on_device):
        expected = sa.aggregate(on_host * len(updates), spec, device="cpu")["v"]
        for options in (
            {"result_device": "cuda"},
            {"result_device": "cuda", "device": "cuda"},
            {"result_device": "updates"},
            {"result_device": "updates", "device": "cuda"},
            {"result_device": "cpu", "device": "cuda"},
            {"result_device": None},
        ):
            result = sa.aggregate(updates, spec, **options)["v"]
            is_there = options["result_device"] == "cuda" or (
                options["result_device"] == "updates" and updates is not on_host
            )
            assert isinstance(result, sa.types.DeviceTensorResult) == is_there, options
            values = taken(result.values) if is_there else result.values
            assert values.tobytes() == expected.values.tobytes()
    assert library.host_copies == 0
    result = sa.aggregate(on_host, spec, device="cpu", result_device="updates")["v"]
    assert isinstance(result, sa.TensorResult)
    with pytest.raises(sa.InvalidArgumentError, match="result_device is 'cuda', but device is 'cpu'"):
        sa.aggregate(on_host, spec, device="cpu", result_device="cuda")
    with pytest.raises(sa.InvalidArgumentError, match=r"result_device must be .* got 'gpu'"):
        sa.aggregate(on_host, spec, result_device="gpu")


# ---- rounds of ":memory:" that merge on a GPU, and take arrays in its memory


MEMORY = ":memory:"


def outcome(client: sa.Client, spec: sa.RoundSpec, updates: dict[str, Any], *, in_one_call: bool) -> Any:
    """What a round comes to: everything about its result, or its error."""
    try:
        if in_one_call:
            result = client.aggregate(updates, spec)
        else:
            rnd = client.create_round(spec)
            for client_id, (update, weight) in updates.items():
                rnd.submit(client_id, update, weight)
            result = rnd.finish()
    except sa.SparseaggError as error:
        return type(error)
    return digest(result)


@pytest.mark.parametrize("seed", range(40))
def test_random_rounds_on_a_device_end_as_on_the_cpu(seed: int, library: Library) -> None:
    print("seed", seed)
    rng = np.random.default_rng([20261129, seed])
    spec = random_spec(rng)
    print(spec)

    def moved(tensor: str, data: Any) -> Any:
        """The same tensor, on the device two times in three."""
        dtype = spec.tensor(tensor).dtype
        if rng.random() < 0.3:
            return data
        keys, rows = data if isinstance(data, tuple) else (None, data)
        rows = None if rows is None else library.tensor(rows.view(np.uint16) if dtype == "bfloat16" else rows)
        return rows if keys is None else (library.tensor(keys), rows)

    here, there = here_and_there(rng, spec, moved)
    in_one_call = bool(rng.random() < 0.3)
    with sa.Client(MEMORY) as cpu, sa.Client(MEMORY, device="cuda") as gpu:
        expected = outcome(cpu, spec, here, in_one_call=in_one_call)
        assert outcome(gpu, spec, there, in_one_call=in_one_call) == expected
    assert library.host_copies == 0


@pytest.mark.parametrize("seed", range(8))
def test_arrays_may_change_once_they_are_submitted(seed: int, library: Library) -> None:
    rng = np.random.default_rng(seed)
    spec = one(num_rows=100)
    with sa.Client(MEMORY, device="cuda") as client:
        rnd = client.create_round(spec)
        expected = np.zeros(100, np.float32)
        for i in range(5):
            keys, rows = np.unique(rng.integers(0, 100, 40)), None
            rows = np.ones(len(keys), np.float32) * (i + 1)
            on_device = library.tensor(keys), library.tensor(rows)
            expected[keys] += rows
            receipt = rnd.submit(f"client-{i}", on_device)
            assert (receipt.num_tuples, receipt.num_bytes) == (len(keys), 8 * len(keys))
            rows[...] = np.nan
            keys[...] = 0
        result = rnd.finish()["v"]
        touched = np.flatnonzero(expected)
        assert result.keys.tolist() == touched.tolist()
        assert result.values.tolist() == expected[touched].tolist()
        assert client.server_info().engine == "cuda"
    assert (library.host_copies, library.device_copies) == (0, 5)  # the engine copies keys by itself


def test_a_round_gives_arrays_back(library: Library) -> None:
    with sa.Client(MEMORY, device="cuda") as client:
        rnd = client.create_round(one())
        update = library.tensor(KEYS), library.tensor(ROWS)
        rnd.submit("a", update)
        rnd.submit("b", update)
        assert rnd.withdraw("a")
        with pytest.raises(sa.InvalidArgumentError, match="position 0: key 10 is not below"):
            rnd.submit("c", (library.tensor(KEYS + 5), library.tensor(ROWS)))
        assert rnd.finish()["v"].values.tolist() == [2.0, 9.0, 4.0]
        rnd.delete()
    client = sa.Client(MEMORY, device="cuda")
    client.create_round(one()).submit("a", update)
    client.close()
    gc.collect()  # `library` sees that all of them are back


def test_submissions_on_a_device_are_not_compared(library: Library) -> None:
    update = library.tensor(KEYS), library.tensor(ROWS)
    with sa.Client(MEMORY, device="cuda") as client:
        rnd = client.create_round(one())
        rnd.submit("a", update, submission_id="1")
        with pytest.raises(sa.errors.AlreadyExistsError, match="'a' has committed submission '1' with other content"):
            rnd.submit("a", update, submission_id="1")
        rnd.submit("b", (KEYS, ROWS), submission_id="1")
        assert rnd.submit("b", (KEYS, ROWS), submission_id="1").duplicate
        assert rnd.finish()["v"].values.tolist() == [4.0, 18.0, 8.0]


def test_a_sealed_round_on_a_device_can_be_inspected(library: Library) -> None:
    with sa.Client(MEMORY, device="cuda") as client:
        rnd = client.create_round(one())
        rnd.submit("a", (library.tensor(KEYS), library.tensor(ROWS)))
        rnd.submit("b", (np.array([2, 9]), floats(10, 1)))
        rnd.seal()
        assert sa.robust.inspect(rnd).gram.tolist() == [[2.0**2 + 9.0**2 + 4.0**2, 24.0], [24.0, 101.0]]


def test_what_a_round_on_a_device_refuses(library: Library) -> None:
    update = library.tensor(KEYS), library.tensor(ROWS)
    with sa.Client(MEMORY, device="cuda") as client:
        rnd = client.create_round(one())
        with pytest.raises(
            sa.InvalidArgumentError, match="client 'a': tensor 'v': value_encoding rounds values in host"
        ):
            rnd.submit("a", update, value_encoding="float16")
        with pytest.raises(sa.InvalidArgumentError, match="keys are in host memory and rows on CUDA device 0"):
            rnd.submit("a", (KEYS, update[1]))
        with pytest.raises(sa.InvalidArgumentError, match="has no method that copies it on its device"):
            rnd.submit("a", (library.array(KEYS), library.array(ROWS)))
        coo = TorchCoo([[5, 2]], floats(1, 2), (10,), library)
        assert rnd.submit("a", coo).num_tuples == 2
    with sa.Client(MEMORY) as client:
        rnd = client.create_round(one())
        rnd.submit("a", update)  # torch's arrays are copied to the host
        assert rnd.finish()["v"].values.tolist() == [2.0, 9.0, 4.0]
    assert library.host_copies == 2


@pytest.mark.parametrize("address", ["localhost:1", ":local:"])
def test_a_device_is_for_rounds_in_this_process(address: str) -> None:
    with pytest.raises(sa.InvalidArgumentError, match=f'^a client of "{address}" takes no device'):
        sa.Client(address, device="cuda")


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(sa.InvalidArgumentError, match="device must be 'cpu', 'cuda' or None, got 'gpu'"):
        sa.Client(MEMORY, device="gpu")


def test_without_the_engine_a_client_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_plugin, "find", lambda: None)
    with pytest.raises(sa.errors.EngineMissingError, match=r"make cuda-wheel"):
        sa.Client(MEMORY, device="cuda")
