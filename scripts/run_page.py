#!/usr/bin/env python3
"""Does what a tutorial or how-to says, as its reader would, and compares what is printed.

  scripts/run_page.py PAGE [--bin FOLDER] [--replace OLD=NEW]...

In a new folder, in the order of the page:

  ```python title="NAME"        writes the file NAME; so do ```html, ```json, ```toml and ```yaml
  ```diff title="NAME"          puts lines with + into the place of the lines with - before them
  ```sh                         runs each command; all must succeed. A line that ends with "\\" goes on in the next,
                                and "export NAME=VALUE" holds to the end of the page
  ```sh title="… terminal"      starts each line in the background, until the end of the page
  ```sh title="… Ctrl-C"        stops these, runs each command, and starts the last one in the background
  ```sh title="not here: …"     is for another machine, and left out
  ```text                       is what the lines of the block before have printed; "…" stands for anything

FOLDER, or each of several with ":" between, comes first on the PATH: the environment that the reader has. Exits 1 at
the first difference, and shows it. With --replace, text of the page is another one: an address where the tutorial's is
taken.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_BLOCK = re.compile(
    r'^```(python|html|json|toml|yaml|diff|sh|text)(?: title="([^"]*)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL
)
_START_TIMEOUT_S = 60


def blocks_of(text: str) -> Iterator[tuple[str, str, str]]:
    """Yields language, title and content of each block."""
    yield from _BLOCK.findall(text)


def commands_of(block: str) -> list[str]:
    """Returns the commands of a block; a line that ends with a backslash is one with the next."""
    return block.replace("\\\n", "").splitlines()


def fits(said: str, wanted: str) -> bool:
    """Returns whether the output is the page's, in which "…" stands for anything."""
    pattern = ".*".join(re.escape(part) for part in wanted.split("…"))
    return re.fullmatch(pattern, said, re.DOTALL) is not None


def change(path: Path, difference: str) -> None:
    """Changes a file as the block says; ``SystemExit`` if it does not have the lines, or has them twice."""
    text = path.read_text(encoding="utf-8")
    for old, new in re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)*)", difference, re.MULTILINE):
        before, after = (re.sub(r"^.", "", lines, flags=re.MULTILINE) for lines in (old, new))
        if text.count(before) != 1:
            raise SystemExit(f"run_page: {path.name} has {text.count(before)} times:\n{before}")
        text = text.replace(before, after)
    path.write_text(text, encoding="utf-8")


def run_page(text: str, folder: Path, path: str) -> None:
    """Does what the page says in ``folder``; ``SystemExit`` at the first difference."""
    environment = {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1"}
    said, command = "", ""
    with contextlib.ExitStack() as terminals:
        for language, title, content in blocks_of(text):
            if language in ("python", "html", "json", "toml", "yaml"):
                if title:
                    (folder / title).write_text(content, encoding="utf-8")
            elif language == "diff":
                change(folder / title, content)
            elif language == "text":
                if not fits(said, content):
                    difference = difflib.unified_diff(
                        content.splitlines(), said.splitlines(), "the page", command, lineterm=""
                    )
                    raise SystemExit("\n".join(["run_page: other output:", *difference]))
            elif title.startswith("not here"):
                continue
            elif title.endswith("terminal"):
                for command in commands_of(content):
                    terminals.enter_context(_terminal(command, folder, environment))
            elif title.endswith("Ctrl-C"):
                terminals.close()
                *before, command = commands_of(content)
                _run_all(before, folder, environment)
                terminals.enter_context(_terminal(command, folder, environment))
            else:
                command = content
                said = _run_all(commands_of(content), folder, environment)


def _run_all(commands: list[str], folder: Path, environment: dict[str, str]) -> str:
    """Runs commands one after another; returns what they print. ``SystemExit`` at the first that fails.

    What they export is put into ``environment``.
    """
    said = ""
    for command in commands:
        exported = re.match(r"export (\w+)=", command)
        if exported is not None:
            shown = ["bash", "-c", f'{command}; printf %s "${exported[1]}"']
            done = subprocess.run(shown, check=True, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
            environment[exported[1]] = done.stdout
            continue
        done = subprocess.run(
            ["bash", "-c", command], check=False, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
        )
        said += done.stdout
        if done.returncode != 0:
            raise SystemExit(f"run_page: status {done.returncode} of: {command}\n{said}")
    return said


@contextlib.contextmanager
def _terminal(command: str, folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """Runs a server until the end; begins when it says that it listens."""
    with subprocess.Popen(
        ["bash", "-c", f"exec {command}"], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            if "listening" not in line:
                raise SystemExit(f"run_page: {command} printed {line!r} and does not listen")
            yield
        finally:
            process.terminate()
            process.wait(_START_TIMEOUT_S)


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("--bin", default=str(Path(sys.executable).parent), metavar="FOLDER")
    parser.add_argument("--replace", action="append", default=[], metavar="OLD=NEW")
    arguments = parser.parse_args()
    text = arguments.page.read_text(encoding="utf-8")
    for each in arguments.replace:
        old, _, new = each.partition("=")
        if old not in text:
            raise SystemExit(f"run_page: {arguments.page} does not have {old!r}")
        text = text.replace(old, new)
    with tempfile.TemporaryDirectory() as scratch:
        folders = [os.path.abspath(folder) for folder in arguments.bin.split(os.pathsep)]
        run_page(text, Path(scratch), os.pathsep.join([*folders, os.environ["PATH"]]))
    print(f"{arguments.page}: does what it says")
    return 0


if __name__ == "__main__":
    sys.exit(main())
