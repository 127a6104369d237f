"""The command: what it prints, writes and returns."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys

import numpy as np
import pytest
import sparseagg
from sparseagg._internal.client.connection import Connection
from sparseagg._internal.commands import cli
from sparseagg._internal.commands.cli import main

SPEC = {
    "tensors": [{"name": "emb.weight", "dtype": "DTYPE_FLOAT32", "num_rows": 10, "row_width": 2}],
    "aggregation": {"op": "OP_MEAN", "returnCounts": True},
}


@pytest.fixture
def run(server, capsys):
    def call(*arguments: str, status: int = 0) -> str:
        assert main([*arguments, "--address", server.address]) == status
        captured = capsys.readouterr()
        return captured.err if status else captured.out

    return call


def test_cli_round_from_create_to_result(run, tmp_path):
    spec, update, merged = tmp_path / "spec.json", tmp_path / "update.npz", tmp_path / "merged.npz"
    spec.write_text(json.dumps(SPEC))
    np.savez(update, **{"emb.weight.keys": np.array([3, 1]), "emb.weight.values": np.array([[1.0, 2.0], [3.0, 4.0]])})
    spoiled = tmp_path / "spoiled.npz"
    np.savez(spoiled, **{"emb.weight.keys": np.array([3]), "emb.weight.values": np.array([[np.nan, 2.0]])})

    round_id = run("rounds", "create", str(spec), "--id", "from-cli").strip()
    assert round_id == "from-cli"
    assert run("submit", round_id, "a", str(update)).startswith("2 tuples, 24 bytes\n")
    assert "counts once" in run("submit", round_id, "a", str(update))
    assert "not finite" in run("submit", round_id, "b", str(spoiled), status=1)
    assert any(line.split()[:5] == ["from-cli", "open", "1", "1", "2"] for line in run("rounds", "list").splitlines())
    assert run("rounds", "close", round_id) == "emb.weight: 2 rows, sparse\n"
    facts, sizes, stages, tensors, refusals = run("rounds", "show", round_id).split("\n\n")
    assert re.search(r"^state +done$", facts, re.MULTILINE)
    assert re.search(r"^timeline +open [\d.]+ ms, finish [\d.]+ ms, longest \w+$", facts, re.MULTILINE)
    assert [line.split() for line in sizes.splitlines()] == [
        ["SUBMISSIONS", "REFUSED", "TUPLES", "MB"],
        ["1", "1", "2", "0.0"],
    ]
    assert [line.split()[0] for line in stages.splitlines()] == [
        "STAGE", "receive", "decode", "prepare", "merge", "encode",
    ]  # fmt: skip
    assert len({len(line) for line in stages.splitlines()}) == 1  # numbers end below each other
    assert re.search(r"^emb.weight +2  sparse  \w+ 100 % of 2 tuples \(expected", tensors, re.MULTILINE)
    assert re.search(r"^b +\d{4}-\d\d-\d\d \S+ UTC  INVALID_ARGUMENT  ", refusals, re.MULTILINE)
    run("result", round_id, "-o", str(merged))
    with np.load(merged) as file:
        assert file["emb.weight.keys"].tolist() == [1, 3]
        assert file["emb.weight.values"].tolist() == [[3.0, 4.0], [1.0, 2.0]]
        assert file["emb.weight.counts"].tolist() == [1, 1]
    run("rounds", "delete", round_id)
    assert "from-cli" in run("rounds", "show", round_id, status=1)


def test_cli_result_may_be_a_part(run, tmp_path, client):
    tensors = [
        sparseagg.TensorSpec("emb", "float32", num_rows=10),
        sparseagg.TensorSpec("bias", "float64", num_rows=4, layout="dense"),
    ]
    opened = client.create_round(sparseagg.RoundSpec(tensors))
    opened.submit("a", {"emb": ([1, 3, 7], [1.0, 2.0, 3.0]), "bias": np.arange(4.0)})
    opened.finish()
    file = tmp_path / "part.npz"
    for arguments, expected in (
        ([], {"emb.keys": [1, 3, 7], "emb.values": [1, 2, 3], "bias": [0, 1, 2, 3]}),
        (["--tensor", "bias"], {"bias": [0, 1, 2, 3]}),
        (["--tensor", "emb", "--keys", "2:7"], {"emb.keys": [3], "emb.values": [2]}),
        (["--tensor", "emb", "--tensor", "bias", "--keys", "3:"], None),
        (["--tensor", "bias", "--keys", ":2"], {"bias.keys": [0, 1], "bias.values": [0, 1]}),
    ):
        run("result", opened.name, "-o", str(file), *arguments)
        with np.load(file) as arrays:
            found = {name: arrays[name].tolist() for name in arrays.files}
        if expected is None:
            expected = {"emb.keys": [3, 7], "emb.values": [2, 3], "bias.keys": [3], "bias.values": [3]}
        assert found == expected
    for keys in ("7", "a:b", "1:2:3"):
        assert f"--keys must be [BEGIN]:[END], got {keys!r}" in run(
            "result", opened.name, "-o", str(file), "--keys", keys, status=1
        )
    assert "'other'" in run("result", opened.name, "-o", str(file), "--tensor", "other", status=1)


def test_cli_close_of_a_round_without_result_says_why(run, tmp_path):
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({**SPEC, "minSubmissions": "1"}))
    round_id = run("rounds", "create", str(spec)).strip()
    assert f"rounds/{round_id} failed: " in run("rounds", "close", round_id, status=1)
    run("rounds", "delete", round_id)
    cancelled = run("rounds", "create", str(spec)).strip()
    run("rounds", "cancel", cancelled)
    assert "cancelled: by command" in run("rounds", "close", cancelled, status=1)


def test_cli_info_has_every_limit(run):
    text = run("info")
    for name in ("version", "engine", "max_message_bytes", "max_submissions", "upload_timeout"):
        assert name in text
    assert re.search(r"^key_encodings +u32, u64, .*delta_bitpacked", text, re.MULTILINE)
    assert re.search(r"^value_encodings +.*float32, .*int8_scaled", text, re.MULTILINE)
    assert re.search(r"^start_time +20\d\d-\d\d-\d\dT", text, re.MULTILINE)
    assert re.search(r"^memory_in_use +[\d.]+ MiB$", text, re.MULTILINE)
    assert re.search(r"^features *$", text, re.MULTILINE) is None


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"other": np.ones(2)}, "other"),
        ({"emb.weight.values": np.ones((1, 2))}, "emb.weight.keys"),
        ({"emb.weight.keys": np.array([10]), "emb.weight.values": np.ones((1, 2))}, "key 10"),
    ],
)
def test_cli_bad_update_is_an_error(run, tmp_path, arrays, text):
    spec, update = tmp_path / "spec.json", tmp_path / "update.npz"
    spec.write_text(json.dumps(SPEC))
    np.savez(update, **arrays)
    round_id = run("rounds", "create", str(spec)).strip()
    assert text in run("submit", round_id, "a", str(update), status=1)
    spec.write_text('{"tensors": [{"nme": "x"}]}')
    assert "spec.json" in run("rounds", "create", str(spec), status=1)


def test_cli_as_a_command_knows_its_version():
    done = subprocess.run([sys.executable, "-m", "sparseagg", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"sparseagg {sparseagg.__version__}\n"
    assert importlib.metadata.version("sparseagg") == sparseagg.__version__


@pytest.mark.parametrize(("given", "address"), [("", "127.0.0.1:8001"), ("localhost:9", "localhost:9")])
def test_cli_address_of_the_environment_counts_where_there_is_one(monkeypatch, given, address):
    monkeypatch.setenv("SPARSEAGG_ADDRESS", given)
    asked = []
    monkeypatch.setattr(cli, "_info", lambda arguments: asked.append(arguments.address) or 0)
    assert main(["info"]) == 0
    assert asked == [address]


def test_cli_interrupted_says_nothing(monkeypatch, capsys):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_engine", interrupted)
    assert main(["engine"]) == 130
    assert capsys.readouterr() == ("", "")


def test_cli_submits_and_reads_as_told(run, tmp_path, client, monkeypatch):
    resumable = []
    submit = Connection.submit
    monkeypatch.setattr(Connection, "submit", lambda *given: resumable.append(given[2]) or submit(*given))
    opened = client.create_round(sparseagg.RoundSpec([sparseagg.TensorSpec("emb", "float32", num_rows=10)]))
    update, merged = tmp_path / "update.npz", tmp_path / "merged.npz"
    np.savez(update, **{"emb.keys": np.array([1, 3]), "emb.values": np.array([1 + 2**-20, 3], np.float32)})
    told = ["--value-encoding", "float16", "--key-encoding", "plain", "--submission-id", "mine", "--timeout", "60"]
    run("submit", opened.name, "a", str(update), *told)
    again = opened.submit("a", {"emb": ([1, 3], [1.0, 3.0])}, submission_id="mine", value_encoding="float16")
    assert again.duplicate, "of the same id and values"
    run("submit", opened.name, "b", str(update))
    assert resumable == [True, False, True], "the command's have an id to go on under"
    run("rounds", "close", opened.name, "--timeout", "60")
    run("result", opened.name, "-o", str(merged), "--value-encoding", "bfloat16", "--timeout", "60")
    with np.load(merged) as arrays:
        assert arrays["emb.values"].tolist() == [2, 6]


def test_listing_commands_print_json_for_programs(run, tmp_path, capsys):
    spec, tokens = tmp_path / "spec.json", tmp_path / "tokens"
    spec.write_text(json.dumps(SPEC))
    run("rounds", "create", str(spec), "--id", "in-json")
    assert main(["engine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["engine"] == "cpu"
    assert json.loads(run("info", "--json"))["limits"]["max_page_bytes"] > 0
    shown = json.loads(run("rounds", "show", "in-json", "--json"))
    (listed,) = (each for each in json.loads(run("rounds", "list", "--json")) if each["name"] == "rounds/in-json")
    assert shown.pop("timeline").keys() == listed.pop("timeline").keys()  # whose times go on
    assert shown == listed
    assert (shown["name"], shown["state"], shown["end_time"]) == ("rounds/in-json", "open", None)
    again = tmp_path / "again.json"  # a spec that `rounds create` reads
    again.write_text(json.dumps(shown["spec"]))
    run("rounds", "create", str(again), "--id", "in-json")
    run("rounds", "delete", "in-json")
    assert main(["keys", "create", str(tokens), "--role", "observer", "--days", "1"]) == 0
    capsys.readouterr()
    assert main(["keys", "list", str(tokens), "--json"]) == 0
    (token,) = json.loads(capsys.readouterr().out)
    assert (token["role"], token["tenant"], sorted(token)) == (
        "observer",
        "default",
        ["expires", "id", "name", "role", "tenant"],
    )


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["rond"], "rounds"),
        (["rounds", "lst"], "list"),
        (["info", "--adress", "x"], "--address"),
        (["submit", "r", "c", "f", "--value-encoding=float61"], "float16"),
    ],
)
def test_wrong_words_get_the_nearest_right_one(words, meant, capsys):
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert f"; did you mean {meant}?" in capsys.readouterr().err


def test_an_option_of_another_command_is_refused_with_this_ones_usage(capsys):
    with pytest.raises(SystemExit) as end:
        main(["rounds", "list", "--server", "x:1"])
    assert end.value.code == 2
    text = capsys.readouterr().err
    assert text.startswith("usage: sparseagg rounds list ")
    assert text.endswith("error: unrecognized arguments: --server x:1\n")
