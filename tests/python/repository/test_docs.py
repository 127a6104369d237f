"""What docs/ shows is true: the bytes of wire-format.md, the flags and events of reference/."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
import sparseagg as sa
from real_server import REPOSITORY, ServerProcess, server_binary
from sparseagg._internal.commands.cli import main
from sparseagg._internal.commands.rounds import read_spec
from sparseagg.v1 import aggregation_pb2 as pb

DOCS = REPOSITORY / "docs"


def test_wire_format_example_parses() -> None:
    text = (DOCS / "wire-format.md").read_text(encoding="utf-8")
    block = text.split("<!-- example chunk -->\n```\n")[1].split("```")[0]
    # Each line begins with hexadecimal pairs; what follows explains them.
    pairs = [re.match(r"\s*((?:[0-9a-f]{2}(?: |$))*)", line)[1] for line in block.splitlines()]
    data = bytes.fromhex("".join(pairs))

    chunk = pb.UpdateChunk.FromString(data)

    assert (chunk.round, chunk.client_id, chunk.submission_id) == ("rounds/r1", "a", "a-1")
    assert (chunk.sequence, chunk.last, chunk.weight) == (0, True, 12.0)
    (part,) = chunk.slices
    assert (part.tensor, part.num_keys) == ("emb", 2)
    assert (part.key_encoding, part.value_encoding) == (pb.KEY_ENCODING_U32, pb.VALUE_ENCODING_FLOAT32)
    assert np.frombuffer(part.keys, "<u4").tolist() == [3, 17]
    assert np.frombuffer(part.values, "<f4").reshape(-1, 2).tolist() == [[1.0, -2.0], [0.5, 0.0]]
    assert chunk.SerializeToString(deterministic=True) == data


def test_nothing_advises_to_install_a_package_that_is_not_published() -> None:
    """Until ``sparseagg`` is on PyPI, its wheels come from `make wheels` and `make cuda-wheel`."""
    files = subprocess.run(
        ["git", "ls-files", "*.md", "*.py", "*.cc", "*.h", "*.js", "*.toml", "*.yaml"],
        check=True,
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
    ).stdout.split()
    advice = re.compile(r"pip install (?:-\S+ )*['\"]?sparseagg")
    advised = [name for name in files if advice.search((REPOSITORY / name).read_text(encoding="utf-8"))]
    assert [name for name in advised if name != "CHANGELOG.md"] == []


def test_reference_documents_every_event_of_the_log() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (DOCS.parent / "service").rglob("*.cc"))
    events = set(re.findall(r'\bLog\([^"{]*"(\w+)"', sources))
    text = (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8")
    table = text.partition("| event | fields |")[2].partition("\n\n")[0]
    assert len(events) > 10
    assert events - set(re.findall(r"`(\w+)`", table)) == set()


def test_reference_documents_every_flag() -> None:
    text = (DOCS / "reference" / "flags.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `--")]
    documented = [flag for row in rows for flag in re.findall(r"--[a-z-]+", row)]
    assert len(documented) == len(set(documented))

    output = subprocess.run([server_binary(), "--help"], check=True, capture_output=True, text=True).stdout
    # The first of each line's names; a second is an alias.
    offered = re.findall(r"^ +(?:-[a-z],)?(--[a-z-]+)", output, re.MULTILINE)
    assert sorted(documented) == sorted(offered)


SPEC = sa.RoundSpec(
    [
        sa.TensorSpec("embedding", "float32", shape=(50_000, 16)),
        sa.TensorSpec("bias", "float64", shape=(3,), layout="dense", op="mean"),
    ],
    op="coordinate_mean",
    weighting="by_weight",
    return_counts=True,
    min_submissions=2,
    max_submissions=1000,
    deadline=600,
)


def section(title: str) -> str:
    text = (DOCS / "reference" / "rounds.md").read_text(encoding="utf-8")
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.fixture
def spec_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("spec.json")
    (example,) = re.findall(r"^```json\n(.*?)^```$", section("A round's spec in JSON"), re.MULTILINE | re.DOTALL)
    path.write_text(example, encoding="utf-8")
    return path


def test_reference_example_of_a_spec_is_what_python_says(spec_file: Path) -> None:
    assert read_spec(spec_file)._to_proto() == SPEC._to_proto()


def test_reference_example_of_a_spec_merges_files(spec_file: Path) -> None:
    for name, value in (("a.npz", 1.0), ("b.npz", 4.0)):
        rows = np.full((1, 16), value, np.float32)
        np.savez(name, **{"embedding.keys": [7], "embedding.values": rows, "bias": np.full(3, value)})
    command = ["merge", "b.npz", "a.npz", "--spec", str(spec_file), "--weights", "1,2", "-o", "merged.npz"]
    assert main(command) == 0
    with np.load("merged.npz") as merged:
        assert merged["embedding.values"].tolist() == [[2.0] * 16]
        assert merged["embedding.counts"].tolist() == [2]
        assert merged["bias"].tolist() == [2.0] * 3


def test_reference_example_of_a_round_by_command_reads_its_result(
    server: ServerProcess, client: sa.Client, spec_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = section("A round by command")
    (script,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    exec(compile(script, "rounds.md", "exec"), {})
    (commands,) = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for command in commands.splitlines():
        program, *arguments = shlex.split(command, comments=True)
        assert program == "sparseagg"
        assert main([*arguments, "--address", server.address]) == 0, command
    with np.load("merged.npz") as merged:
        assert merged["embedding.keys"].tolist() == [7, 9]
        assert merged["embedding.values"].tolist() == [[1.0] * 16, [3.25] * 16]
        assert merged["embedding.counts"].tolist() == [1, 2]
        assert "bias.values" not in merged
    with pytest.raises(sa.errors.NotFoundError):
        client.get_round("round-7")
    assert "embedding: 2 rows, sparse" in capsys.readouterr().out


def test_reference_names_the_values_of_every_enum_of_a_spec() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", section("A round's spec in JSON"), re.MULTILINE)
    documented = {field: re.findall(r"`(\w+)`", values) for field, values in rows}
    fields = [*pb.TensorSpec.DESCRIPTOR.fields, *pb.AggregationSpec.DESCRIPTOR.fields]
    offered = {}
    for field in fields:
        if field.enum_type is not None:
            prefix = field.enum_type.values_by_number[0].name[: -len("UNSPECIFIED")]
            offered[field.json_name] = [each.name[len(prefix) :].lower() for each in field.enum_type.values][1:]
    assert documented.pop("resultDtype") == ["float32", "float64"]  # of all dtypes
    assert offered.pop("resultDtype") == documented["dtype"]
    assert documented == offered


@pytest.mark.parametrize("command", [["rounds", "create"], ["merge"]])
def test_help_of_commands_that_take_a_spec_shows_one(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "docs/reference/rounds.md" in text
    path = tmp_path / "spec.json"
    path.write_text(re.search(r"such as (\{.*?\});", text)[1])
    assert read_spec(path).tensors


@pytest.fixture
def integrations() -> dict:
    text = (DOCS / "integrations.md").read_text(encoding="utf-8")
    functions: dict = {}
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(compile(block, "integrations.md", "exec"), functions)
    return functions


def test_integrations_dense_is_what_fed_avg_computes(integrations: dict) -> None:
    rng = np.random.default_rng(5)
    shapes = {"conv": (4, 3, 2), "bias": (5,), "scale": (), "none": (0, 3), "narrow": (3, 0)}
    models = [[rng.standard_normal(shape).astype(np.float32) for shape in shapes.values()] for _ in range(3)]
    examples = [10, 20, 70]
    merged = integrations["fed_avg"](list(shapes), list(zip([7, "b", "c"], models, examples)))
    for position, array in enumerate(merged):
        expected = sum(n * np.asarray(model[position], np.float64) for model, n in zip(models, examples)) / 100
        assert array.shape == expected.shape
        np.testing.assert_allclose(array, expected, rtol=1e-6)


def test_integrations_clients_upload_by_handle(integrations: dict, client: sa.Client) -> None:
    opened = client.create_round(sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=10)], weighting="by_weight"))
    upload = integrations["upload"]
    assert upload(opened.handle, 1, ([1], [1.0]), 2) == "counted"
    assert upload(opened.handle, 1, ([1], [1.0]), 2) == "counted"
    assert upload(opened.handle, 1, ([1], [5.0]), 2) == "repeated"
    opened.finish()
    assert upload(opened.handle, 2, ([1], [1.0]), 2) == "late"
    opened.delete()
    assert upload(opened.handle, 2, ([1], [1.0]), 2) == "late"


def test_integrations_model_goes_down_as_changed_rows(integrations: dict, client: sa.Client) -> None:
    arrays = {"w": np.zeros((10, 2), np.float32)}
    model = integrations["begin"](client, arrays)
    history = integrations["RowHistory"]({"w": 10})
    for version in (1, 2):
        merged = sa.aggregate(
            [([version], np.ones((1, 2)))], sa.RoundSpec([sa.TensorSpec("w", "float32", num_rows=10, row_width=2)])
        )["w"]
        integrations["publish_merged"](model, version, arrays, "w", merged)
        history.record(version, {"w": merged.keys})
    mine = {"w": np.zeros((10, 2), np.float32)}
    assert client.model("demo").catch_up(mine, since=0) == 2
    assert mine["w"].tolist() == arrays["w"].tolist()
    keys, rows = integrations["rows_for"](history, "w", arrays["w"], 1)
    assert (keys.tolist(), rows.tolist()) == ([2], [[1.0, 1.0]])
    assert integrations["rows_for"](history, "w", arrays["w"], -1) is arrays["w"]


@pytest.mark.parametrize("op", ["mean", "coordinate_mean"])
def test_integrations_sparse_rows_go_out_and_back(integrations: dict, client: sa.Client, op: str) -> None:
    before = np.arange(12, dtype=np.float32).reshape(6, 2)
    one, other = before.copy(), before.copy()
    one[[1, 4]] += 4
    other[4] -= 8
    opened = client.create_round(integrations["sparse_spec"]("emb", before, op))
    for name, after, weight in (("a", one, 3), ("b", other, 1)):
        opened.submit(name, {"emb": integrations["changed_rows"](before, after)}, weight)
    expected = before.copy()
    expected[1] += 3 if op == "mean" else 4
    expected[4] += 1
    assert integrations["apply"](before, opened.finish()["emb"]).tolist() == expected.tolist()


def test_tensors_examples_run() -> None:
    text = (DOCS / "tensors.md").read_text(encoding="utf-8")
    found: dict = {}
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(compile(block, "tensors.md", "exec"), found)
    assert {name: array.shape for name, array in found["weights"].items()} == {
        "embedding": (50_000, 8),
        "bias": (10, 1),
        "scale": (),
    }
    assert found["weights"]["embedding"][7].tolist() == [np.float32(-0.1)] * 8
    assert not found["weights"]["embedding"][8].any()
    assert found["weights"]["scale"] == np.float32(0.95)
    assert (found["result"].dense().shape, len(found["result"])) == ((100, 20), 20)


COMPATIBILITY = (REPOSITORY / "docs" / "compatibility.md").read_text(encoding="utf-8")


def test_compatibility_page_has_the_bounds_of_the_package():
    project = (REPOSITORY / "python" / "pyproject.toml").read_text(encoding="utf-8")
    bounds = dict(re.findall(r'"([\w-]+)>=([\d.]+)"', re.search(r"^dependencies = (.*)$", project, re.MULTILINE)[1]))
    assert set(bounds) == {"numpy", "grpcio", "protobuf", "rich", "shtab"}
    for name, bound in bounds.items():
        assert re.search(
            rf"^\| {name}\b[^|]*\| {re.escape(bound)} or later\b", COMPATIBILITY, re.MULTILINE | re.IGNORECASE
        ), name
    oldest = re.search(r'^requires-python = ">=(.*)"$', project, re.MULTILINE)[1]
    assert f"| Python | {oldest} to " in COMPATIBILITY


def test_compatibility_page_names_tests_that_there_are():
    named = re.findall(r"`((?:tests|scripts|python|deploy)/[\w./-]+)`", COMPATIBILITY)
    assert len(named) > 5
    assert [path for path in named if not (REPOSITORY / path).exists()] == []


def test_streams_example_runs(capsys):
    text = (REPOSITORY / "docs/streams.md").read_text(encoding="utf-8")
    [example] = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    exec(compile(example, "docs/streams.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == ["1 3 full [7 9]", "2 1 call [7 9]"]
