"""docs/reference/command.md: it has every command, and says nothing that the commands do not have."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from real_server import REPOSITORY
from sparseagg._internal.commands import cli

PAGE = (REPOSITORY / "docs" / "reference" / "command.md").read_text(encoding="utf-8")


def commands(parser: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yields every command that does something, such as "rounds list"."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        yield name, parser
    for group in groups:
        for word, each in group.choices.items():
            yield from commands(each, f"{name} {word}".strip())


COMMANDS = dict(commands(cli._parser()))


def documented() -> set[str]:
    """Returns the commands of the page's first table, where actions of one command stand in one row."""
    found = set()
    for row in re.findall(r"^\| `sparseagg (.*?)` *((?:, `\w+`)*) \|", PAGE, re.MULTILINE):
        first, others = row
        found.add(first)
        group = first.rpartition(" ")[0]
        found |= {f"{group} {other}".strip() for other in re.findall(r"`(\w+)`", others)}
    return found


def test_page_has_every_command():
    assert documented() == set(COMMANDS)


def test_flags_of_the_page_exist():
    known = {option for parser in COMMANDS.values() for option in parser._option_string_actions}
    known |= {f"{option[:5]}…" for option in known if option.startswith("--tls")}
    used = set(re.findall(r"--[a-z][a-z-]*…?", PAGE))
    assert used - known == set()


def test_commands_that_show_something_have_json():
    has = {name for name, parser in COMMANDS.items() if "--json" in parser._option_string_actions}
    assert has == {"info", "rounds list", "rounds show", "keys list", "engine", "doctor"}
    sentence = re.search(r"With `--json`, (.*?) print JSON", PAGE, re.DOTALL)[1]
    assert set(re.findall(r"`([a-z ]+)`", sentence.replace("\n", " "))) == has


def test_exit_statuses_are_those_of_the_help(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    told = re.findall(r"(?<=[ .])(\d+):", capsys.readouterr().out.partition("exit status")[2])
    assert re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE) == told == ["0", "1", "2", "130"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_commands_and_options(tmp_path, capsys):
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
        done = subprocess.run(
            ["bash", "-c", code, "bash", str(script), *words], capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    assert completed("sparseagg", "ro") == ["rounds"]
    assert completed("sparseagg", "rounds", "c") == ["create", "close", "cancel", "certificate"]
    assert completed("sparseagg", "top", "--fi") == ["--filter"]
