"""Fixtures of arrays in a GPU's memory. The CUDA engine is the test plug-in, whose device is the host."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from cuda_plugins import plugin
from fake_device import Library, drop_released


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
