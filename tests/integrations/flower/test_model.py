"""Arrays of records, tables of the server's model, and copies on clients' disks."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
from flwr.app import Array
from sparseagg.flower.downlink import Copies
from sparseagg.flower.merge import Merge, changed_rows
from sparseagg.flower.model import Table, to_array, view

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
    assert not Copies(tmp_path / "file").save("m", 1, {0: b"x"}, replace=False)
    assert Copies(tmp_path / "file").load("m", 0, 9) is None
    copies = Copies(tmp_path / "folder")
    assert copies.save("m", 1, {0: b"no array"}, replace=False)
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
