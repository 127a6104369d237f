"""`sparseagg merge` on real files, and `sparseagg engine`."""

from __future__ import annotations

import io
import itertools
import json
import os
import pathlib
import subprocess
import sys
import zipfile

import ml_dtypes
import numpy as np
import pytest
from sparseagg._internal.commands import npz
from sparseagg._internal.commands.cli import main

UPDATES = {
    "a": {"emb.keys": np.array([3, 1]), "emb.values": np.array([[1, 2], [3, 4]], np.float32), "bias": np.ones(3)},
    "b": {"emb.keys": np.array([1, 9]), "emb.values": np.array([[5, 6], [7, 8]], np.float32), "bias": np.arange(3.0)},
}


def permutations(*files: str) -> list[tuple[str, ...]]:
    return list(itertools.permutations(files))


@pytest.fixture
def merge(tmp_path, capsys, monkeypatch):
    """Writes the updates, runs the command in their folder, and returns the arrays or the error."""
    monkeypatch.chdir(tmp_path)
    for name, arrays in UPDATES.items():
        np.savez(f"{name}.npz", **arrays)

    def call(*arguments: str, status: int = 0):
        assert main(["merge", *arguments, "-o", "merged.npz"]) == status
        captured = capsys.readouterr()
        if status:
            assert not pathlib.Path("merged.npz").exists()
            return captured.err
        with np.load("merged.npz") as file:
            return {name: file[name].tolist() for name in file.files}

    return call


def test_merge_sums_what_the_files_have(merge):
    assert merge("a.npz", "b.npz", "--counts") == {
        "bias": [1, 2, 3],
        "bias.counts": [2, 2, 2],
        "emb.keys": [1, 3, 9],
        "emb.values": [[8, 10], [1, 2], [7, 8]],
        "emb.counts": [2, 1, 1],
    }


def test_merge_takes_options(merge):
    # Of an update that is sparse the result keeps its keys: so it can be merged with others of that tensor.
    merged = merge(
        "a.npz", "b.npz", "--op", "mean", "--weights", "1,3", "--num-rows", "emb=10", "--result-layout", "dense"
    )
    assert merged["emb.keys"] == list(range(10))
    assert merged["emb.values"][1] == [(3 + 3 * 5) / 4, (4 + 3 * 6) / 4]
    assert merged["emb.values"][0] == [0, 0]
    assert merge("a.npz", "b.npz", "--min-contributors", "2")["emb.keys"] == [1]
    assert merge("a.npz", "b.npz", "--op", "max", "--threads", "1")["emb.values"][0] == [5, 6]
    binned = merge("a.npz", "b.npz", "--numerics", "binned", "--result-dtype", "float64")
    assert binned["emb.values"] == [[8, 10], [1, 2], [7, 8]]


def test_merge_unsigned_sums_say_modular(merge):
    np.savez("c.npz", **{"m.keys": np.array([1]), "m.values": np.array([2**32 - 1], np.uint32)})
    np.savez("d.npz", **{"m.keys": np.array([1]), "m.values": np.array([2], np.uint32)})
    assert "modular" in merge("c.npz", "d.npz", status=1)
    assert merge("c.npz", "d.npz", "--modular")["m.values"] == [1]


def test_merge_takes_a_spec_in_json(merge):
    spec = {
        "tensors": [
            {"name": "emb", "dtype": "DTYPE_FLOAT32", "num_rows": 10, "row_width": 2},
            {"name": "bias", "dtype": "DTYPE_FLOAT64", "num_rows": 3, "layout": "TENSOR_LAYOUT_DENSE"},
        ],
        "aggregation": {"op": "OP_COORDINATE_MEAN"},
    }
    pathlib.Path("spec.json").write_text(json.dumps(spec))
    merged = merge("a.npz", "b.npz", "--spec", "spec.json")
    assert merged["emb.values"] == [[4, 5], [1, 2], [7, 8]]
    assert merged["bias"] == [0.5, 1, 1.5]
    pathlib.Path("merged.npz").unlink()
    for option, value in [("--op", "sum"), ("--fill", "1"), ("--fill", "0"), ("--min-contributors", "0")]:
        assert option in merge("a.npz", "b.npz", "--spec", "spec.json", option, value, status=1)
    for option in ("--modular", "--counts", "--prune-zeros"):
        assert option[2:] in merge("a.npz", "b.npz", "--spec", "spec.json", option, status=1)
    pathlib.Path("spec.json").write_text("{")
    assert "spec.json" in merge("a.npz", "--spec", "spec.json", status=1)


