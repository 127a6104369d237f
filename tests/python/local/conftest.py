"""Fixtures of servers that Python starts, and of arrays in a GPU's memory.

The CUDA engine is the test plug-in, whose device is the host.
"""

from __future__ import annotations

import gc
import pathlib
import tempfile
from collections.abc import Callable, Iterator

import pytest
from cuda_plugins import plugin
from fake_device import Library, drop_released
from real_server import server_binary
from server_processes import Python, Watched


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> pathlib.Path:
    """The folder of temporary files that a test and its children have for themselves, with the server of the tests."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("SPARSEAGG_SERVER", server_binary())
    return path


@pytest.fixture
def watch() -> Iterator[Callable[[int], Watched]]:
    """Watches processes by their ids; those that go on in the end are killed."""
    watched: list[Watched] = []

    def of(pid: int) -> Watched:
        watched.append(Watched(pid))
        return watched[-1]

    yield of
    for process in watched:
        process.kill()
        process.close()


@pytest.fixture
def python() -> Iterator[Callable[[str], Python]]:
    """Starts processes with an object ``server``, given as an expression."""
    started: list[Python] = []

    def start(server: str) -> Python:
        started.append(Python(server))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.process.stdin.close()
        process.process.stdout.close()


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEAGG_CUDA_PLUGIN", plugin("test_plugin"))


@pytest.fixture
def library(on_host: None) -> Iterator[Library]:
    """A library of arrays on device 0. In the end it must have all of them back."""
    library = Library()
    yield library
    drop_released()
    gc.collect()  # tracebacks of expected errors hold arrays
    assert library.all_are_back, library.returned
