"""What `sparseagg doctor` finds, and what it says to do."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import resource
import sys

import pytest
import sparseagg as sa
from real_server import server_binary
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


@pytest.mark.parametrize(
    ("version", "state"), [("3.20.2", "wrong"), ("3.20.3", "ok"), ("4.0rc1", "ok"), ("10.1", "ok")]
)
def test_doctor_holds_a_requirement_against_its_lower_bound(monkeypatch, version, state):
    true = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version if name == "protobuf" else true(name))
    found = finding("protobuf")
    assert found.state == state
    assert found.advice == ("pip install 'protobuf>=3.20.3'" if state == "wrong" else "")


def test_doctor_finds_two_installations_of_the_package(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "9.9.9")
    found = finding("sparseagg")
    assert (found.state, "9.9.9" in found.found) == ("wrong", True)


def test_doctor_says_why_there_is_no_engine(monkeypatch):
    monkeypatch.setitem(sys.modules, "sparseagg._engine", None)
    found = finding("engine in process")
    assert (found.found, found.state) == ("none", "note")
    assert "no engine" in found.advice


def test_doctor_calls_an_engine_that_does_not_load_wrong(monkeypatch):
    class Broken:
        def find_spec(self, name, path=None, target=None):
            if name == "sparseagg._engine":
                raise ImportError("libtbb.so.12: cannot open shared object file")

    monkeypatch.delitem(sys.modules, "sparseagg._engine", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    found = finding("engine in process")
    assert found.state == "wrong"
    assert "libtbb.so.12" in found.advice


def test_doctor_calls_an_unknown_simd_target_wrong(monkeypatch):
    pytest.importorskip("sparseagg._engine")
    monkeypatch.setenv("SPARSEAGG_SIMD", "no-such-target")
    found = finding("engine in process")
    assert found.state == "wrong"
    assert "no-such-target" in found.advice


def test_doctor_asks_the_server_program_for_its_version(monkeypatch, binary):
    monkeypatch.setenv("SPARSEAGG_SERVER", binary)
    assert finding("sparseagg-server") == doctor.Finding("sparseagg-server", f"{sa.__version__}, {binary}")


@pytest.mark.parametrize(
    ("script", "state", "text"),
    [
        ("echo sparseagg-server 9.8.7", "wrong", f"the package is version {sa.__version__}"),
        ("echo 'libz.so.1: not found' >&2; exit 127", "wrong", "libz.so.1: not found"),
        ("kill -KILL $$", "wrong", "does not run"),
        ("exit 109", "note", "does not tell its version"),
        ("echo hello", "note", "does not tell its version"),
    ],
)
def test_doctor_says_what_is_wrong_with_a_program(monkeypatch, tmp_path, script, state, text):
    monkeypatch.setenv("SPARSEAGG_SERVER", write_program(tmp_path / "server", script))
    found = finding("sparseagg-server")
    assert found.state == state
    assert text in found.advice
    assert str(tmp_path / "server") in found.found


def test_doctor_ends_a_program_that_hangs(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "_TIMEOUT_S", 0.2)
    monkeypatch.setenv("SPARSEAGG_SERVER", write_program(tmp_path / "server", "exec /bin/sleep 60"))
    found = finding("sparseagg-server")
    assert (found.state, "timed out" in found.advice) == ("wrong", True)


def test_doctor_calls_a_variable_without_a_program_wrong(monkeypatch):
    assert finding("sparseagg-loadgen").state == "note"
    monkeypatch.setenv("SPARSEAGG_LOADGEN", "/no/such/program")
    found = finding("sparseagg-loadgen")
    assert found.state == "wrong"
    assert "/no/such/program" in found.advice


@pytest.mark.parametrize(
    ("script", "found", "advice"),
    [
        ("echo 'NVIDIA H100, 81559 MiB, 550.54'", "NVIDIA H100, 81559 MiB, 550.54", ""),
        ("echo 'Failed to initialize NVML'; exit 9", "none", "Failed to initialize NVML"),
        ("exec /bin/sleep 60", "unknown", "timed out"),
    ],
)
def test_doctor_asks_the_driver_for_gpus(monkeypatch, tmp_path, script, found, advice):
    assert finding("GPU").found == "no driver"
    monkeypatch.setattr(doctor, "_TIMEOUT_S", 2.0 if "sleep" not in script else 0.2)
    write_program(tmp_path / "path" / "nvidia-smi", script)
    gpu = finding("GPU")
    assert (gpu.found.split(" (driver)")[0], gpu.state) == (found, "note" if advice else "ok")
    assert advice in gpu.advice


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


@pytest.mark.parametrize(("hard", "text"), [(20_128, ""), (20_127, "9999 connections"), (100, "0 connections")])
def test_doctor_counts_the_connections_that_open_files_allow(monkeypatch, hard, text):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, hard))
    found = finding("open files")
    assert found.state == ("note" if text else "ok")
    assert text in found.advice


def test_doctor_notes_too_little_memory_for_a_server(monkeypatch):
    assert finding("memory") == doctor.Finding("memory", "1.0 GiB")
    monkeypatch.setattr(doctor, "memory_bytes", lambda: (256 << 20) - 1)
    assert finding("memory").state == "note"


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
