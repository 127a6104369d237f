"""What the pages of docs/ say is true: links, versions, commands, flags, events, errors and the bytes of the wire."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sparseagg as sa
from real_server import REPOSITORY, server_binary
from sparseagg._internal.commands import cli
from sparseagg._internal.commands.rounds import read_spec
from sparseagg.v1 import aggregation_pb2 as pb

sys.path += [str(REPOSITORY / "bench"), str(REPOSITORY / "scripts")]
import error_reference
import release
import sass_table
import show

DOCS = REPOSITORY / "docs"
DOCUMENTS = [REPOSITORY / "README.md", REPOSITORY / "python" / "README.md", *sorted(DOCS.rglob("*.md"))]
PACKAGE = REPOSITORY / "python" / "src" / "sparseagg"


def text_of(page: str) -> str:
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


def texts_in(paths: Iterator[Path]) -> str:
    """The sources of these files; texts over several lines are whole."""
    return re.sub(r'"\s*f?"', "", "".join(path.read_text(encoding="utf-8") for path in paths))


def flags_of_server() -> list[str]:
    output = subprocess.run([server_binary(), "--help"], check=True, capture_output=True, text=True).stdout
    # The first of each line's names; a second is an alias.
    return re.findall(r"^ +(?:-[a-z],)?(--[a-z-]+)", output, re.MULTILINE)


def test_every_place_has_the_version_of_the_package() -> None:
    assert release.current() == sa.__version__


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_links_and_make_targets_of_a_document_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", text)
    links = [link for link in links if not link.startswith("http") and not link.endswith("reference/grpc.md")]  # made
    assert [link for link in links if not (document.parent / link).exists()] == []
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = {name for line in re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE) for name in line.split()}
    assert set(re.findall(r"(?:`|^)make ([a-z][a-z-]*)", text, re.MULTILINE)) <= targets


def test_nothing_advises_to_install_a_package_that_is_not_published() -> None:
    """Until ``sparseagg`` is on PyPI, its wheels come from `make wheels` and `make cuda-wheel`."""
    advice = ["git", "grep", "-lE", r"pip install (-\S+ )*['\"]?sparseagg", "--", "*.md", "*.py", "*.toml", "*.yaml"]
    found = subprocess.run(advice, capture_output=True, text=True, cwd=REPOSITORY, check=False).stdout.split()
    assert set(found) - {"CHANGELOG.md"} == set()


def test_wire_format_example_parses() -> None:
    block = text_of("wire-format").split("<!-- example chunk -->\n```\n")[1].split("```")[0]
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


def test_reference_documents_every_event_of_the_log() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "service").rglob("*.cc"))
    events = set(re.findall(r'\bLog\([^"{]*"(\w+)"', sources))
    table = text_of("reference/metrics").partition("| event | fields |")[2].partition("\n\n")[0]
    assert len(events) > 10
    assert events - set(re.findall(r"`(\w+)`", table)) == set()


def test_reference_documents_every_flag() -> None:
    rows = [line.split("|")[1] for line in text_of("reference/flags").splitlines() if line.startswith("| `--")]
    documented = [flag for row in rows for flag in re.findall(r"--[a-z-]+", row)]
    assert sorted(documented) == sorted(flags_of_server())
    named = set(re.findall(r"`(--[a-z-]+)", text_of("howto/tune")))
    assert len(named) >= 8
    assert named - set(documented) == set()


def test_compatibility_page_has_the_bounds_of_the_package_and_names_files_that_there_are() -> None:
    page = text_of("compatibility")
    project = (REPOSITORY / "python" / "pyproject.toml").read_text(encoding="utf-8")
    bounds = dict(re.findall(r'"([\w-]+)>=([\d.]+)"', re.search(r"^dependencies = (.*)$", project, re.MULTILINE)[1]))
    assert set(bounds) == {"numpy", "grpcio", "protobuf", "googleapis-common-protos", "rich", "shtab"}
    for name, bound in bounds.items():
        assert re.search(rf"(?mi)^\| {name}\b[^|]*\| {re.escape(bound)} or later\b", page), name
    oldest = re.search(r'^requires-python = ">=(.*)"$', project, re.MULTILINE)[1]
    assert f"| Python | {oldest} to " in page
    named = re.findall(r"`((?:tests|scripts|python|deploy)/[\w./-]+)`", page)
    assert named
    assert [path for path in named if not (REPOSITORY / path).exists()] == []


# ---- the command


COMMAND_PAGE = text_of("reference/command")


def commands(parser: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yields every command that does something, such as "rounds list"."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        yield name, parser
    for group in groups:
        for word, each in group.choices.items():
            yield from commands(each, f"{name} {word}".strip())


COMMANDS = dict(commands(cli._parser()))


def test_page_has_every_command_flag_and_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    documented = set()
    # Actions of one command stand in one row of the page's first table.
    for first, others in re.findall(r"^\| `sparseagg (.*?)` *((?:, `\w+`)*) \|", COMMAND_PAGE, re.MULTILINE):
        group = first.rpartition(" ")[0]
        documented |= {first, *(f"{group} {other}".strip() for other in re.findall(r"`(\w+)`", others))}
    assert documented == set(COMMANDS)
    known = {option for parser in COMMANDS.values() for option in parser._option_string_actions}
    known |= {f"{option[:5]}…" for option in known if option.startswith("--tls")}
    assert set(re.findall(r"--[a-z][a-z-]*…?", COMMAND_PAGE)) - known == set()
    has_json = {name for name, parser in COMMANDS.items() if "--json" in parser._option_string_actions}
    sentence = re.search(r"With `--json`, (.*?) print JSON", COMMAND_PAGE, re.DOTALL)[1]
    assert set(re.findall(r"`([a-z ]+)`", sentence.replace("\n", " "))) == has_json
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    told = re.findall(r"(?<=[ .])(\d+):", capsys.readouterr().out.partition("exit status")[2])
    assert re.findall(r"^\| (\d+) \|", COMMAND_PAGE, re.MULTILINE) == told == ["0", "1", "2", "130"]


@pytest.mark.parametrize("command", [["rounds", "create"], ["merge"]])
def test_help_of_commands_that_take_a_spec_shows_one(command: list[str], tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit):
        cli.main([*command, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    path = tmp_path / "spec.json"
    path.write_text(re.search(r"such as (\{.*?\});", text)[1])
    assert read_spec(path).tensors


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_commands_and_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "bash"]) == 0
    script = tmp_path / "complete"
    script.write_text(capsys.readouterr().out)
    code = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
function_name=$(complete -p sparseagg | sed 's/.*-F \\([^ ]*\\).*/\\1/')
"$function_name" sparseagg "${COMP_WORDS[COMP_CWORD]}" ""
printf '%s\\n' "${COMPREPLY[@]}"
"""

    def completed(*words: str) -> list[str]:
        bash = ["bash", "-c", code, "bash", str(script), *words]
        return subprocess.run(bash, capture_output=True, text=True, check=True).stdout.split()

    assert completed("sparseagg", "ro") == ["rounds"]
    assert completed("sparseagg", "rounds", "c") == ["create", "close", "cancel", "certificate"]
    assert completed("sparseagg", "top", "--fi") == ["--filter"]