@pytest.mark.parametrize(("weighting", "is_taken"), [("uniform", False), ("by_weight", True)])
@pytest.mark.parametrize("of", ["round", "tensor"])
def test_merge_by_weights_of_a_spec_that_weighs_nothing_is_refused(merge, of, weighting, is_taken):
    spec = {"tensors": [{"name": "emb", "dtype": "float32", "row_width": 2}, {"name": "bias", "dtype": "float64"}]}
    spec["tensors"][1].update(num_rows=3, layout="dense")
    (spec if of == "round" else spec["tensors"][0])["aggregation"] = {"weighting": weighting}
    pathlib.Path("spec.json").write_text(json.dumps(spec))
    command = ["a.npz", "b.npz", "--spec", "spec.json", "--weights", "1,1000"]
    if is_taken:
        assert merge(*command)["emb.values"][0] == [5003, 6004]
    else:
        assert "--weights are given, but --spec weighs no tensor by_weight" in merge(*command, status=1)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["a.npz", "b.npz", "a.npz"], "a.npz is given twice"),
        (["a.npz", "missing.npz"], "missing.npz"),
        (["a.npz", "--weights", "1,2"], "2 weights for 1 files"),
        (["a.npz", "--weights", "x"], "'x'"),
        (["a.npz", "--num-rows", "ten"], "'ten'"),
        (["a.npz", "--num-rows", "other=3"], "other"),
        (["a.npz", "b.npz", "--num-rows", "emb=9"], "b.npz: tensor 'emb', position 1: key 9"),
        (["a.npz", "--weights", "-1"], "weight -1 is negative"),
        (["bare.npz"], "bare.npz has x.values, but no x.keys"),
        (["names.npz"], "names.npz: array 'x.values': unknown dtype dtype('<U1')"),
        (
            ["both.npz"],
            "tensor 'x' is float64 of row_width 1 in both.npz, and dense, float64 of shape (2,) in both",
        ),
        (["b.npz", "a.npz", "--memory-limit", "90"], "a.npz: with the update"),
        (["counts.npz"], "counts.npz has x.counts beside x.keys, as results have"),
        (["weights.npz"], "weights.npz has x.weights beside x.keys, as results have"),
        (["rowless.npz"], "rowless.npz: array 'x' has no rows, and a dense tensor has one at least"),
        (["dense.npz"], "dense.npz has x.counts beside x, as results have"),
        (["unnamed.npz"], "unnamed.npz has arr_0, which names no tensor"),
        (["no-tensor.npz"], "no-tensor.npz has keys, which names no tensor"),
        (["damaged.npz"], "damaged.npz: array 'x' cannot be read: "),
    ],
)
def test_merge_errors_name_file_place_and_value(merge, arguments, text):
    np.savez("bare.npz", **{"x.values": np.ones(2)})
    np.savez("names.npz", **{"x.keys": np.arange(2), "x.values": np.array(["a", "b"])})
    np.savez("both.npz", **{"x.keys": np.arange(2), "x.values": np.ones(2), "x": np.ones(2)})
    np.savez("counts.npz", **{"x.keys": np.arange(2), "x.values": np.ones(2), "x.counts": np.ones(2, np.uint32)})
    np.savez("weights.npz", **{"x.keys": np.arange(2), "x.values": np.ones(2), "x.weights": np.ones(2)})
    np.savez("rowless.npz", x=np.empty((0, 2)))
    np.savez("dense.npz", **{"x": np.ones(2), "x.counts": np.ones(2, np.uint32)})
    np.savez("unnamed.npz", np.arange(2), np.ones(2))
    np.savez("no-tensor.npz", values=np.ones(2), keys=np.arange(2))
    with zipfile.ZipFile("damaged.npz", "w") as archive:
        archive.writestr("x.npy", b"12345678")
    assert text in merge(*arguments, status=1)


