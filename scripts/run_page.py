#!/usr/bin/env python3
"""Does what a tutorial or how-to says, as its reader would, and compares what is printed.

  scripts/run_page.py PAGE [--bin FOLDER] [--replace OLD=NEW]...

In a new folder, in the order of the page:

  ```python title="NAME"        writes the file NAME; so do ```html, ```json, ```toml and ```yaml
  ```diff title="NAME"          puts lines with + into the place of the lines with - before them
  ```sh                         runs each command; all must succeed. What they export holds to the end of the page
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

_FILES = ("python", "html", "json", "toml", "yaml")
_BLOCK = re.compile(
    rf'^```({"|".join(_FILES)}|diff|sh|text)(?: title="([^"]*)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL
)


def blocks_of(text: str) -> list[tuple[str, str, str]]:
    """Returns language, title and content of each block."""
    return _BLOCK.findall(text)


def commands_of(block: str) -> list[str]:
    """Returns the commands of a block; a line that ends with a backslash is one with the next."""
    return block.replace("\\\n", "").splitlines()


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
    said, commands = "", ""
    with contextlib.ExitStack() as terminals:
        for language, title, content in blocks_of(text):
            if language in _FILES and title:
                (folder / title).write_text(content, encoding="utf-8")
            elif language == "diff":
                change(folder / title, content)
            elif language == "text":
                if not re.fullmatch(".*".join(map(re.escape, content.split("…"))), said, re.DOTALL):
                    both = (content.splitlines(), said.splitlines())
                    difference = difflib.unified_diff(*both, "the page", commands, lineterm="")
                    raise SystemExit("\n".join(["run_page: other output:", *difference]))
            elif title.startswith("not here"):
                continue
            elif title.endswith(("terminal", "Ctrl-C")):
                commands, started = "", commands_of(content)
                if title.endswith("Ctrl-C"):
                    terminals.close()
                    *before, last = started
                    _run("\n".join(before), folder, environment)
                    started = [last]
                for each in started:
                    terminals.enter_context(_terminal(each, folder, environment))
            elif language == "sh":
                commands = content
                said = _run(commands, folder, environment)


def _run(commands: str, folder: Path, environment: dict[str, str]) -> str:
    """Runs a block; returns what it prints. ``SystemExit`` at the first command that fails.

    What it exports is put into ``environment``.
    """
    with tempfile.NamedTemporaryFile() as exported:
        script = ["bash", "-ec", f"{commands}\nenv -0 >{exported.name}"]
        done = subprocess.run(script, check=False, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise SystemExit(f"run_page: status {done.returncode} of: {commands}\n{done.stdout}")
        environment.update(re.findall(r"(\w+)=([^\0]*)\0", exported.read().decode()))
    return done.stdout


@contextlib.contextmanager
def _terminal(command: str, folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """Runs a server until the end; begins when it says that it listens."""
    words = ["bash", "-c", f"exec {command}"]
    with subprocess.Popen(words, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            if "listening" not in line:
                raise SystemExit(f"run_page: {command} printed {line!r} and does not listen")
            yield
        finally:
            process.terminate()


def main() -> None:
    """Runs the command."""
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


if __name__ == "__main__":
    main()