# ---- errors


def shown_errors() -> list[str]:
    return re.findall(r"^- `+ ?(.*?) ?`+$", error_reference.with_texts(text_of("reference/errors")), re.MULTILINE)


def test_errors_have_a_cause_and_a_cure_each() -> None:
    sections = re.split(r"^## ", text_of("reference/errors"), flags=re.MULTILINE)[1:]
    assert len(sections) > 20
    for section in sections:
        assert [section.count(each) for each in ("**Cause**:", "**Cure**:", "<!-- errors: ")] == [1, 1, 1]
    assert len(shown_errors()) > 450


def test_troubleshoot_quotes_what_is_said() -> None:
    """Texts of the server, where "…" stands for the same as on the page of errors, or for more; and of the client."""
    page, known = text_of("howto/troubleshoot"), shown_errors()
    lines = re.findall(r"^\| (`.*?) \| ", page, re.MULTILINE)
    quoted = [each for line in lines for each in re.findall(r"`([^`]+)`", line)]
    assert len(quoted) >= 6
    assert [each for each in quoted if not any(each in text for text in known)] == []
    section = page.partition("## The server is not reached")[2].partition("\n## ")[0]
    said = re.findall(r"^\| ([^|]+?) \| [^|]+ \| [^|]+ \|$", section, re.MULTILINE)[1:]
    assert len(said) == 7
    sources = texts_in(PACKAGE.rglob("*.py"))
    assert [each for each in said if each not in sources] == []


def results(name: str) -> Any:
    return json.loads((REPOSITORY / "bench" / "results" / f"{name}.json").read_text(encoding="utf-8"))


def test_page_about_gpus_has_the_table_of_the_results():
    rows = show.gpu_table(results("gpu"), results("gpu_peers")).split("\n\n")[1]
    assert rows in text_of("gpu")


def test_two_runs_are_shown_with_an_arrow_where_they_differ():
    def run(commit: str, copied: int) -> Any:
        calls = {"sort": [8, 100], "copy_in": [2, copied], "record": [3, 0]}
        key = {"workload": "A", "variant": "plain", "what": "finish", "memory": "pinned"}
        return {"commit": commit, "results": [{**key, "calls": calls}]}

    text = show.calls_table(run("old", 10**6), run("new", 2 * 10**6))
    assert text.startswith("old → new\n")
    assert "| A finish, pinned | sort 8 | 2 (1 MB) → 2 (2 MB) | 0 | 0 | 0 | 0 | 0 |" in text


def test_the_longest_loop_without_another_inside_is_counted():
    jumps = {0x80: "BRA 0x40", 0xC0: "@P0 BRA 0xa0", 0xE0: "@!P1 BRA.U 0x20", 0xF0: "BRA 0xf0"}
    code = "".join(f"  /*{at:04x}*/  {jumps.get(at, 'FADD R1, R2, R3')} ;  /* 0x0 */\n" for at in range(0, 256, 16))
    assert sass_table.longest_loop(code) == 5