def test_merge_of_a_file_under_two_names_is_refused(merge):
    pathlib.Path("link.npz").symlink_to("a.npz")
    for other in ("./a.npz", os.path.abspath("a.npz"), "link.npz"):
        error = merge("a.npz", "b.npz", other, status=1)
        assert "is given twice" in error
        assert {"a.npz", other} <= set(error.replace(",", "").split())


@pytest.mark.parametrize("output", ["a.npz", "./b.npz"])
def test_merge_into_one_of_the_files_is_refused(merge, capsys, output):
    before = pathlib.Path(output).read_bytes()
    assert main(["merge", "a.npz", "b.npz", "-o", output]) == 1
    assert f"--output {output} is one of the files" in capsys.readouterr().err
    assert pathlib.Path(output).read_bytes() == before


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("none/o.npz", "--output none/o.npz: there is no folder none"),
        ("/none/o.npz", "there is no folder /none"),
        ("a.npz/o.npz", "--output a.npz/o.npz: there is no folder a.npz"),
        ("folder", "--output folder is a folder"),
    ],
)
def test_output_that_cannot_be_is_told_before_anything_is_read(merge, capsys, monkeypatch, output, text):
    def read(*_):
        raise AssertionError

    pathlib.Path("folder").mkdir()
    monkeypatch.setattr(npz.NpzFile, "read", read)
    for command in (["merge", "a.npz", "b.npz"], ["result", "some-round", "--address", "localhost:1"]):
        assert main([*command, "-o", output]) == 1
        assert text in capsys.readouterr().err


ROWS = {
    "float32": {"x.keys": np.array([1]), "x.values": np.ones(1, np.float32)},
    "float64": {"x.keys": np.array([1]), "x.values": np.full(1, 0.1)},
    "wide": {"x.keys": np.array([1]), "x.values": np.ones((1, 2), np.float32)},
    "dense": {"x": np.ones(3, np.float32)},
    "column": {"x": np.ones((3, 1), np.float32)},
    "longer": {"x": np.ones(4, np.float32)},
    "no rows": {"x.keys": np.empty(0, np.int64), "x.values": np.empty(0)},
    "keys": {"x.keys": np.array([1])},
}


@pytest.mark.parametrize(
    ("one", "other", "descriptions"),
    [
        ("float32", "float64", ["float32 of row_width 1", "float64 of row_width 1"]),
        ("float32", "wide", ["float32 of row_width 1", "float32 of row_width 2"]),
        ("float32", "dense", ["float32 of row_width 1", "dense, float32 of shape (3,)"]),
        ("dense", "longer", ["dense, float32 of shape (3,)", "dense, float32 of shape (4,)"]),
        ("dense", "column", ["dense, float32 of shape (3,)", "dense, float32 of shape (3, 1)"]),
    ],
)
def test_merge_of_files_that_differ_is_refused_in_any_order(merge, one, other, descriptions):
    for name in (one, other):
        np.savez(f"{name}.npz", **ROWS[name])
    for files in ([one, other], [other, one]):
        error = merge(*(f"{name}.npz" for name in files), status=1)
        assert error.startswith("sparseagg: tensor 'x' is ")
        assert "--spec" in error
        for name, description in zip((one, other), descriptions):
            assert f"{description} in {name}.npz" in error


