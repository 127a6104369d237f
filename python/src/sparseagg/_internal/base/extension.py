"""The extension module that holds the engine, where this installation has one."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.resources
import os
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType

import grpc

from sparseagg.errors import EngineMissingError, SparseaggError, error_of

_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}

# What setup.py leaves behind where it could not build the extension.
_REASON_FILE = "_no_engine.txt"
_HOW = (
    "Install a C++20 compiler, CMake, Ninja or Make, and what the engine is built from (Debian 12: g++ cmake "
    "ninja-build pkg-config libabsl-dev libhwy-dev libsodium-dev libtbb-dev libxxhash-dev libprotobuf-dev "
    "protobuf-compiler dpkg-dev xz-utils), then "
    "`pip install ./python` again from the repository, where `make run` and `make build` also build it for .venv; or "
    "merge on a server, with "
    "sparseagg.Client."
)


@functools.cache
def load() -> ModuleType:
    """Returns sparseagg._engine; ``EngineMissingError`` says why there is none.

    The environment's ``SPARSEAGG_SIMD`` forces its SIMD target, as it does the server's.
    """
    module = _import()
    try:
        module.force_simd(os.environ.get("SPARSEAGG_SIMD", ""))
    except module.EngineError as error:
        code, message, *_ = error.args
        raise error_of_code(code, f"SPARSEAGG_SIMD: {message}") from None
    return module


@functools.cache
def find() -> ModuleType | None:
    """Returns sparseagg._engine; None where this installation has none that can be loaded."""
    try:
        return load()
    except SparseaggError:
        return None


def _import() -> ModuleType:
    try:
        return importlib.import_module("sparseagg._engine")
    except ImportError as error:
        # A module that is there but cannot be loaded says itself why.
        reason = _build_reason() if isinstance(error, ModuleNotFoundError) else ""
        raise EngineMissingError(missing("engine of its own", f"{reason or error}. {_HOW}")) from error


def missing(part: str, on_linux: str) -> str:
    """Returns what an error says of a part that this installation lacks; ``on_linux``: why, and what to do about it."""
    if sys.platform.startswith("linux"):
        return f"this installation of sparseagg has no {part}: {on_linux}"
    system = {"darwin": "macOS", "win32": "Windows"}.get(sys.platform, sys.platform)
    return (
        f"sparseagg has no {part} on {system}, only on Linux: start a server in a container "
        '(docs/howto/deploy-compose.md), and use sparseagg.Client("localhost:8001")'
    )


def describe() -> str:
    """Returns in a few words what engine this installation has; ``EngineMissingError`` if it has none."""
    return str(load().describe())


def release_memory() -> None:
    """Gives memory that results and aggregators no longer use back to the system.

    The engine keeps up to 256 MiB of it for its next merges, which are faster for that, and for a GPU 1 GiB of pinned
    memory and all that a merge has used there. What is in use stays, arrays of results among it. Thread-safe, also
    while others merge; it waits for a merge on the GPU.

    Raises:
        EngineMissingError: this installation has no engine; the message says what to install.
    """
    load().release_memory()


def error_of_code(
    code: int, message: str, reason: str = "", metadata: Mapping[str, str] | None = None
) -> SparseaggError:
    """Returns the error of a status of the extension: the arguments are those of its ``EngineError``."""
    return error_of(_CODES[code], message, reason, metadata)


@contextlib.contextmanager
def errors() -> Iterator[None]:
    """Turns the extension's errors into the package's."""
    module = load()
    try:
        yield
    except module.EngineError as error:
        raise error_of_code(*error.args) from None
    except MemoryError as error:
        raise error_of(grpc.StatusCode.RESOURCE_EXHAUSTED, f"out of memory: {error}") from error


def _build_reason() -> str:
    try:
        return importlib.resources.files("sparseagg").joinpath(_REASON_FILE).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
