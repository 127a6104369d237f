"""scripts/test_matrix.py: what it tries, and what it writes; docs/compatibility.md: the bounds it names."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import sparseagg as sa
from real_server import REPOSITORY, server_binary

WHEEL = Path("sparseagg-0.1.0-py3-none-any.whl")


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"loaded_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def matrix(tmp_path, monkeypatch) -> ModuleType:
    """The script, with a page and a JSON file of its own."""
    module = load(REPOSITORY / "scripts" / "test_matrix.py")
    monkeypatch.setattr(module, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(module, "TABLE", tmp_path / "table.json")
    module.PAGE.write_text(f"before\n{module.BEGIN}\nold\n{module.END}\nafter\n", encoding="utf-8")
    return module


def result(matrix, python="3.11", protobuf="5", age="newest", outcome="works", reason="", date="2026-01-02"):
    versions = {"protobuf": f"{protobuf}.1.2", "numpy": "2.0", "grpcio": "1.60"} if outcome == "works" else {}
    return matrix.Result(python, protobuf, age, outcome, reason, versions, date)


@pytest.mark.parametrize("first", range(6))
@pytest.mark.parametrize("count", range(1, 6))
def test_matrix_finds_the_oldest_version_with_a_wheel(matrix, count, first):
    versions = [str(number) for number in range(count)]
    tried = []
    found = matrix.first_that_installs(versions, lambda version: tried.append(version) or int(version) >= first)
    assert found == (str(first) if first < count else None)
    assert len(tried) <= 4


def test_matrix_pins_no_version_below_the_bound(matrix, monkeypatch):
    asked = []

    def run(*command, **_):
        if "index" in command:
            return subprocess.CompletedProcess(
                command, 0, "numpy (1.10.0)\nAvailable versions: 1.10.0, 1.9.2, 1.8\n", ""
            )
        asked.append(command[-1])
        return subprocess.CompletedProcess(command, 0 if command[-1] == "numpy==1.10.0" else 1, "", "no wheel")

    monkeypatch.setattr(matrix, "run", run)
    assert matrix.oldest_pin("python", "numpy", "1.9") == "numpy==1.10.0"
    assert set(asked) == {"numpy==1.10.0", "numpy==1.9.2"}
    assert matrix.oldest_pin("python", "numpy", "1.11") == "numpy>=1.11"


def test_matrix_reads_the_bounds_of_the_wheel(matrix, tmp_path):
    requires = ["numpy>=1.23", "protobuf>=3.20.3", 'rich>=12; extra == "top"']
    with zipfile.ZipFile(tmp_path / WHEEL, "w") as archive:
        text = "Name: sparseagg\n" + "".join(f"Requires-Dist: {each}\n" for each in requires)
        archive.writestr("sparseagg-0.1.0.dist-info/METADATA", text)
    assert matrix.bounds_of(tmp_path / WHEEL) == {"numpy": "1.23", "protobuf": "3.20.3"}


def test_matrix_finds_no_python_that_is_a_shim_of_nothing(matrix, tmp_path, monkeypatch):
    shim = tmp_path / "python3.11"
    shim.write_text("#!/bin/sh\nexit 127\n", encoding="utf-8")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert matrix.find_python("3.11") is None
    ours = tmp_path / ".pyenv" / "versions"
    for patch, line in ((2, "echo 3.11"), (10, "echo 3.11"), (9, "echo 3.11")):
        path = ours / f"3.11.{patch}" / "bin" / "python"
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
        path.chmod(0o755)
    assert matrix.find_python("3.11") == str(ours / "3.11.10" / "bin" / "python")
    shim.write_text("#!/bin/sh\necho 3.12\n", encoding="utf-8")
    assert matrix.find_python("3.11") == str(ours / "3.11.10" / "bin" / "python"), "not another version's"


@pytest.fixture
def without_pip(matrix, monkeypatch):
    """Environments that are this interpreter's, into which pip installs nothing."""
    monkeypatch.setattr(matrix, "virtual_environment", lambda python: contextlib.nullcontext(sys.executable))
    monkeypatch.setattr(matrix, "pip_install", lambda *_, **__: "")


