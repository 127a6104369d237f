"""Models with values that are not finite: −inf in a mask, a row of NaN that nobody touches, minima from inf on."""

from __future__ import annotations

import pathlib
from typing import Any

import jobs
import numpy as np
import pytest
import sparseagg as sa
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg
from local_grid import LocalGrid, changing
from sparseagg.flower import SparseFedAdam, SparseFedAvg, sparse_mod
from sparseagg.flower.merge import Merge, changed_rows
from sparseagg.flower.mod import Copies
from sparseagg.flower.model import Table, to_array, view

NODES = 6
SPARSE = ["embedding.weight"]
LOST_ROW = 17


def model() -> jobs.Arrays:
    """The job's model, a causal mask, a minimum that an observer will find, and a row of the table that is lost."""
    arrays = jobs.initial_model()
    arrays["mask"] = np.triu(np.full((5, 5), -np.inf, np.float32), 1)
    arrays["least"] = np.array([np.inf, np.inf, -1.0], np.float16)
    arrays["embedding.weight"][LOST_ROW] = np.nan
    arrays["embedding.weight"][3, 2] = -np.inf
    return arrays


def observing(arrays: jobs.Arrays, partition: int) -> None:
    """Every client finds a minimum of the first value, and one client one of the second."""
    arrays["embedding.weight"][3, 2] = -np.inf  # which training has left alone, as a mask would have it
    arrays["least"][0] = partition
    if partition == 1:
        arrays["least"][1] = 5


def run(strategy: Any, mods: list[Any], nodes: int = NODES, initial: jobs.Arrays | None = None) -> jobs.Arrays:
    grid = LocalGrid(jobs.make_client_app(mods), nodes)
    record = ArrayRecord({name: Array(array) for name, array in (initial or model()).items()})
    result = strategy.start(grid, record, num_rounds=2, timeout=60)
    return {name: array.numpy() for name, array in result.arrays.items()}


@pytest.mark.parametrize("where", ["replies", "without the mod", "server"])
@pytest.mark.parametrize("options", [None, {"numerics": "canonical"}])
def test_what_no_client_changed_stays_and_the_rest_is_averaged(
    where: str, options: Any, server: sa.Client, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "flwr")
    mods = [changing(observing)] if where == "without the mod" else [sparse_mod(copies=tmp_path), changing(observing)]
    strategy = SparseFedAvg(sparse=SPARSE, server=server if where == "server" else None, options=options)
    got = run(strategy, mods)
    assert caplog.text.count(f"aggregate_train: Received {NODES} results and 0 failures") == 2
    stock = run(FedAvg(), [changing(observing)])
    before = model()
    np.testing.assert_array_equal(got["mask"], before["mask"])
    np.testing.assert_array_equal(stock["mask"], before["mask"])
    assert got["embedding.weight"][LOST_ROW].tobytes() == before["embedding.weight"][LOST_ROW].tobytes()
    assert got["embedding.weight"][3, 2] == -np.inf
    assert np.isfinite(got["least"][0])  # the mean of what all clients have found, as with FedAvg
    assert got["least"][1] == np.inf
    for name, array in stock.items():
        if before[name].dtype.kind == "f":
            np.testing.assert_allclose(got[name], array, rtol=1e-3, atol=1e-4, err_msg=name)


