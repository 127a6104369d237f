"""The demo in a small size: it trains, checks itself, and says so."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import sparseagg as sa
from real_server import server_binary
from sparseagg._internal.commands.cli import main
from sparseagg._internal.commands.demo import corpus, model
from sparseagg._internal.commands.demo.run import Options, run

WORDS = ["the", "a", "fox", "dog", "jumps", "over", "lazy", "quick", "brown", "and", "then", "it", "sleeps", "under"]


def run_demo(out: pathlib.Path, *flags: str) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, "-m", "sparseagg", "demo", "--out", str(out), *flags], capture_output=True, text=True
    )
    print(done.stdout, done.stderr)
    return done.returncode, (done.stderr if done.returncode else done.stdout).splitlines()


def write_texts(folder: pathlib.Path, count: int) -> None:
    rng = np.random.default_rng(7)
    for i in range(count):
        path = folder / f"part-{i % 3}" / f"{i}.txt"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(" ".join(rng.choice(WORDS, 200)) + f" only-{i}\n")
    (folder / "binary").write_bytes(b"\0\1\2" * 100)


def test_demo_quick_on_the_standard_library_agrees(tmp_path):
    status, lines = run_demo(tmp_path, "--server", server_binary(), "--quick")
    assert status == 0
    summary = json.loads(lines[-1])
    assert summary["rounds"] == 3
    assert summary["clients"] == 40
    assert summary["tuples"] > 1000
    assert summary["reference_equal"] is True
    assert summary["loss_last"] < summary["loss_first"]
    assert summary["bytes_sparse"] < summary["bytes_dense"]
    assert summary["backend"] == "cpu"
    assert any("keys out" in line for line in lines)
    assert f"time        {summary['seconds']} s, from the start of the server to its end" in lines


def test_demo_learns_the_same_on_every_server(tmp_path, server, monkeypatch):
    """On the installed one, on three of it, and on one that runs."""
    write_texts(tmp_path / "texts", 30)
    monkeypatch.setenv("SPARSEAGG_SERVER", server_binary())
    losses = set()
    for way in ([], ["--servers", "3"], ["--address", server.address]):
        flags = ["--corpus", str(tmp_path / "texts"), "--rounds", "2", "--pairs", "100"]
        status, lines = run_demo(tmp_path / f"out{len(way)}", *flags, *way)
        assert status == 0
        summary = json.loads(lines[-1])
        assert (summary["clients"], summary["rounds"], summary["reference_equal"]) == (29, 2, True)
        losses.add(summary["loss_last"])
    assert len(losses) == 1
    assert "listening" in (tmp_path / "out0" / "server" / "server.log").read_text()


@pytest.mark.parametrize(
    "flags",
    [
        ["--server", "/no/such/server"],
        ["--server", "/bin/true"],
        ["--corpus", "/no/such/corpus"],
        ["--server", "/bin/false", "--quick"],
    ],
)
def test_demo_that_cannot_run_fails(tmp_path, flags):
    status, lines = run_demo(tmp_path, *flags)
    assert status == 1
    assert lines[0].startswith("sparseagg: ")


@pytest.mark.parametrize("rounds", ["0", "-1"])
def test_demo_of_no_rounds_is_refused(tmp_path, server, capsys, rounds):
    write_texts(tmp_path / "texts", 30)
    flags = ["--address", server.address, "--corpus", str(tmp_path / "texts"), "--out", str(tmp_path / "out")]
    assert main(["demo", *flags, "--rounds", rounds]) == 1
    assert capsys.readouterr().err == f"sparseagg: demo: rounds must be a number from 1 on, got {rounds}\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("flags", [["--servers", "0"], ["--servers", "2", "--address"]])
def test_demo_of_impossible_servers_is_refused(tmp_path, server, capsys, flags):
    address = [server.address] if flags[-1] == "--address" else []
    assert main(["demo", "--out", str(tmp_path / "out"), *flags, *address]) == 1
    assert capsys.readouterr().err.startswith("sparseagg: demo: servers ")
    assert not (tmp_path / "out").exists()


def test_demo_whose_loss_rises_fails(tmp_path, server, capsys):
    write_texts(tmp_path / "texts", 30)
    options = Options(address=server.address, corpus=str(tmp_path / "texts"), out=str(tmp_path), rounds=2)
    assert run(dataclasses.replace(options, learning_rate=-1.0)) == 1
    captured = capsys.readouterr()
    assert "the loss did not fall" in captured.err
    assert json.loads(captured.out.splitlines()[-1])["rounds"] == 2


def test_demo_that_differs_from_the_reference_fails(tmp_path, server, capsys, monkeypatch):
    write_texts(tmp_path / "texts", 30)
    weighted_mean = model.weighted_mean

    def off_by_one(updates, name, *shape):
        keys, rows, counts = weighted_mean(updates, name, *shape)
        counts[0] += name == "output"
        return keys, rows, counts

    monkeypatch.setattr(model, "weighted_mean", off_by_one)
    options = Options(address=server.address, corpus=str(tmp_path / "texts"), out=str(tmp_path), rounds=2)
    assert run(options) == 1
    captured = capsys.readouterr()
    assert "round 2 differs from the reference: output: other counts" in captured.err
    assert json.loads(captured.out.splitlines()[-1])["reference_equal"] is False


def test_check_finds_every_kind_of_difference():
    updates = {"a": ({"v": (np.array([1, 2]), np.array([[1], [2]], np.float32))}, 1.0)}

    def result(**changes):
        good = {"keys": np.array([1, 2], np.uint32), "values": np.array([1, 2], np.float32)}
        good.update(counts=np.array([1, 1], np.uint32), weights=None)
        tensor = sa.TensorResult("v", "sparse", "float32", 10, 1, **{**good, **changes})
        return {"v": tensor}

    assert model.differences(updates, result()) == []
    for changes, word in (
        ({"keys": np.array([1, 3], np.uint32)}, "keys"),
        ({"values": np.nextafter(np.array([1, 2], np.float32), np.float32(9))}, "values"),
        ({"counts": np.array([1, 2], np.uint32)}, "counts"),
    ):
        (difference,) = model.differences(updates, result(**changes))
        assert word in difference


def test_corpus_play_gathers_speeches(tmp_path):
    play = tmp_path / "play.txt"
    play.write_text("First Citizen:\nBefore we proceed, hear me.\n\nALL:\nSpeak!\n\nFirst Citizen:\nNote: resolved\n")
    texts = {text.name: text.tokens for text in corpus.load_play(play)}
    assert texts == {
        "First Citizen": ["Before", "we", "proceed,", "hear", "me.", "Note:", "resolved"],
        "ALL": ["Speak!"],
    }


def test_corpus_folder_skips_what_is_no_text(tmp_path):
    write_texts(tmp_path, 4)
    assert [text.name for text in corpus.load_directory(tmp_path)] == [f"part-{i % 3}/{i}.txt" for i in (0, 3, 1, 2)]
    with pytest.raises(ValueError, match="at least 2"):
        corpus.load(str(tmp_path / "part-1"))


def test_vocabulary_keeps_what_two_clients_share(client):
    texts = [
        corpus.Text("a", ["x", "y", "y", "secret"]),
        corpus.Text("b", ["y", "x", "y"]),
        corpus.Text("c", ["z", "z"]),
        corpus.Text("d", ["z", "mine"]),
    ]
    learned, info, shared = corpus.learn_vocabulary(client, texts, 2, concurrency=2)
    assert (len(learned), shared, info.num_tuples) == (2, 3, 8)
    assert learned.counts.tolist() == [4, 3]  # y, z
    assert learned.encode(["secret", "z", "y", "x", "y"]).tolist() == [1, 0, 0]
    with pytest.raises(ValueError, match="share"):
        corpus.learn_vocabulary(client, texts[:1], 2, concurrency=1)