def test_matrix_tries_a_round_on_a_server(matrix, without_pip):
    with sa.Server(program=server_binary()) as server:
        outcome, reason, versions = matrix.try_combination("python", [], server.address)
    assert (outcome, reason) == ("works", "")
    assert versions["sparseagg"] == versions["server"] == sa.__version__
    assert versions["numpy"] == np.__version__


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("raise ImportError('no such version')", "ImportError: no such version"),
        ("while True: pass", "no end within 0.5 s"),
        ("import sys; sys.exit(3)", "no output"),
    ],
)
def test_matrix_says_why_a_combination_fails(matrix, without_pip, monkeypatch, tmp_path, script, reason):
    (tmp_path / "smoke.py").write_text(script, encoding="utf-8")
    monkeypatch.setattr(matrix, "SMOKE", tmp_path / "smoke.py")
    if "while" in script:
        monkeypatch.setattr(matrix, "SMOKE_TIMEOUT_S", 0.5)
    assert matrix.try_combination("python", [], "address") == ("fails", reason, {})


def test_matrix_says_why_pip_does_not_install(matrix, monkeypatch):
    said = "ERROR: Could not find a version\nERROR: No matching distribution found for protobuf<8,>=7\n\n"
    monkeypatch.setattr(matrix, "virtual_environment", lambda python: contextlib.nullcontext(sys.executable))
    monkeypatch.setattr(matrix, "run", lambda *command, **_: subprocess.CompletedProcess(command, 1, "", said))
    reason = "No matching distribution found for protobuf<8,>=7"
    assert matrix.try_combination("python", ["wheel"], "address") == ("does not install", reason, {})


def test_matrix_smoke_finds_a_wrong_result():
    smoke = load(REPOSITORY / "tests" / "python" / "matrix" / "smoke.py")
    try:
        good = sa.aggregate(smoke.UPDATES, smoke.SPEC)
    except sa.errors.EngineMissingError:
        pytest.skip("no engine")
    smoke.check(good)
    wrong = {name: (update, weight + (name == "b")) for name, (update, weight) in smoke.UPDATES.items()}
    with pytest.raises(AssertionError, match="instead of"):
        smoke.check(sa.aggregate(wrong, smoke.SPEC))


def test_matrix_writes_a_row_for_each_python_and_age_with_reasons_once(matrix):
    results = [
        result(matrix, "3.9", "5", "oldest", date="2026-01-01"),
        result(matrix, "3.9", "7", "oldest", "does not install", "No matching distribution"),
        result(matrix, "3.13", "3.20", "newest", "fails", "ImportError: cannot"),
        result(matrix, "3.13", "7", "newest", "does not install", "No matching distribution"),
    ]
    matrix.write_results(WHEEL, results)
    text = matrix.PAGE.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{matrix.BEGIN}\n`{WHEEL}` on ")
    assert text.endswith(f"{matrix.END}\nafter\n")
    assert "old" not in text.replace("oldest", "")
    assert "2026-01-01 to 2026-01-02" in text
    assert [line for line in text.splitlines() if line.startswith("| 3")] == [
        "| 3.9 | 2.0, 1.60 | – | – | 5.1.2 | – | does not install (1) |",
        "| 3.13 | newest | fails (2) | – | – | – | does not install (1) |",
    ]
    assert f"\n\n1. No matching distribution\n2. ImportError: cannot\n{matrix.END}" in text


