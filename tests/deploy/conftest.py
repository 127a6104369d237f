"""Fixtures of tests/deploy: an operator's shell, in which docker is Podman."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[2] / "scripts"), str(Path(__file__).parent)]

import machine  # noqa: E402
import run_page  # noqa: E402

HOWTOS = machine.REPOSITORY / "docs" / "howto"


@pytest.fixture(scope="session", autouse=True)
def alone() -> None:
    if os.environ.get("SPARSEAGG_DEPLOY") != "alone":
        pytest.skip("only in a network namespace of its own: `make test-deploy`")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


class Shell:
    """An operator's folder, with docker on the PATH and a checkout in the home folder."""

    def __init__(self, folder: Path) -> None:
        programs = folder / "bin"
        programs.mkdir()
        stand_in = shlex.join([sys.executable, str(Path(__file__).with_name("programs.py")), "docker"])
        (programs / "docker").write_text(f'#!/bin/sh\nexec {stand_in} "$@"\n')
        (programs / "docker").chmod(0o755)
        (folder / "sparseagg").symlink_to(machine.REPOSITORY)
        self.folder = folder / "empty"
        self.folder.mkdir()
        path = [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
        self._environment = {"HOME": str(folder), "PATH": os.pathsep.join(path)}

    def page(self, text: str) -> None:
        """Does what a part of a page says (scripts/run_page.py), also what it leaves out as being for root."""
        for name, value in self._environment.items():
            os.environ[name] = value
        run_page.run_page(text.replace("not here: as root", ""), self.folder, self._environment["PATH"])

    def do(self, *lines: str) -> None:
        self.page("```sh\n" + "\n".join(lines) + "\n```\n")


@pytest.fixture(autouse=True)
def clean(alone: None) -> Iterator[None]:
    """Leaves no container and no volume; shows what containers said, which pytest prints where the test fails."""

    def remove() -> None:
        for kind, flags in (("container", ["--time", "0"]), ("volume", [])):
            machine.podman(kind, "rm", "--all", "--force", *flags)

    remove()  # what an earlier run has left that was killed
    yield
    for name in machine.podman("ps", "--all", "--format", "{{.Names}}").stdout.split():
        print(name, machine.podman("logs", "--tail", "20", name, stderr=subprocess.STDOUT).stdout)
    remove()


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    for name in ("HOME", "PATH"):
        monkeypatch.setenv(name, os.environ[name])  # as it was, at the end
    return Shell(tmp_path)


def get(url: str) -> dict:
    """Returns the JSON at a URL."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def contained(monkeypatch: pytest.MonkeyPatch, folder: Path, *flags: str) -> None:
    """Makes real_server start servers in containers with these flags of Podman, which see the host's files."""
    script = folder / "contained-server"
    environment = " ".join(f"{name}={value}" for name, value in machine.ENVIRONMENT.items())
    run = f"podman run --rm --read-only --cap-drop all --network host --user 0 --volume {folder}:{folder}"
    script.write_text(f'#!/bin/sh\n{environment} exec {run} {shlex.join(flags)} {machine.IMAGE} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("SPARSEAGG_SERVER", str(script))


def part(page: str, *headings: str) -> str:
    """Returns the sections of a how-to that have these headings."""
    sections = {text.partition("\n")[0]: text for text in (HOWTOS / f"{page}.md").read_text().split("\n## ")}
    return "\n".join(sections[each] for each in headings)
