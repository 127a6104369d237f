"""Arrays of records, tables of the server's model, and copies on clients' disks."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import sparseagg as sa
from flwr.app import Array, ArrayRecord
from sparseagg.flower.downlink import Copies
from sparseagg.flower.merge import Merge, changed_rows
from sparseagg.flower.model import Model, Table
from sparseagg.flower.records import sparse_arrays, to_array, update_of, view

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


def test_bytes_that_are_no_array_are_refused() -> None:
    for data in (b"", b"\x93NUMPY\x01\x00", to_array(np.ones(9)).data[:-1]):
        with pytest.raises(sa.InvalidArgumentError, match="cannot be read"):
            view(Array("float64", (9,), "numpy.ndarray", data))
    with pytest.raises(sa.InvalidArgumentError, match="serialized as 'pickle'"):
        view(Array("float64", (9,), "pickle", b""))


def test_records_name_what_does_not_fit() -> None:
    rows = sparse_arrays("w", [1, 2**32], np.ones((2, 3)))
    assert view(rows["w:keys"]).dtype == np.uint64
    keys, values = update_of(ArrayRecord(rows), ["w", "b"])["w"]
    assert (keys.tolist(), values.shape) == ([1, 2**32], (2, 3))
    with pytest.raises(sa.InvalidArgumentError, match=r"unknown tensor 'v:keys'; the model has 'w', 'b'"):
        update_of(ArrayRecord(sparse_arrays("v", [1], np.ones((1, 3)))), ["w", "b"])
    with pytest.raises(sa.InvalidArgumentError, match="keys and rows come together"):
        update_of(ArrayRecord({"w:rows": rows["w:rows"]}), ["w"])
    # A tensor may have such a name, too.
    assert update_of(ArrayRecord({"w:keys": to_array(np.ones(2))}), ["w:keys"])["w:keys"].tolist() == [1, 1]


def test_tables_are_arrays_with_changed_rows_and_keep_their_past() -> None:
    rng = np.random.default_rng(SEED)
    values = rng.standard_normal((50, 3)).astype(np.float32)
    table, past = Table.of(to_array(values), 3), []
    for _ in range(20):
        keys = np.sort(rng.choice(50, rng.integers(0, 6), replace=False))
        rows = rng.standard_normal((len(keys), 3)).astype(np.float32)
        past.append((Model({"w": table}, 0).record["w"], values.copy()))
        table = table.with_rows(keys, rows)
        values[keys] = rows
        some = rng.integers(0, 50, 9)
        np.testing.assert_array_equal(table.rows_at(some), values[some], err_msg=f"seed {SEED}")
        np.testing.assert_array_equal(table.dense(), values)
        np.testing.assert_array_equal(view(table.to_array()), values)
        assert 2 * len(table.keys) < 50
    assert any(len(array.__dict__.get("table", table).keys) for array, _ in past)
    for array, wanted in past:
        np.testing.assert_array_equal(array.numpy(), wanted)
        assert array.data == to_array(wanted).data
        array.numpy()[0, 0] = 7  # a copy
        np.testing.assert_array_equal(array.numpy(), wanted)


def test_copies_are_found_by_version(tmp_path: pathlib.Path) -> None:
    copies = Copies(tmp_path)
    assert copies.load("m", 0, 9) is None
    for version in (3, 4, 7):
        assert copies.save("m", version, {0: to_array(np.full(2, version)).data}, replace=False)
    assert copies.load("m", 0, 3) is None  # the two newest are kept
    for since, newest, wanted in ((0, 6, 4), (4, 9, 7), (7, 7, 7)):
        found = copies.load("m", since, newest)
        assert found is not None
        assert (found[0], found[1][0].tolist()) == (wanted, [wanted, wanted])
    assert copies.load("m", 5, 6) is None
    assert copies.load("other", 0, 9) is None
    assert copies.save("m", 7, {0: to_array(np.zeros(2)).data}, replace=False)
    assert copies.load("m", 7, 7)[1][0].tolist() == [7, 7]  # type: ignore[index]
    assert copies.save("m", 7, {0: to_array(np.zeros(2)).data}, replace=True)
    assert copies.load("m", 7, 7)[1][0].tolist() == [0, 0]  # type: ignore[index]


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