def test_matrix_refuses_a_page_without_markers(matrix):
    matrix.PAGE.write_text("nothing\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="lacks the markers"):
        matrix.write_results(WHEEL, [])


def run_with(matrix, monkeypatch, outcomes: dict[tuple[str, str, str], str], *flags: str) -> int:
    """Runs the command with given outcomes; others are errors."""

    def run_matrix(wheel, server, pythons, protobufs):
        for (python, protobuf, age), outcome in outcomes.items():
            assert python in pythons
            assert protobuf in protobufs
            yield result(matrix, python, protobuf, age, outcome, date="2026-02-02")

    monkeypatch.setattr(matrix, "run_matrix", run_matrix)
    return matrix.main([*flags])


def test_matrix_keeps_earlier_results_of_the_same_wheel_only(matrix, monkeypatch):
    one, other = ("3.9", "5", "oldest"), ("3.11", "5", "newest")
    assert run_with(matrix, monkeypatch, {one: "works", other: "works"}, str(WHEEL)) == 0
    assert run_with(matrix, monkeypatch, {other: "does not install"}, str(WHEEL), "--only", "3.11") == 0
    kept = json.loads(matrix.TABLE.read_text(encoding="utf-8"))
    found = {(each["python"], each["protobuf"], each["age"]): each["outcome"] for each in kept["results"]}
    assert found == {one: "works", other: "does not install"}
    assert run_with(matrix, monkeypatch, {other: "fails"}, "sparseagg-0.2.0-py3-none-any.whl") == 1
    kept = json.loads(matrix.TABLE.read_text(encoding="utf-8"))
    assert [each["outcome"] for each in kept["results"]] == ["fails"]


def test_matrix_goes_through_every_combination_once(matrix, monkeypatch, capsys):
    tried = []

    def try_combination(python, requirements, address):
        tried.append((python, *requirements[1:]))
        return "works", "", {}

    monkeypatch.setattr(matrix, "bounds_of", lambda wheel: {"numpy": "1", "grpcio": "2"})
    monkeypatch.setattr(matrix, "find_python", lambda version: None if version == "3.10" else version)
    monkeypatch.setattr(matrix, "virtual_environment", contextlib.nullcontext)
    monkeypatch.setattr(matrix, "oldest_pin", lambda python, name, bound: f"{name}=={bound}")
    monkeypatch.setattr(matrix, "try_combination", try_combination)
    results = list(matrix.run_matrix(WHEEL, server_binary(), ["3.9", "3.10"], ["3.20", "7"]))
    assert tried == [
        ("3.9", "protobuf>=3.20.3,<4", "numpy==1", "grpcio==2"),
        ("3.9", "protobuf>=7,<8", "numpy==1", "grpcio==2"),
        ("3.9", "protobuf>=3.20.3,<4"),
        ("3.9", "protobuf>=7,<8"),
    ]
    assert [each.key for each in results][-1] == ("3.9", "7", "newest")
    assert "Python 3.10: not found" in capsys.readouterr().out


PAGE = (REPOSITORY / "docs" / "compatibility.md").read_text(encoding="utf-8")
PROJECT = (REPOSITORY / "python" / "pyproject.toml").read_text(encoding="utf-8")


def test_compatibility_page_has_the_bounds_of_the_package(matrix):
    bounds = dict(re.findall(r'"([\w-]+)>=([\d.]+)"', re.search(r"^dependencies = (.*)$", PROJECT, re.MULTILINE)[1]))
    assert set(bounds) == {"numpy", "grpcio", "protobuf", "rich", "shtab"}
    for name, bound in bounds.items():
        assert re.search(rf"^\| {name}\b[^|]*\| {re.escape(bound)} or later\b", PAGE, re.MULTILINE | re.IGNORECASE), (
            name
        )
    oldest = re.search(r'^requires-python = ">=(.*)"$', PROJECT, re.MULTILINE)[1]
    assert f"| Python | {oldest} to {matrix.PYTHONS[-1]} (CPython) |" in PAGE
    assert matrix.PYTHONS[0] == oldest
    assert matrix.PROTOBUFS["3.20"] == f"protobuf>={bounds['protobuf']},<4"


def test_compatibility_page_has_the_markers_of_the_table():
    module = load(REPOSITORY / "scripts" / "test_matrix.py")
    assert PAGE.count(module.BEGIN) == PAGE.count(module.END) == 1


def test_compatibility_page_names_tests_that_there_are():
    named = re.findall(r"`((?:tests|scripts|python|deploy)/[\w./-]+)`", PAGE)
    assert len(named) > 5
    assert [path for path in named if not (REPOSITORY / path).exists()] == []
