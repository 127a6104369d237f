"""What `sparseagg doctor` finds, and what it says to do."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import resource
import sys

import pytest
import sparseagg as sa
from http_calls import LOCAL
from real_server import ServerProcess, server_binary
from sparseagg._internal.base import extension
from sparseagg._internal.commands import doctor
from sparseagg._internal.commands.cli import main
from sparseagg._internal.commands.doctor import memory_bytes


@pytest.fixture(scope="session")
def binary() -> str:
    return server_binary()  # before a test changes the environment


@pytest.fixture(autouse=True)
def _only_what_a_test_sets(monkeypatch, tmp_path):
    """A PATH without programs, no variables, and an engine that is looked for anew."""
    for variable in ("SERVER", "LOADGEN", "ADDRESS", "SIMD", "CUDA_PLUGIN"):
        monkeypatch.delenv(f"SPARSEAGG_{variable}", raising=False)
    monkeypatch.setattr("sparseagg._internal.local.cuda_plugin._DRIVER_MODULE", tmp_path / "driver")
    monkeypatch.setattr("sparseagg._internal.local.cuda_plugin._DRIVER_LIBRARY", str(tmp_path / "libcuda.so"))
    monkeypatch.setattr("sparseagg._internal.local.cuda_plugin._MODULE", "sparseagg_no_such_package")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr("sparseagg._internal.local.programs._PACKAGE", tmp_path)
    monkeypatch.setattr(doctor, "memory_bytes", lambda: 1 << 30)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1 << 20))
    extension.load.cache_clear()
    yield
    extension.load.cache_clear()


def finding(name: str, address: str | None = None) -> doctor.Finding:
    (found,) = [each for each in doctor.findings(address) if each.name == name]
    return found


def write_program(path: pathlib.Path, script: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_doctor_shows_package_python_and_requirements():
    names = ["sparseagg", "python", "numpy", "grpcio", "protobuf"]
    found = doctor.findings()[: len(names)]
    assert [each.name for each in found] == names
    assert {each.state for each in found} == {"ok"}
    assert found[0].found.startswith(sa.__version__)
    assert found[1].found == f"{sys.version.split()[0]} (3.9 or later)"
    assert found[2].found == f"{importlib.metadata.version('numpy')} (1.23 or later)"


def has_version(name: str, version: str):
    def prepare(monkeypatch, _) -> None:
        true = importlib.metadata.version
        monkeypatch.setattr(importlib.metadata, "version", lambda each: version if each == name else true(each))

    return prepare


class NoLibrary:
    """What an import of the engine ends with where a library of it is missing."""

    def find_spec(self, name, path=None, target=None):
        if name == "sparseagg._engine":
            raise ImportError("libtbb.so.12: cannot open shared object file")


def breaks_the_engine(monkeypatch, _) -> None:
    monkeypatch.delitem(sys.modules, "sparseagg._engine", raising=False)
    monkeypatch.setattr(sys, "meta_path", [NoLibrary(), *sys.meta_path])


def server_program(script: str):
    return lambda monkeypatch, folder: monkeypatch.setenv("SPARSEAGG_SERVER", write_program(folder / "server", script))


def driver(script: str):
    return lambda _, folder: write_program(folder / "path" / "nvidia-smi", script)


def variable(name: str, value: str):
    return lambda monkeypatch, _: monkeypatch.setenv(f"SPARSEAGG_{name}", value)


def open_files(hard: int):
    return lambda monkeypatch, _: monkeypatch.setattr(resource, "getrlimit", lambda _: (100, hard))


def memory(size: int):
    return lambda monkeypatch, _: monkeypatch.setattr(doctor, "memory_bytes", lambda: size)


def nothing(*_) -> None:
    pass


@pytest.mark.parametrize(
    ("prepare", "name", "state", "text"),
    [
        (has_version("protobuf", "3.20.2"), "protobuf", "wrong", "pip install 'protobuf>=3.20.3'"),
        (has_version("protobuf", "3.20.3"), "protobuf", "ok", ""),
        (has_version("protobuf", "4.0rc1"), "protobuf", "ok", ""),
        (has_version("protobuf", "10.1"), "protobuf", "ok", ""),
        (has_version("sparseagg", "9.9.9"), "sparseagg", "wrong", "9.9.9"),
        (lambda patch, _: patch.setitem(sys.modules, "sparseagg._engine", None), "engine in process", "note", "none"),
        (breaks_the_engine, "engine in process", "wrong", "libtbb.so.12"),
        (variable("SIMD", "no-such-target"), "engine in process", "wrong", "no-such-target"),
        (server_program("echo sparseagg-server 9.8.7"), "sparseagg-server", "wrong", "the package is version"),
        (server_program("echo 'libz.so.1: not found' >&2; exit 127"), "sparseagg-server", "wrong", "libz.so.1: not"),
        (server_program("kill -KILL $$"), "sparseagg-server", "wrong", "does not run"),
        (server_program("exit 109"), "sparseagg-server", "note", "does not tell its version"),
        (server_program("echo hello"), "sparseagg-server", "note", "does not tell its version"),
        (server_program("exec /bin/sleep 60"), "sparseagg-server", "wrong", "timed out"),
        (nothing, "sparseagg-loadgen", "note", ""),
        (variable("LOADGEN", "/no/such/program"), "sparseagg-loadgen", "wrong", "/no/such/program"),
        (nothing, "GPU", "note", "no driver"),
        (driver("echo 'NVIDIA H100, 81559 MiB, 550.54'"), "GPU", "ok", "NVIDIA H100, 81559 MiB, 550.54"),
        (driver("echo 'Failed to initialize NVML'; exit 9"), "GPU", "note", "Failed to initialize NVML"),
        (driver("exec /bin/sleep 60"), "GPU", "note", "timed out"),
        (open_files(22_131), "open files", "ok", ""),
        (open_files(22_130), "open files", "note", "9999 connections of gRPC and 1000 of HTTP"),
        (open_files(100), "open files", "note", "0 connections"),
        (nothing, "memory", "ok", "1.0 GiB"),
        (memory((256 << 20) - 1), "memory", "note", ""),
    ],
)
def test_doctor_says_what_it_finds(monkeypatch, tmp_path, prepare, name, state, text):
    # What hangs is ended soon; what does not has its time on a busy machine.
    hangs = "timed out" in text
    monkeypatch.setattr(doctor, "_TIMEOUT_S", 0.2 if hangs else 60.0)
    prepare(monkeypatch, tmp_path)
    found = finding(name)
    assert found.state == state
    assert text in f"{found.found} {found.advice}"


@pytest.mark.parametrize("hard", [600, 1000, 9_999])
def test_doctor_counts_the_connections_as_a_server_does(monkeypatch, tmp_path, binary, hard):
    monkeypatch.setenv("SPARSEAGG_SERVER", write_program(tmp_path / "server", f'ulimit -n {hard}; exec {binary} "$@"'))
    server = ServerProcess(tmp_path / "log", *LOCAL, "--metrics-address", "none")
    with sa.Client(server.address) as client:
        connections = client.server_info().limits.max_connections
    assert server.stop() == 0
    open_files(hard)(monkeypatch, tmp_path)
    assert f"a server takes {connections} connections" in finding("open files").advice


def test_doctor_asks_the_server_program_for_its_version(monkeypatch, binary):
    monkeypatch.setenv("SPARSEAGG_SERVER", binary)
    assert finding("sparseagg-server") == doctor.Finding("sparseagg-server", f"{sa.__version__}, {binary}")


def test_doctor_reads_the_drivers_version_and_says_how_to_merge_on_the_gpu(tmp_path):
    assert (finding("CUDA engine").found, finding("CUDA engine").state) == ("none, and no driver for one", "ok")
    line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
    (tmp_path / "driver").write_text(line, encoding="utf-8")
    assert finding("GPU").found == "driver 550.54.15, no nvidia-smi"
    engine = finding("CUDA engine")
    assert (engine.found, engine.state) == ("none", "note")
    assert "make cuda-wheel" in engine.advice
    assert "R580" in engine.advice


def test_doctor_calls_a_server_that_does_not_answer_wrong():
    found = finding("server at 127.0.0.1:1", "127.0.0.1:1")
    assert (found.found, found.state) == ("no answer", "wrong")
    assert "refused" in found.advice


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ("0.1.0", "0.1.9", True),
        ("0.1.0", "0.2.0", True),
        ("0.1.9", "0.3.0", False),
        ("0.9.0", "1.0.0", False),
        ("1.9", "1.10", True),
        ("1.2.0rc1", "1.1", True),
    ],
)
def test_doctor_knows_which_versions_work_together(one, other, together):
    assert doctor._work_together(one, other) is together
    assert doctor._work_together(other, one) is together


def test_doctor_calls_a_server_of_a_distant_version_wrong(monkeypatch, server):
    monkeypatch.setattr(sa, "__version__", "99.0.0")
    found = finding(f"server at {server.address}", server.address)
    assert found.state == "wrong"
    assert "a client of version 99.0.0" in found.advice


V1, V2 = "sys/fs/cgroup/memory", "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/", {f"{V2}/memory.max": 5}, 5),
        ("0::/a/b", {f"{V2}/a/b/memory.max": "max", f"{V2}/a/memory.max": 7, f"{V2}/memory.max": 9}, 7),
        ("0::/of/the/host", {f"{V2}/memory.max": 9}, 9),
        (
            "4:cpu:/x\n3:memory:/a",
            {f"{V1}/a/memory.limit_in_bytes": 3, f"{V1}/x/memory.limit_in_bytes": 2, f"{V2}/a/memory.max": 1},
            3,
        ),
        ("0::/", {f"{V2}/memory.max": 1 << 62}, None),
        ("0::/", {f"{V2}/memory.max": "max"}, None),
        (None, {}, None),
    ],
)
def test_doctor_counts_the_memory_of_the_container(tmp_path, groups, files, expected):
    files = files if groups is None else {"proc/self/cgroup": groups, **files}
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n", encoding="utf-8")
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory_bytes(tmp_path) == (machine if expected is None else expected)


def test_doctor_prints_a_table_and_its_exit_status(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("COLUMNS", "70")
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "wrong: nothing"
    assert any(line.startswith("ok     numpy  ") for line in lines)
    assert any(line.startswith("note   GPU  ") for line in lines)
    assert max(len(line) for line in lines if "/" not in line) <= 70
    monkeypatch.setenv("SPARSEAGG_SERVER", write_program(tmp_path / "server", "echo 9.8.7"))
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "wrong: 1"
    assert any(line.startswith("WRONG  sparseagg-server  ") for line in lines)
    assert any(line.lstrip().startswith("→ the package is version") for line in lines)
