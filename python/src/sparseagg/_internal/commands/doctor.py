"""``sparseagg doctor``: what this installation has, what is wrong with it, and what to do."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sparseagg
from sparseagg._internal.base import extension
from sparseagg._internal.client.blocking_client import Client
from sparseagg._internal.commands.parser import add_credentials, client_options, put
from sparseagg._internal.local import cuda_plugin, programs
from sparseagg.errors import (
    EngineMissingError,
    InvalidArgumentError,
    PermissionDeniedError,
    ProgramMissingError,
    SparseaggError,
    UnauthenticatedError,
    UnavailableError,
)

DESCRIPTION = (
    "Shows what this installation has: versions, engine, programs, GPU, limits of this machine. It says what to do "
    "about whatever is missing or wrong. The exit status is 1 if something is wrong; notes are about what is optional."
)

_TIMEOUT_S = 10.0  # of another program, and of the server at --address
# Programs of the package: name, what needs it, and the environment's variable that may name another one.
_PROGRAMS = (
    ("sparseagg-server", "commands that start a server", "SPARSEAGG_SERVER"),
    ("sparseagg-loadgen", "load tests", "SPARSEAGG_LOADGEN"),
)
_LOADER_STATUSES = (126, 127)  # the shell's or the loader's: the program did not run
_MIN_SERVER_BYTES = 256 << 20  # of the server's --memory-limit
# The open files of a server with its default flags, which counts as FitToFiles in service/net/listener.cc does.
_SERVER_CONNECTIONS = 10_000  # --max-connections
_HTTP_CONNECTIONS = 1000  # --max-http-connections, at most a quarter of all
_FILES_PER_CONNECTION = 2
_OTHER_FILES = 3 + 128  # open at its start, and left to files and gRPC
_MARKS = {"ok": "ok", "note": "note", "wrong": "WRONG"}


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the table."""

    name: str  # what was looked at
    found: str  # what was found
    state: str = "ok"  # "ok"; "note": something optional is missing or small; "wrong": something does not work as it is
    advice: str = ""  # what to do, unless the state is "ok"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    parser.add_argument(
        "--address",
        default=os.environ.get("SPARSEAGG_ADDRESS") or None,
        metavar="HOST:PORT",
        help="also check the running server there (default: SPARSEAGG_ADDRESS, if that is set)",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of the table")
    add_credentials(parser)


def main(arguments: argparse.Namespace) -> int:
    """Prints the findings, and returns the exit status: 1 if something is wrong."""
    found = findings(arguments.address, client_options(arguments))
    wrong = sum(finding.state == "wrong" for finding in found)
    if arguments.json:
        report = {"ok": wrong == 0, "findings": [dataclasses.asdict(finding) for finding in found]}
        put(*json.dumps(report, indent=1).split("\n"))
    else:
        put(*_table(found, shutil.get_terminal_size((120, 24)).columns), "", f"wrong: {wrong or 'nothing'}")
    return 1 if wrong else 0


def findings(address: str | None = None, options: Mapping[str, Any] | None = None) -> list[Finding]:
    """Looks at everything; runs other programs, and asks the server at ``address`` if there is one.

    ``options`` are arguments of the ``Client`` that asks.

    Blocks: up to ten seconds for each program and for the server.
    """
    found = [_package(), *_requirements(), _engine()]
    found += [_program(*program) for program in _PROGRAMS]
    found += [_gpu(), _cuda_engine()]
    if address is not None:
        found.append(_server(address, options or {}))
    return [*found, _open_files(), _memory()]


def _package() -> Finding:
    where = pathlib.Path(sparseagg.__file__).parent
    try:
        installed = importlib.metadata.version("sparseagg")
    except importlib.metadata.PackageNotFoundError:
        return Finding(
            "sparseagg",
            f"{sparseagg.__version__} in {where}, not installed by pip",
            "note",
            "`pip install` of the wheel that `make wheels` builds also installs what the package requires",
        )
    if installed != sparseagg.__version__:
        return Finding(
            "sparseagg",
            f"{sparseagg.__version__} in {where}, but pip has installed {installed}",
            "wrong",
            f"remove {where} from PYTHONPATH, or `pip install --force-reinstall` the wheel of {sparseagg.__version__}",
        )
    return Finding("sparseagg", f"{installed} in {where}")


