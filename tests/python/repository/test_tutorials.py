"""The tutorials do what they say, and what runs them sees when they do not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from real_server import REPOSITORY, server_binary

RUN = REPOSITORY / "scripts" / "run_page.py"


def _run(page: Path, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(RUN), str(page), *flags],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def _replaced(socket: str, flags: str) -> list[str]:
    """Returns the flags for a socket in the place of the address that the tutorial's server has."""
    own = f"--grpc-address {socket} --http-address none --metrics-address none"
    return [
        f"--replace=--grpc-address 127.0.0.1:8001{flags}={own}{flags}",
        f"--replace=127.0.0.1:8001={socket}",
    ]


@pytest.mark.parametrize(
    ("page", "flags"),
    [
        ("first-round", ""),
        ("growing", " --data-dir rounds"),
        ("attackers", None),
        ("heavy-hitters", None),
        ("../howto/migrate", None),
    ],
)
def test_tutorial_does_what_it_says(tmp_path: Path, page: str, flags: str | None) -> None:
    """As a reader does it, but at a socket of its own in the place of the address."""
    socket = f"unix:{tmp_path}/s"
    done = _run(
        REPOSITORY / f"docs/tutorials/{page}.md",
        *([] if flags is None else _replaced(socket, flags)),
        SPARSEAGG_ADDRESS=socket,
        SPARSEAGG_SERVER=server_binary(),
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("```sh\necho a\n```\n```text\nb\n```\n", "+a"),
        ("```sh\nfalse\n```\n", "status 1 of: false"),
    ],
)
def test_page_that_says_something_else_is_found(tmp_path: Path, page: str, text: str) -> None:
    path = tmp_path / "page.md"
    path.write_text(page, encoding="utf-8")
    done = _run(path)
    assert done.returncode == 1
    assert text in done.stderr
