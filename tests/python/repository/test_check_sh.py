"""The bundle's check.sh, with stand-ins for the programs of a bundle."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from real_server import REPOSITORY

NO_GPU = "UNAVAILABLE: no usable GPU: this machine has no NVIDIA driver"
PARTS = ["device", "contract", "sanitizer", "bench", "profile", "peers", "faults", "serve", "differential"]
SERVER = """
if [[ $1 == --version ]]; then echo sparseagg 1.2; exit; fi
trap 'exit 0' TERM
echo listening grpc=127.0.0.1:9
for ((;;)); do read -r -t 0.1 <> <(:) || true; done
"""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle on a machine without a GPU, whose programs do nothing and succeed."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "peers").mkdir()
    (tmp_path / "peers" / "gpu_peers.py").touch()
    shutil.copy(REPOSITORY / "bundle" / "check.sh", tmp_path)
    for name in ("merge_bench", "sparseagg-loadgen"):
        write_program(tmp_path, name, "")
    write_program(tmp_path, "sparseagg_engine_tests", "# RunBlocks\necho '[  PASSED  ] 12 tests.'")
    write_program(tmp_path, "compute-sanitizer", "")
    write_program(tmp_path, "ncu", "")
    write_program(tmp_path, "nvidia-smi", "")
    write_program(tmp_path, "sparseagg-server", SERVER)
    write_probe(tmp_path, f'echo "gpu_bench: {NO_GPU}" >&2; exit 1')
    return tmp_path


def write_program(bundle: Path, name: str, text: str) -> None:
    program = bundle / "bin" / name
    program.write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
    program.chmod(0o755)


def write_probe(bundle: Path, text: str) -> None:
    write_program(bundle, "gpu_bench", f"if [[ $1 == --probe ]]; then {text}; fi")


def check(bundle: Path, *arguments: str) -> tuple[int, dict]:
    """Runs check.sh; returns its exit status and what it wrote into check.json."""
    command = [str(bundle / "check.sh"), "--out", str(bundle / "out"), *arguments]
    environment = {**os.environ, "PATH": f"{bundle / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, cwd=bundle, check=False)
    return done.returncode, json.loads((bundle / "out" / "check.json").read_text(encoding="utf-8"))


def test_without_a_gpu_the_cpu_half_runs_and_the_other_is_listed(bundle) -> None:
    status, found = check(bundle)
    assert status == 0
    assert list(dict.fromkeys(step["part"] for step in found["steps"])) == PARTS
    assert {step["part"] for step in found["steps"] if step["half"] == "gpu"} == set(PARTS)
    assert {step["result"] for step in found["steps"] if step["half"] == "cpu"} == {"ok"}
    assert {(step["result"], step["note"]) for step in found["steps"] if step["half"] == "gpu"} == {("not run", NO_GPU)}


@pytest.mark.parametrize("arguments", [(), ("--half", "both", "--quick")])
def test_with_a_gpu_every_step_runs(bundle, arguments) -> None:
    write_probe(bundle, "echo 'A \"GPU\"'")
    status, found = check(bundle, *arguments)
    assert (status, found["device"], found["no_gpu"]) == (0, "A 'GPU'", "")
    assert {step["half"] for step in found["steps"]} == ({"cpu", "gpu"} if arguments else {"gpu"})
    assert {step["result"] for step in found["steps"]} == {"ok"}
    notes = {step["part"]: step["note"] for step in found["steps"]}
    assert notes["contract"] == "12 tests passed"
    files = sorted(path.name for path in (bundle / "out").iterdir())
    assert len(files) <= 8
    with tarfile.open(bundle / "out" / "more.tar") as more:
        assert len([name for name in more.getnames() if name.endswith(".log")]) == len(found["steps"])


@pytest.mark.parametrize("probe", ["exit 139", "echo INTERNAL: cudaErrorUnknown; exit 1"])
def test_a_probe_that_breaks_is_a_failure_and_not_a_machine_without_a_gpu(bundle, probe) -> None:
    write_probe(bundle, probe)
    status, found = check(bundle, "--only", "contract")
    assert status == 1
    failed = [(step["part"], step["half"], step["step"]) for step in found["steps"] if step["result"] == "FAILED"]
    assert failed == [("device", "gpu", "probe")]


@pytest.mark.parametrize(
    ("program", "text", "part"),
    [
        ("sparseagg_engine_tests", "exit 3", "contract"),
        ("sparseagg_engine_tests", "echo '[==========] 0 tests from 0 test suites ran.'", "faults"),
        ("sparseagg-loadgen", "exit 1", "serve"),
        ("sparseagg-server", "exit 1", "serve"),
        ("sparseagg-server", SERVER.replace("exit 0", "exit 4"), "serve"),
        ("sparseagg-server", SERVER.replace("echo", "echo 'event: gpu_fallback' >&2; echo"), "serve"),
        ("compute-sanitizer", "exit 9", "sanitizer"),
    ],
)
def test_a_failure_is_found_and_the_rest_goes_on(bundle, program, text, part) -> None:
    write_probe(bundle, "echo A GPU")
    write_program(bundle, program, text)
    status, found = check(bundle, "--only", f"device,{part}")
    assert status == 1
    results = {step["part"]: step["result"] for step in found["steps"]}
    assert results == {"device": "ok", part: "FAILED"}


def test_no_step_goes_on_beyond_the_time_there_is(bundle) -> None:
    write_program(bundle, "sparseagg_engine_tests", "exec sleep 60")
    status, found = check(bundle, "--only", "contract,faults", "--half", "cpu", "--within", "2")
    assert (status, [step["result"] for step in found["steps"]]) == (1, ["TIMEOUT", "not run"])


@pytest.mark.parametrize("arguments", [("--only", "bench,everything"), ("--only",), ("--half", "none"), ("--fast",)])
def test_wrong_use_is_refused(bundle, arguments) -> None:
    done = subprocess.run([str(bundle / "check.sh"), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "usage: check.sh" in done.stderr