def _requirements() -> Iterator[Finding]:
    """Yields Python and the packages that this one requires, each against its lower bound."""
    try:
        metadata = importlib.metadata.metadata("sparseagg")
        required = importlib.metadata.requires("sparseagg") or []
    except importlib.metadata.PackageNotFoundError:
        yield Finding("python", platform.python_version())
        return
    bound = (metadata["Requires-Python"] or "").replace(">=", "")
    yield _against_bound("python", platform.python_version(), bound, f"install Python {bound} or later")
    for text in required:
        match = re.match(r"([\w.-]+) *\(?>=([\d.]+)", text)
        if match is None or "extra" in text:
            continue
        name, bound = match.groups()
        advice = f"pip install '{name}>={bound}'"
        try:
            yield _against_bound(name, importlib.metadata.version(name), bound, advice)
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name, "none", "wrong", advice)


def _against_bound(name: str, version: str, bound: str, advice: str) -> Finding:
    if _numbers(version) < _numbers(bound):
        return Finding(name, f"{version}, older than {bound}", "wrong", advice)
    return Finding(name, f"{version} ({bound} or later)")


def _numbers(version: str) -> list[int]:
    """Returns the numbers at the beginning of a version."""
    match = re.match(r"\d+(\.\d+)*", version)
    return [int(number) for number in match.group().split(".")] if match else []


def _engine() -> Finding:
    try:
        return Finding("engine in process", extension.describe())
    except EngineMissingError as error:
        # A module that is there and does not load is a fault; an installation without one is the client alone.
        absent = isinstance(error.__cause__, ModuleNotFoundError)
        return Finding("engine in process", "none", "note" if absent else "wrong", str(error))
    except SparseaggError as error:
        return Finding("engine in process", "does not start", "wrong", str(error))


def _program(name: str, purpose: str, variable: str) -> Finding:
    try:
        path = programs.find(name)
    except ProgramMissingError as error:
        state = "wrong" if os.environ.get(variable) else "note"
        return Finding(name, f"none; {purpose} need it", state, str(error))
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding(name, path, "wrong", f"it does not run: {error}")
    if done.returncode in _LOADER_STATUSES or done.returncode < 0:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return Finding(name, path, "wrong", f"it does not run: {last}")
    match = re.search(r"\b(\d+\.\d+\.\d+\S*)", done.stdout)
    if done.returncode != 0 or match is None:
        return Finding(name, path, "note", "it does not tell its version; nothing to do")
    if match.group(1) != sparseagg.__version__:
        return Finding(
            name,
            f"{match.group(1)}, {path}",
            "wrong",
            f"the package is version {sparseagg.__version__}; install both in the same version",
        )
    return Finding(name, f"{match.group(1)}, {path}")


