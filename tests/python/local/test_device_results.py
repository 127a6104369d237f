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
from every_client import one
from fake_device import Library, taken
from random_rounds import random_pools, random_spec, random_updates
from sparseagg._internal.local import cuda_plugin
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
        for field in ("layout", "dtype", "num_rows", "row_width", "fixed_point_shift", "fill", "shape"):
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