def test_values_that_become_nonfinite_are_refused_and_named(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    def spoiled(arrays: jobs.Arrays, partition: int) -> None:
        arrays["embedding.weight"][3, 2] = -np.inf
        name = {0: "mask", 1: "dense.weight", 2: "embedding.weight"}.get(partition)
        if name is not None:
            arrays[name][1, 0] = np.nan  # finite in the model

    caplog.set_level("INFO", "flwr")
    got = run(SparseFedAvg(sparse=SPARSE), [sparse_mod(copies=tmp_path), changing(spoiled)])
    assert caplog.text.count("aggregate_train: Received 3 results and 3 failures") == 2
    for partition, name in enumerate(["mask", "dense.weight", "embedding.weight"]):
        line = next(line for line in caplog.messages if f"client '000000000{partition}:" in line)
        assert f"tensor '{name}'" in line
        assert "nan" in line
    np.testing.assert_array_equal(got["mask"], model()["mask"])


def test_server_optimisers_leave_such_values_alone(tmp_path: Any) -> None:
    got = run(SparseFedAdam(sparse=SPARSE), [sparse_mod(copies=tmp_path), changing(observing)])
    before = model()
    np.testing.assert_array_equal(got["mask"], before["mask"])
    assert got["embedding.weight"][LOST_ROW].tobytes() == before["embedding.weight"][LOST_ROW].tobytes()
    assert np.isfinite(got["least"][0])
    assert got["least"][1] == np.inf


def test_on_nonfinite_of_single_tensors(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    def spoiled(arrays: jobs.Arrays, partition: int) -> None:
        arrays["embedding.weight"][3, 2] = -np.inf
        arrays["scale"] = np.array(np.inf if partition == 1 else 1, np.float32)
        if partition == 2:
            arrays["dense.weight"] = arrays["dense.weight"] * np.nan

    caplog.set_level("INFO", "flwr")
    strategy = SparseFedAvg(sparse=SPARSE, options={"on_nonfinite": {"sc*": "propagate"}})
    got = run(strategy, [sparse_mod(copies=tmp_path), changing(spoiled)])
    assert got["scale"] == np.inf
    assert np.isfinite(got["dense.weight"]).all()
    assert caplog.text.count("aggregate_train: Received 5 results and 1 failures") == 2
    with pytest.raises(ValueError, match="on_nonfinite has 'scala', which is no tensor of the model"):
        run(SparseFedAvg(options={"on_nonfinite": {"scala": "propagate"}}), [])
    with pytest.raises(ValueError, match="unknown on_nonfinite 'keep'"):
        run(SparseFedAvg(options={"on_nonfinite": {"scale": "keep"}}), [])


# ---- arrays of records, tables of the server's model, and copies on clients' disks


SEED = 26


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (4, 1), (3, 2, 2)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64", "bool"])
def test_arrays_are_those_of_flower(shape: tuple[int, ...], dtype: str) -> None:
    values = np.random.default_rng(SEED).integers(0, 2, shape).astype(dtype)
    for each in (values, values.copy(order="F")):
        assert to_array(each) == Array(np.array(each, order="C"))
        for array in (to_array(each), Array(each)):
            found = view(array)
            np.testing.assert_array_equal(found, values)
            assert (found.dtype, found.shape) == (values.dtype, values.shape)
            assert not found.flags.writeable


def test_copies_that_cannot_be_written_or_read_are_not_there(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    assert not Copies(tmp_path / "file").save("m", 1, {0: b"x"})
    assert Copies(tmp_path / "file").load("m", 0, 9) is None
    copies = Copies(tmp_path / "folder")
    assert copies.save("m", 1, {0: b"no array"})
    assert copies.load("m", 0, 9) is None
    assert (tmp_path / "folder").stat().st_mode & 0o77 == 0


@pytest.mark.parametrize("dtype", ["uint8", "int8", "bool", "int32", "uint16"])
def test_rows_of_integers_neither_wrap_nor_are_cut(dtype: str) -> None:
    print(f"seed {SEED}")
    rng = np.random.default_rng(SEED)
    before = rng.integers(0, 2 if dtype == "bool" else 100, (50, 3)).astype(dtype)
    after = [before.copy() for _ in range(4)]
    for table in after:
        table[::7] = rng.integers(0, 2 if dtype == "bool" else 127, (8, 3)).astype(dtype)
    table = Table.of(Array(before), 3)
    merge = Merge({"table": table}, ["table"], "mean", None, {})
    for client, values in enumerate(after):
        merge.add(str(client), {"table": changed_rows(before, values, 3) if client else values}, client + 1)
    tables, _, _ = merge.finish(map(str, range(4)), None)
    mean = sum((client + 1) * values.astype(np.float64) for client, values in enumerate(after)) / 10
    np.testing.assert_array_equal(tables["table"].dense(), np.rint(mean).astype(dtype))