def _gpu() -> Finding:
    program = shutil.which("nvidia-smi")
    if program is None:
        driver = cuda_plugin.driver()
        if driver is not None:
            return Finding("GPU", f"driver {driver}, no nvidia-smi")
        return Finding(
            "GPU", "no driver", "note", "where there is an NVIDIA GPU, install its driver; the CPU engine needs none"
        )
    command = [program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("GPU", "unknown", "note", f"nvidia-smi does not answer ({error}); look at the driver's log")
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        said = " ".join((done.stdout + done.stderr).split()) or f"exit status {done.returncode}"
        return Finding("GPU", "none", "note", f"nvidia-smi says: {said}")
    return Finding("GPU", "; ".join(f"{line.strip()} (driver)" for line in lines))


def _cuda_engine() -> Finding:
    name = "CUDA engine"
    path = cuda_plugin.find()
    if path is None:
        if cuda_plugin.driver() is None:
            return Finding(name, "none, and no driver for one")
        return Finding(name, "none", "note", f"to merge on the GPU: {cuda_plugin.CURE}")
    if extension.find() is None:
        return Finding(name, f"{path}, not tried", "note", "the engine in process loads it, and there is none")
    try:
        return Finding(name, f"{cuda_plugin.load()}, {path}")
    except SparseaggError as error:
        return Finding(name, f"{path}, refused", "wrong", str(error))


def _server(address: str, options: Mapping[str, Any]) -> Finding:
    name = f"server at {address}"
    try:
        with Client(address, timeout=_TIMEOUT_S, **options) as client:
            info = client.server_info()
    except (UnauthenticatedError, PermissionDeniedError) as error:
        return Finding(name, "runs, but refuses this caller", "wrong", f"{error}; --token-file has a token")
    except InvalidArgumentError as error:
        return Finding(name, "not asked", "wrong", str(error))
    except SparseaggError as error:
        is_there = isinstance(error, UnavailableError) and error.cannot_pass
        return Finding(name, "there, but not for this connection" if is_there else "no answer", "wrong", str(error))
    found = f"{info.version}, {info.engine} engine: {info.engine_description}"
    if not _work_together(info.version, sparseagg.__version__):
        return Finding(
            name,
            found,
            "wrong",
            f"a client of version {sparseagg.__version__} needs a server at most one minor version older or newer",
        )
    return Finding(name, found)


def _work_together(one: str, other: str) -> bool:
    """Returns whether a client and a server of these versions work together, as docs/compatibility.md promises."""
    (major, minor), (other_major, other_minor) = (([*_numbers(version), 0, 0])[:2] for version in (one, other))
    return major == other_major and abs(minor - other_minor) <= 1


def _open_files() -> Finding:
    try:
        import resource
    except ImportError:  # no such limits
        return Finding("open files", "no limit")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return Finding("open files", f"{soft}; a server raises it without limit")
    found = f"{soft}; a server raises it to {hard}"
    wanted = _FILES_PER_CONNECTION * (_SERVER_CONNECTIONS + _HTTP_CONNECTIONS) + _OTHER_FILES
    if hard >= wanted:
        return Finding("open files", found)
    most = max(0, (hard - _OTHER_FILES) // _FILES_PER_CONNECTION)
    http = min(_HTTP_CONNECTIONS, most // 4)
    return Finding(
        "open files",
        found,
        "note",
        f"a server takes {most - http} connections of gRPC and {http} of HTTP; for {_SERVER_CONNECTIONS} and "
        f"{_HTTP_CONNECTIONS}, raise the hard limit to {wanted}",
    )


def _memory() -> Finding:
    size = memory_bytes()
    found = f"{size / (1 << 30):.1f} GiB"
    if size >= _MIN_SERVER_BYTES:
        return Finding("memory", found)
    return Finding("memory", found, "note", f"a server needs {_MIN_SERVER_BYTES >> 20} MiB; give the container more")


def memory_bytes(root: pathlib.Path = pathlib.Path("/")) -> int:
    """Returns the memory that this process may use: of the machine, or less where a control group says so. ``root``: of
    the file system with ``proc`` and ``sys``.
    """
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        groups = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:  # no control groups
        return size
    for group in groups:  # number:controllers:path; version 2 has no controllers
        _, controllers, path = group.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        top = root / ("sys/fs/cgroup/memory" if controllers else "sys/fs/cgroup")
        file = "memory.limit_in_bytes" if controllers else "memory.max"
        # In a container the path may be that of the host, with the container's own group at the top.
        inner = pathlib.PurePosixPath(path.lstrip("/"))
        for folder in {inner, *inner.parents}:
            try:
                size = min(size, int((top / folder / file).read_text(encoding="utf-8")))
            except (OSError, ValueError):  # no such file; "max"
                continue
    return size


def _table(found: Sequence[Finding], columns: int) -> list[str]:
    """Returns a line for each finding, with the advice below, wrapped to ``columns``."""
    width = max(len(finding.name) for finding in found)
    lines: list[str] = []
    for finding in found:
        head = f"{_MARKS[finding.state]:5}  {finding.name:{width}}  "
        indent = " " * len(head)
        lines += _filled(head + finding.found, columns, indent)
        if finding.advice:
            lines += _filled(f"{indent}→ {finding.advice}", columns, f"{indent}  ")
    return lines


def _filled(text: str, columns: int, indent: str) -> list[str]:
    """Returns ``text`` in lines of ``columns``, or longer ones so that no path or address is broken."""
    return textwrap.wrap(text, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