def test_merge_takes_bfloat16_as_numpy_writes_it(merge):
    rows = np.array([[1.5, -2], [0.25, 96]], ml_dtypes.bfloat16)
    for name in "cd":
        np.savez(f"{name}.npz", **{"x.keys": np.array([1, 4]), "x.values": rows, "b": rows})
    with np.load("c.npz") as file:
        assert file["b"].dtype == "V2"
    tensors = [{"name": name, "dtype": "bfloat16", "num_rows": n, "row_width": 2} for name, n in (("x", 9), ("b", 2))]
    pathlib.Path("spec.json").write_text(json.dumps({"tensors": tensors}))
    merged = merge("c.npz", "d.npz", "--spec", "spec.json")
    assert merged["x.values"] == merged["b.values"] == [[3, -4], [0.5, 192]]
    pathlib.Path("merged.npz").unlink()
    pathlib.Path("spec.json").write_text(json.dumps({"tensors": [{**tensors[1], "dtype": "float16"}, tensors[0]]}))
    assert "cannot be sent as float16" in merge("c.npz", "--spec", "spec.json", status=1)
    assert "array 'x.values': unknown dtype" in merge("c.npz", status=1)


def test_merge_of_files_without_rows_is_decided_by_the_others(merge):
    for name in ("float32", "no rows"):
        np.savez(f"{name}.npz", **ROWS[name])
    merged = [merge(*files) for files in permutations("no rows.npz", "float32.npz")]
    assert merged == [{"x.keys": [1], "x.values": [1.0]}] * 2
    assert merge("no rows.npz") == {"x.keys": [], "x.values": []}


def test_merge_union_of_keys_with_and_without_values(merge):
    for name in ("float64", "keys"):
        np.savez(f"{name}.npz", **ROWS[name])
    merged = [merge(*files, "--op", "union") for files in permutations("keys.npz", "float64.npz")]
    assert merged == [{"x.keys": [1], "x.counts": [2]}] * 2
    pathlib.Path("merged.npz").unlink()
    assert "keys.npz: tensor 'x': 1 keys without values" in merge("keys.npz", "float64.npz", status=1)


# Names that serve as no client ids: too long, and not in UTF-8. They come in this order.
ODD_NAMES = ["/".join(["0" * 100] * 3) + ".npz", "b\N{LATIN SMALL LETTER E WITH ACUTE}.npz", os.fsdecode(b"b\xff.npz")]


@pytest.mark.parametrize("limit", [[], ["--memory-limit", "200"]])
def test_merge_sums_in_the_order_of_names_whatever_they_are(merge, limit):
    pathlib.Path(ODD_NAMES[0]).parent.mkdir(parents=True)
    weights = dict(zip(ODD_NAMES, ["1e30", "1", "-1e30"]))
    for name, value in weights.items():
        np.savez(name, **{"x.keys": np.array([0]), "x.values": np.array([float(value)])})
    for files in permutations(*ODD_NAMES):
        assert merge(*files, *limit)["x.values"] == [0.0]  # (1e30 + 1) - 1e30


def test_merge_into_a_pipe_that_has_no_name_writes_the_result_alone(merge):
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "sparseagg", "merge", "a.npz", "b.npz", "-o", "/dev/stdout"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    with open(reading, "rb") as pipe:
        written = pipe.read()
    assert (done.returncode, done.stderr) == (0, "bias: 3 rows, dense\nemb: 3 rows, sparse\n")
    with np.load(io.BytesIO(written)) as merged:
        assert merged["emb.keys"].tolist() == [1, 3, 9]


def test_merge_errors_name_files_that_are_not_in_utf8(merge):
    np.savez(ODD_NAMES[-1], **{"emb.keys": np.array([1]), "bias": np.ones(3)})
    assert r"b\udcff.npz: tensor 'emb': 1 keys without values" in merge("a.npz", ODD_NAMES[-1], status=1)


def test_engine_command_says_what_there_is(capsys):
    assert main(["engine"]) == 0
    assert capsys.readouterr().out.startswith("cpu (CPU, ")
