"""The bundle's check.sh, with stand-ins for its programs: what it runs, what it says, and its exit status."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import REPOSITORY

PROGRAMS = ("gpu_bench", "merge_bench", "sparseagg-server", "sparseagg_engine_tests")
NO_GPU = "UNAVAILABLE: no usable GPU: this machine has no NVIDIA driver"
PARTS = ["device", "contract", "faults", "differential", "bench", "peers", "serve", "sanitizer"]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle on a machine without a GPU, whose programs write down how they were called."""
    (tmp_path / "bin").mkdir()
    shutil.copy(REPOSITORY / "bundle" / "check.sh", tmp_path)
    shutil.copy(REPOSITORY / "bundle" / "sparseagg.toml", tmp_path)
    for name in PROGRAMS:
        write_program(tmp_path, name, "")
    write_program(tmp_path, "gpu_bench", f'if [[ $1 == --probe ]]; then echo "gpu_bench: {NO_GPU}" >&2; exit 1; fi')
    write_program(tmp_path, "sparseagg-server", "if [[ $1 == --version ]]; then echo sparseagg 1.2; else exit 1; fi")
    return tmp_path


def write_program(bundle: Path, name: str, text: str) -> None:
    program = bundle / "bin" / name
    program.write_text(
        f'#!/bin/bash\necho "{name} $* cases=$SPARSEAGG_TEST_CASES tuples=$SPARSEAGG_TEST_TUPLES" >> "{bundle}/calls"\n'
        f"{text}\n",
        encoding="utf-8",
    )
    program.chmod(0o755)


def give_gpu(bundle: Path) -> None:
    write_program(bundle, "gpu_bench", "if [[ $1 == --probe ]]; then echo 'A GPU, with \"quotes\"'; fi")
    (bundle / "peers").mkdir()
    (bundle / "peers" / "gpu_peers.py").write_text("", encoding="utf-8")


