"""Servers that run under another program: with few files, on another clock, on a failing disk."""

from __future__ import annotations

import pathlib
import shlex
from collections.abc import Callable

import pytest
from real_server import ServerProcess, server_binary


def wrap(monkeypatch: pytest.MonkeyPatch, folder: pathlib.Path, prefix: str) -> Callable[..., ServerProcess]:
    """Returns a function like ServerProcess, whose server is started by a shell behind ``prefix``."""
    script = folder / "wrapped-server"
    script.write_text(f'#!/bin/sh\n{prefix} exec {shlex.quote(server_binary())} "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setenv("SPARSEAGG_SERVER", str(script))
    return ServerProcess
