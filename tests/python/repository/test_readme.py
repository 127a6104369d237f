"""What the README says works: its example runs and prints what it says, its commands and links exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sparseagg as sa
from real_server import REPOSITORY, ServerProcess

sys.path.append(str(REPOSITORY / "scripts"))
import release

DOCUMENTS = [
    REPOSITORY / "README.md",
    REPOSITORY / "python" / "README.md",
    *sorted((REPOSITORY / "docs").rglob("*.md")),
]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_every_place_has_the_version_of_the_package() -> None:
    assert release.current() == sa.__version__


def make_targets() -> set[str]:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    return {name for line in re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE) for name in line.split()}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_document_make_targets_exist(document: Path) -> None:
    named = set(re.findall(r"(?:`|^)make ([a-z][a-z-]*)", document.read_text(encoding="utf-8"), re.MULTILINE))
    assert named <= make_targets()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_document_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text(encoding="utf-8"))
    links = [link for link in links if not link.startswith("http") and not link.endswith("reference/grpc.md")]  # made
    dead = [link for link in links if not (document.parent / link).exists()]
    assert dead == []


def test_make_help_lists_every_target_readme_names() -> None:
    listed = subprocess.run(["make", "help"], cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout
    missing = [name for name in re.findall(r"`make ([a-z-]+)", README) if f"make {name} " not in listed]
    assert missing == []


@pytest.mark.parametrize("address", [":local:", ":memory:", "host:port"])
def test_readme_example_prints_what_it_says(
    address: str, server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = blocks(README, "python")
    (expected,) = blocks(README, "text")
    assert 'sa.Client(":local:")' in example
    if address == "host:port":
        address = server.address
    names: dict[str, Any] = {}
    exec(compile(example.replace('":local:"', repr(address)), "README.md", "exec"), names)
    names["client"].close()
    assert capsys.readouterr().out == expected


def test_readme_example_and_commands_run_in_the_environment_of_make_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As somebody would who has called `make run`: nothing names the programs, and nothing is on the PATH."""
    command = Path(sys.executable).with_name("sparseagg")
    if not (command.exists() and (REPOSITORY / "build/dev/service/sparseagg-server").exists()):
        pytest.skip("this environment is not the one that `make` has made")
    for variable in ("SPARSEAGG_SERVER", "SPARSEAGG_LOADGEN", "PYTHONPATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "example.py").write_text(blocks(README, "python")[0] + "client.close()\n", encoding="utf-8")

    def output(*words: str | Path) -> str:
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert output(sys.executable, "example.py") == blocks(README, "text")[0]
    assert "cpu" in output(command, "engine")
    for server in ([command, "server"], [command.with_name("sparseagg-server")]):
        assert output(*server, "--version").startswith("sparseagg-server ")
    report = output(command, "doctor")
    assert re.search(r"^ok +sparseagg-server ", report, re.MULTILINE)
    assert re.search(r"^ok +engine in process ", report, re.MULTILINE)
    for name in ("a", "b"):
        np.savez(tmp_path / f"{name}.npz", **{"v.keys": [1], "v.values": np.ones(1, np.float32)})
    assert output(command, "merge", "a.npz", "b.npz", "-o", "merged.npz") == "v: 1 rows, sparse\n"


@pytest.mark.parametrize("folder", [".", "python"])
def test_readme_aggregate_without_a_server_takes_the_spec_of_its_example(folder: str, server: ServerProcess) -> None:
    text = (REPOSITORY / folder / "README.md").read_text(encoding="utf-8")
    (example,) = blocks(text, "python")
    names = {"keys": np.array([1]), "rows": np.ones((1, 2), np.float32)}
    exec(compile(example.replace("localhost:8001", server.address), "README.md", "exec"), names)
    (line,) = re.findall(r"^    (result = sa\.aggregate\(\[.*)$", text, re.MULTILINE)
    exec(compile(line.replace(", …]", "]"), "README.md", "exec"), names)
    assert names["result"]["embedding"].keys.tolist() == names["keys"].tolist()
