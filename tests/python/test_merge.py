"""`sparseagg merge` on real files, and `sparseagg engine`."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest
import sparseagg as sa
from sparseagg.cli import main

UPDATES = {
    "a": {"emb.keys": np.array([3, 1]), "emb.values": np.array([[1, 2], [3, 4]], np.float32), "bias": np.ones(3)},
    "b": {"emb.keys": np.array([1, 9]), "emb.values": np.array([[5, 6], [7, 8]], np.float32), "bias": np.arange(3.0)},
}


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
        "bias.keys": [0, 1, 2],
        "bias.values": [1, 2, 3],
        "bias.counts": [2, 2, 2],
        "emb.keys": [1, 3, 9],
        "emb.values": [[8, 10], [1, 2], [7, 8]],
        "emb.counts": [2, 1, 1],
    }


def test_merge_order_of_files_leaves_no_trace(merge):
    for name, value in (("c", 1e30), ("d", 1.0), ("e", -1e30)):
        np.savez(f"{name}.npz", **{"x.keys": np.array([0]), "x.values": np.array([value])})
    results = [merge(*files) for files in (("c.npz", "d.npz", "e.npz"), ("e.npz", "c.npz", "d.npz"))]
    assert results[0] == results[1]


def test_merge_takes_options(merge):
    merged = merge("a.npz", "b.npz", "--op", "mean", "--weights", "1,3", "--dimension", "emb=10", "--result", "dense")
    assert merged["emb.keys"] == list(range(10))
    assert merged["emb.values"][1] == [(3 + 3 * 5) / 4, (4 + 3 * 6) / 4]
    assert merged["emb.values"][0] == [0, 0]
    assert merge("a.npz", "b.npz", "--min-contributors", "2")["emb.keys"] == [1]
    assert merge("a.npz", "b.npz", "--op", "max", "--threads", "1")["emb.values"][0] == [5, 6]
    fixed = merge("a.npz", "b.npz", "--numerics", "fixed_point", "--value-bound", "16", "--result-dtype", "float64")
    assert fixed["emb.values"] == [[8, 10], [1, 2], [7, 8]]


def test_merge_union_of_keys_alone(merge):
    np.savez("c.npz", **{"seen.keys": np.array([5, 1])})
    np.savez("d.npz", **{"seen.keys": np.array([5])})
    assert merge("c.npz", "d.npz", "--op", "union") == {"seen.keys": [1, 5], "seen.counts": [1, 2]}


def test_merge_unsigned_sums_say_modular(merge):
    np.savez("c.npz", **{"m.keys": np.array([1]), "m.values": np.array([2**32 - 1], np.uint32)})
    np.savez("d.npz", **{"m.keys": np.array([1]), "m.values": np.array([2], np.uint32)})
    assert "modular" in merge("c.npz", "d.npz", status=1)
    assert merge("c.npz", "d.npz", "--modular")["m.values"] == [1]


def test_merge_takes_a_spec_in_json(merge):
    spec = {
        "tensors": [
            {"name": "emb", "dtype": "DTYPE_FLOAT32", "dimension": 10, "width": 2},
            {"name": "bias", "dtype": "DTYPE_FLOAT64", "dimension": 3, "layout": "TENSOR_LAYOUT_DENSE"},
        ],
        "aggregation": {"op": "OP_COORDINATE_MEAN"},
    }
    pathlib.Path("spec.json").write_text(json.dumps(spec))
    merged = merge("a.npz", "b.npz", "--spec", "spec.json")
    assert merged["emb.values"] == [[4, 5], [1, 2], [7, 8]]
    assert merged["bias.values"] == [0.5, 1, 1.5]
    pathlib.Path("merged.npz").unlink()
    assert "--op" in merge("a.npz", "b.npz", "--spec", "spec.json", "--op", "sum", status=1)
    pathlib.Path("spec.json").write_text("{")
    assert "spec.json" in merge("a.npz", "--spec", "spec.json", status=1)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["a.npz", "a.npz"], "'a.npz' has a submission already"),
        (["a.npz", "missing.npz"], "missing.npz"),
        (["a.npz", "--weights", "1,2"], "2 weights for 1 files"),
        (["a.npz", "--weights", "x"], "'x'"),
        (["a.npz", "--dimension", "ten"], "'ten'"),
        (["a.npz", "--dimension", "other=3"], "other"),
        (["a.npz", "b.npz", "--dimension", "emb=9"], "b.npz: tensor 'emb', position 1: key 9"),
        (["a.npz", "--weights", "-1"], "weight -1 is negative"),
        (["bare.npz"], "bare.npz has x.values, but no x.keys"),
    ],
)
def test_merge_errors_name_file_place_and_value(merge, arguments, text):
    np.savez("bare.npz", **{"x.values": np.ones(2)})
    assert text in merge(*arguments, status=1)


def test_merge_gives_what_a_server_gives(merge, client):
    np.savez("c.npz", **{"emb.keys": np.array([7, 7]), "emb.values": np.full((2, 2), 0.1, np.float32)})
    spec = sa.RoundSpec([sa.TensorSpec("emb", "float32", 0, 2), sa.TensorSpec("bias", "float64", 3, layout="dense")])
    rows = {
        name: {"emb": (arrays["emb.keys"], arrays["emb.values"]), "bias": arrays["bias"]}
        for name, arrays in UPDATES.items()
    }
    expected = client.aggregate(rows, spec)["emb"]
    merged = merge("b.npz", "a.npz")
    assert merged["emb.keys"] == expected.keys.tolist()
    assert merged["emb.values"] == expected.values.tolist()


def test_engine_command_says_what_there_is(capsys):
    assert main(["engine"]) == 0
    assert capsys.readouterr().out.startswith("cpu (CPU, ")
