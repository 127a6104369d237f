"""Fixtures of tests/deploy: an operator's shell, in which docker and kubectl are Podman."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import sparseagg as sa
from real_server import START_TIMEOUT_S

sys.path[:0] = [str(Path(__file__).parents[2] / "scripts"), str(Path(__file__).parent)]

import machine  # noqa: E402
import run_page  # noqa: E402

HOWTOS = machine.REPOSITORY / "docs" / "howto"
SPEC = sa.RoundSpec([sa.TensorSpec("t", "float32", num_rows=1000)])
UPDATE = {"t": (np.arange(0, 1000, 2), np.ones(500, np.float32))}
PATIENT = sa.RetryPolicy(attempts=100)


@pytest.fixture(scope="session", autouse=True)
def alone() -> None:
    if os.environ.get("SPARSEAGG_DEPLOY") != "alone":
        pytest.skip("only in a network namespace of its own: `make test-deploy`")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


class Shell:
    """An operator's folder, with docker, kubectl and helm on the PATH and a checkout in the home folder."""

    def __init__(self, folder: Path) -> None:
        programs = folder / "bin"
        programs.mkdir()
        for name in ("docker", "kubectl", "helm"):
            stand_in = shlex.join([sys.executable, str(Path(__file__).with_name("programs.py")), name])
            (programs / name).write_text(f'#!/bin/sh\nexec {stand_in} "$@"\n')
            (programs / name).chmod(0o755)
        (folder / "sparseagg").symlink_to(machine.REPOSITORY)
        self.folder = folder / "empty"
        self.folder.mkdir()
        path = [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
        (folder / "state").mkdir()
        self._environment = {"HOME": str(folder), "HOWTO_STATE": str(folder / "state"), "PATH": os.pathsep.join(path)}

    def page(self, text: str) -> None:
        """Does what a part of a page says (scripts/run_page.py), with what it leaves to root and to the cluster."""
        for name, value in self._environment.items():
            os.environ[name] = value
        run_page.run_page(
            re.sub("not here: (as root|in the cluster)", "", text), self.folder, self._environment["PATH"]
        )

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
    for name in ("HOME", "HOWTO_STATE", "PATH"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # as it was, at the end
    return Shell(tmp_path)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


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


def block(page: str, title: str) -> str:
    """Returns the commands of a how-to that are for another machine, by the end of their title."""
    blocks = run_page.blocks_of((HOWTOS / f"{page}.md").read_text())
    (found,) = [content for _, name, content in blocks if name == f"not here: {title}"]
    return found