def check(bundle: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(bundle / "check.sh"), "--out", str(bundle / "out"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=bundle, check=False)


def steps(bundle: Path) -> list[dict]:
    return json.loads((bundle / "out" / "check.json").read_text(encoding="utf-8"))["steps"]


def test_without_a_gpu_the_cpu_half_runs_and_the_other_is_listed(bundle) -> None:
    done = check(bundle)
    assert done.returncode == 0, done.stdout
    found = steps(bundle)
    assert list(dict.fromkeys(step["part"] for step in found)) == PARTS
    gpu = [step for step in found if step["half"] == "gpu"]
    assert {step["part"] for step in gpu} == set(PARTS)
    assert all(step["result"] == "not run" and step["note"] == NO_GPU for step in gpu)
    assert all(step["result"] == "ok" for step in found if step["half"] == "cpu" and "load" not in step["step"])
    assert done.stdout.rstrip().endswith(f"the GPU half was not run: {NO_GPU}")
    calls = (bundle / "calls").read_text(encoding="utf-8")
    assert " --gtest_filter=-*Differential*:*RealSize*:*Faults*:RealDevice*:*/cuda cases=2500" in calls


def test_with_a_gpu_both_halves_run_if_asked(bundle) -> None:
    give_gpu(bundle)
    done = check(bundle, "--half", "both")
    assert done.returncode == 0, done.stdout
    not_run = {step["step"]: step["note"] for step in steps(bundle) if step["result"] == "not run"}
    assert set(not_run) <= {"a load on the server", "memcheck", "racecheck"}
    written = json.loads((bundle / "out" / "check.json").read_text(encoding="utf-8"))
    assert written["device"] == 'A GPU, with "quotes"'
    assert written["no_gpu"] == ""
    calls = (bundle / "calls").read_text(encoding="utf-8")
    assert "sparseagg_engine_tests --gtest_filter=*RealSize* cases= tuples=100000000" in calls
    assert "gtest_filter=*/cuda:RealDevice.*" in calls
    for path in ("tiles", "sort"):
        assert f"gpu-{path}.json --path {path} --workloads AB --variants plain" in calls
    assert {step["half"] for step in steps(bundle)} == {"cpu", "gpu"}


@pytest.mark.parametrize(("arguments", "half"), [((), "gpu"), (("--half", "gpu"), "gpu"), (("--half", "cpu"), "cpu")])
def test_with_a_gpu_the_cpu_half_runs_only_if_asked(bundle, arguments, half) -> None:
    give_gpu(bundle)
    done = check(bundle, "--only", "contract,faults", *arguments)
    assert done.returncode == 0, done.stdout
    assert [(step["part"], step["half"]) for step in steps(bundle)] == [("contract", half), ("faults", half)]


def test_the_gpu_half_alone_needs_a_gpu(bundle) -> None:
    done = check(bundle, "--only", "contract", "--half", "gpu")
    assert done.returncode == 1
    assert f"--half gpu was asked for, but: {NO_GPU}" in done.stdout


def test_every_step_is_written_when_it_is_done(bundle) -> None:
    write_program(
        bundle, "sparseagg_engine_tests", f'if [[ $1 == *FaultsTest* ]]; then kill -KILL $(<"{bundle}/pid"); fi'
    )
    command = f'echo $$ > "{bundle}/pid"; exec "{bundle}/check.sh" --out "{bundle}/out" --only contract,faults'
    done = subprocess.run(["bash", "-c", command], capture_output=True, cwd=bundle, check=False)
    assert done.returncode == -9
    found = [(step["part"], step["half"], step["result"]) for step in steps(bundle)]
    assert found == [("contract", "cpu", "ok"), ("contract", "gpu", "not run")]


def test_no_step_goes_on_beyond_the_time_there_is(bundle) -> None:
    write_program(bundle, "sparseagg_engine_tests", "exec sleep 60")
    done = check(bundle, "--only", "contract,faults", "--half", "cpu", "--within", "2")
    assert done.returncode == 1
    assert [step["result"] for step in steps(bundle)] == ["TIMEOUT", "not run"]
    assert [step["note"].split(",")[0] for step in steps(bundle)][1] == "nothing is left of 2 s"


SANITIZER = """
if [[ $* == *"--tool racecheck --error-exitcode 9 --kernel-name kns=RunBlocks"* ]]; then exit 9; fi
[[ $* == *"--tool memcheck --error-exitcode 9 "*sparseagg_engine_tests* ]] && exec sleep 60
"""


@pytest.mark.parametrize(("has_kernel", "result"), [(True, "ok"), (False, "FAILED")])
def test_the_sanitizers_findings_are_told_from_a_lack_of_time(bundle, monkeypatch, has_kernel, result) -> None:
    give_gpu(bundle)
    write_program(bundle, "sparseagg_engine_tests", "# _ZN9sparseagg4cuda9RunBlocksI" if has_kernel else "")
    write_program(bundle, "compute-sanitizer", SANITIZER)
    script = (bundle / "check.sh").read_text(encoding="utf-8")
    for limits in ("60 150", "120 300"):
        assert f'"$(either {limits})"' in script
        script = script.replace(f'"$(either {limits})"', "1")
    (bundle / "check.sh").write_text(script, encoding="utf-8")
    monkeypatch.setenv("PATH", f"{bundle / 'bin'}:{os.environ['PATH']}")
    assert check(bundle, "--only", "sanitizer").returncode == 1
    found = {step["step"]: (step["result"], step["note"].split(",")[0]) for step in steps(bundle)}
    assert found["memcheck: device"] == ("TIMEOUT", "not done after 1 s")
    assert found["racecheck: device"] == ("FAILED", "status 9")
    assert found["racecheck: its kernel"][0] == result


@pytest.mark.parametrize(
    "probe",
    ["exit 139", "echo 'gpu_bench: INTERNAL: cudaErrorUnknown' >&2; exit 1", "exit 127"],
    ids=["crash", "error", "missing"],
)
def test_a_probe_that_breaks_is_a_failure_and_not_a_machine_without_a_gpu(bundle, probe) -> None:
    write_program(bundle, "gpu_bench", f"if [[ $1 == --probe ]]; then {probe}; fi")
    done = check(bundle, "--only", "contract")
    assert done.returncode == 1, done.stdout
    failed = [step for step in steps(bundle) if step["result"] == "FAILED"]
    assert [(step["part"], step["half"], step["step"]) for step in failed] == [("device", "gpu", "probe")]
    assert "the probe ended with status" in failed[0]["note"]


@pytest.mark.parametrize(
    ("hidden", "reason", "status"),
    [(None, NO_GPU, 1), ("", NO_GPU, 0), ("-1", NO_GPU, 0), (None, "UNAVAILABLE: this build has no CUDA engine", 0)],
)
def test_a_device_that_the_system_lists_must_be_used(bundle, monkeypatch, hidden, reason, status) -> None:
    write_program(bundle, "nvidia-smi", "[[ $1 != -L ]] || echo 'GPU 0: A GPU (UUID: GPU-1)'")
    write_program(bundle, "gpu_bench", f'if [[ $1 == --probe ]]; then echo "gpu_bench: {reason}" >&2; exit 1; fi')
    monkeypatch.setenv("PATH", f"{bundle / 'bin'}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    done = check(bundle, "--only", "device")
    assert done.returncode == status, done.stdout
    assert ("nvidia-smi lists a device" in done.stdout) == (status == 1)


def test_quick_asks_for_less(bundle) -> None:
    give_gpu(bundle)
    assert check(bundle, "--quick", "--only", "differential").returncode == 0
    calls = (bundle / "calls").read_text(encoding="utf-8")
    assert "tuples=10000000" in calls
    assert "tuples=100000000" not in calls


def test_a_failure_is_shown_and_the_rest_goes_on(bundle) -> None:
    write_program(
        bundle, "sparseagg_engine_tests", "if [[ $1 == *FaultsTest* ]]; then exit 0; fi; echo what is wrong; exit 3"
    )
    done = check(bundle, "--only", "contract", "--only", "faults")
    assert done.returncode == 1
    assert "    what is wrong" in done.stdout
    results = {(step["part"], step["step"]): (step["result"], step["note"]) for step in steps(bundle)}
    assert results["faults", "at every call, on the host"] == ("ok", "")
    failed = [step for step in steps(bundle) if step["result"] == "FAILED"]
    assert [(step["part"], step["half"]) for step in failed] == [("contract", "cpu")]
    assert failed[0]["note"] == "status 3, see contract-cpu-every-engine-and-kernel.log"


def test_a_server_that_starts_without_the_device_it_needs_is_a_failure(bundle) -> None:
    write_program(bundle, "sparseagg-server", "")
    assert check(bundle, "--only", "serve").returncode == 1


SERVER = """
if [[ $1 == --version ]]; then echo sparseagg 1.2; exit; fi
if [[ $* == *'--backend cuda' ]]; then exit 1; fi
trap 'exit 0' TERM
echo listening grpc=127.0.0.1:9
for ((;;)); do read -r -t 0.1 <> <(:) || true; done
"""


def test_serve_puts_the_server_under_load_and_ends_it(bundle) -> None:
    write_program(bundle, "sparseagg-server", SERVER)
    write_program(bundle, "sparseagg-loadgen", "")
    done = check(bundle, "--only", "serve")
    assert done.returncode == 0, done.stdout
    calls = (bundle / "calls").read_text(encoding="utf-8")
    assert "sparseagg-loadgen --target 127.0.0.1:9 --repetitions 3 --divide-clients 1 --out" in calls
    assert "sparseagg-server --config" in calls


@pytest.mark.parametrize("falls_back", [False, True])
def test_a_server_that_did_without_its_device_is_a_failure(bundle, falls_back) -> None:
    give_gpu(bundle)
    server = SERVER.replace("if [[ $* == *'--backend cuda' ]]; then exit 1; fi", "")
    log = '{"severity":"WARNING","event":"gpu_fallback","reason":"RESOURCE_EXHAUSTED: no memory"}'
    server = server.replace("echo listening", f"echo '{log}' >&2; echo listening") if falls_back else server
    write_program(bundle, "sparseagg-server", server)
    write_program(bundle, "sparseagg-loadgen", "")
    done = check(bundle, "--only", "serve", "--half", "gpu")
    assert done.returncode == int(falls_back), done.stdout


@pytest.mark.parametrize("broken", ["sparseagg-loadgen", "sparseagg-server"])
def test_serve_fails_with_the_load_or_the_server(bundle, broken) -> None:
    write_program(bundle, "sparseagg-server", SERVER)
    write_program(bundle, "sparseagg-loadgen", "")
    write_program(
        bundle, broken, "exit 1" if broken.endswith("loadgen") else SERVER.replace("exit 0' TERM", "exit 4' TERM")
    )
    assert check(bundle, "--only", "serve").returncode == 1
    assert [step["result"] for step in steps(bundle) if "load" in step["step"]] == ["FAILED", "not run"]


def test_gtest_counts_are_quoted(bundle) -> None:
    write_program(bundle, "sparseagg_engine_tests", "echo '[  PASSED  ] 12 tests.'")
    check(bundle, "--only", "faults")
    assert [step["note"] for step in steps(bundle) if step["half"] == "cpu"] == ["12 tests passed"]


def test_a_step_that_runs_no_test_has_failed(bundle) -> None:
    write_program(bundle, "sparseagg_engine_tests", "echo '[==========] 0 tests from 0 test suites ran. (0 ms total)'")
    assert check(bundle, "--only", "faults").returncode == 1
    assert "no test was run" in next(step["note"] for step in steps(bundle) if step["half"] == "cpu")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--only", "everything"),
        ("--only", "bench,everything"),
        ("--only", ""),
        ("--only",),
        ("--half", "none"),
        ("--half",),
        ("--within", "soon"),
        ("--fast",),
    ],
)
def test_wrong_use_is_refused(bundle, arguments) -> None:
    done = subprocess.run([str(bundle / "check.sh"), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "usage: check.sh" in done.stderr
