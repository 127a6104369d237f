"""Files of updates that are not what they should be: the error names the file, and the array where there is one."""

from __future__ import annotations

import io
import os
import pathlib
import warnings
import zipfile
from typing import Any

import numpy as np
import pytest
import sparseagg as sa
from sparseagg._internal.commands import npz
from sparseagg._internal.spec.options import DTYPES

SPEC = sa.RoundSpec(
    [sa.TensorSpec("x", "float32", num_rows=0), sa.TensorSpec("b", "float32", num_rows=2, layout="dense")]
)
ARRAYS = {"x.keys": np.arange(5), "x.values": np.ones(5, np.float32), "b": np.ones(2, np.float32)}


def saved(save: Any = np.savez, **arrays: Any) -> bytes:
    buffer = io.BytesIO()
    save(buffer, **(arrays or ARRAYS))
    return buffer.getvalue()


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def zipped(*more: str, **members: bytes) -> bytes:
    """A file of these arrays, and of empty ones by the names of `more`."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name that is there already
        for name, data in [*((f"{name}.npy", data) for name, data in members.items()), *((n, npy([])) for n in more)]:
            archive.writestr(name, data)
    return buffer.getvalue()


HUGE = npy(np.ones(2)).replace(b"(2,), }", b"(1" + b"0" * 12 + b",), }").replace(b" " * 12 + b"\n", b"\n")
NO_FILE = "update.npz is no .npz file, as numpy.savez writes them: "
WRONG = {
    "empty": (b"", NO_FILE),
    "text": (b"3 1.0\n1 2.0\n" * 10, NO_FILE),
    "npy": (npy(np.ones(3)), NO_FILE),
    "pickle": (npy(np.array([{}], object)), NO_FILE),
    "cut": (saved()[:-100], NO_FILE),
    "flipped": (
        saved(x=np.arange(100)).replace(b"\x2a\0\0\0", b"\x2b\0\0\0"),
        "update.npz: array 'x' cannot be read: ",
    ),
    "objects": (saved(x=np.array([{}], object)), "update.npz: array 'x' holds Python objects, not numbers"),
    "twice": (zipped("x.npy", x=npy(np.ones(3))), "update.npz has array 'x' twice"),
    "twice by two names": (zipped("x", x=npy(np.ones(3))), "update.npz has array 'x' twice"),
    "no array": (zipped(x=b"12345678"), "update.npz: array 'x' cannot be read: "),
    "cut array": (zipped(x=npy(np.ones(3))[:-1]), "array 'x' cannot be read: (3,) of float64 take 24 bytes, and there"),
    "huge": (zipped(x=HUGE), "array 'x' cannot be read: (1000000000000,) of float64 take 8000000000000 bytes"),
}


@pytest.fixture
def update(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    return pathlib.Path("update.npz")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_read_update_gives_what_was_saved(update: pathlib.Path, save: Any) -> None:
    update.write_bytes(saved(save))
    found = npz.read_update(update, SPEC)
    for array, expected in zip((*found["x"], found["b"]), ARRAYS.values()):
        np.testing.assert_array_equal(array, expected, strict=True)
    with npz.open_npz(update) as file:
        assert file.names == list(ARRAYS)
        assert file.header("x.values") == ((5,), np.dtype(np.float32))


@pytest.mark.parametrize("wrong", WRONG)
def test_file_that_cannot_be_read_is_named(update: pathlib.Path, wrong: str) -> None:
    data, text = WRONG[wrong]
    update.write_bytes(data)
    with pytest.raises(sa.InvalidArgumentError) as refused:
        npz.read_update(update, SPEC)
    assert text in str(refused.value)
    assert "pickle" not in str(refused.value)


@pytest.mark.parametrize("dtype", DTYPES)
def test_write_result_of_any_dtype_reads_back_as_numbers(update: pathlib.Path, dtype: str) -> None:
    keys, rows = np.array([1, 4]), np.array([[1, 2], [3, 96]], dtype if dtype != "bfloat16" else np.float32)
    spec = sa.RoundSpec(
        [sa.TensorSpec("x", dtype, num_rows=5, row_width=2, modular=dtype.startswith("u"))], return_counts=True
    )
    result = sa.aggregate([(keys, rows)], spec)
    npz.write_result(update, result)
    with np.load(update) as file:
        assert file.files == ["x.keys", "x.values", "x.counts"]
        assert file["x.values"].dtype == ("float32" if dtype == "bfloat16" else result["x"].dtype)
        assert file["x.keys"].tolist() == keys.tolist()
        assert file["x.values"].tolist() == rows.tolist()


def test_read_update_takes_all_keys_of_a_dense_tensor_for_its_rows(update: pathlib.Path) -> None:
    # As older results have them.
    for keys, is_whole in (([0, 1], True), ([1, 0], False), ([0], False)):
        update.write_bytes(saved(**{"b.keys": np.array(keys), "b.values": np.ones(len(keys))}))
        found = npz.read_update(update, SPEC)["b"]
        assert isinstance(found, tuple) is not is_whole
        if is_whole:
            assert found.tolist() == [1.0, 1.0]


def test_tensor_that_is_given_twice_is_refused(update: pathlib.Path) -> None:
    update.write_bytes(saved(**ARRAYS, x=np.ones(2)))
    with pytest.raises(sa.InvalidArgumentError, match=r"update\.npz has x as well as x\.keys"):
        npz.read_update(update, SPEC)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damaged_files_are_read_or_refused(update: pathlib.Path, save: Any) -> None:
    rng = np.random.default_rng(20)
    good = saved(save)
    refused = []
    for _ in range(300):
        bad = bytearray(good)
        for _ in range(rng.integers(1, 4)):
            bad[rng.integers(len(bad))] = rng.integers(256)
        update.write_bytes(bad[: rng.integers(len(bad))] if rng.random() < 0.1 else bad)
        try:
            npz.read_update(update, SPEC)
        except sa.InvalidArgumentError as error:
            refused.append(str(error))
    assert len(refused) > 150
    assert all("update.npz" in error for error in refused)


def aggregated() -> sa.Result:
    return sa.aggregate([([1], [1.0])], sa.RoundSpec([sa.TensorSpec("x", "float32", num_rows=10)]))


def test_result_that_cannot_be_written_leaves_what_was_there(
    update: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(member: Any, *_: Any, **__: Any) -> None:
        member.write(b"half")
        raise KeyboardInterrupt

    update.write_bytes(b"before")
    there = sorted(update.parent.iterdir())
    monkeypatch.setattr(npz.npy, "write_array", fail)
    with pytest.raises(KeyboardInterrupt):
        npz.write_result(update, aggregated())
    assert update.read_bytes() == b"before"
    assert sorted(update.parent.iterdir()) == there


def test_result_is_written_to_where_a_link_leads_with_the_rights_of_any_new_file(update: pathlib.Path) -> None:
    link, other = update.with_name("link.npz"), update.with_name("other.npz")
    link.symlink_to(update.name)
    other.touch()
    npz.write_result(link, aggregated())
    assert link.is_symlink()
    assert update.stat().st_mode == other.stat().st_mode
    with np.load(update) as file:
        assert file["x.keys"].tolist() == [1]


def test_result_is_written_into_a_pipe(update: pathlib.Path) -> None:
    pipe = update.with_name("pipe")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    npz.write_result(pipe, aggregated())
    update.write_bytes(os.read(reader, 1 << 16))  # what a pipe holds
    os.close(reader)
    assert pipe.is_fifo()
    with np.load(update) as file:
        assert file["x.keys"].tolist() == [1]


@pytest.mark.parametrize("name", ["file", "allow_pickle", "args", "self", "arr_0", "a/b", "x.npy", "é"])
def test_write_result_of_a_tensor_of_any_name_reads_back(update: pathlib.Path, name: str) -> None:
    spec = sa.RoundSpec(
        [sa.TensorSpec(name, "float32", num_rows=3, layout="dense"), sa.TensorSpec("u", "float32", num_rows=3)]
    )
    npz.write_result(update, sa.aggregate([{name: [1.0, 2.0, 3.0], "u": ([1], [5.0])}], spec))
    back = npz.read_update(update, spec)
    assert back[name].tolist() == [1.0, 2.0, 3.0]
    assert [column.tolist() for column in back["u"]] == [[1], [5.0]]
