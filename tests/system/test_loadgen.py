"""sparseagg-loadgen against a real server, and the benchmark that is made of it."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
import sparseagg as sa
from real_server import REPOSITORY, server_binary


def loadgen_binary() -> str:
    path = os.environ.get("SPARSEAGG_LOADGEN") or str(REPOSITORY / "build/dev/tools/loadgen/sparseagg-loadgen")
    assert os.access(path, os.X_OK), f"no load generator at {path}: build it (`make build`) or set SPARSEAGG_LOADGEN"
    return path


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [loadgen_binary(), *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )


def measure(address: str, *arguments: object) -> dict[str, Any]:
    done = run("--target", address, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_ingest_is_verified_and_compared_with_a_sink(server) -> None:
    command = [loadgen_binary(), "--serve-sink"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as sink:
        address = sink.stdout.readline().partition("listening grpc=")[2].strip()
        found = measure(server.address, "--divide-clients", 20, "--streams", 2, "--sink", address)
    assert (sink.returncode, found["verified"]) == (0, True)
    assert (found["clients"], found["tuples"], found["streams"]) == (5, 500_000, 2)
    assert found["bytes"] >= found["tuples"] * 8
    assert len(found["ingest_seconds"]) == len(found["sink"]["seconds"]) == 3
    assert found["latency"]["count"] == 15
    assert found["latency"]["p50_ms"] <= found["latency"]["p99_ms"] <= found["latency"]["max_ms"]
    assert found["sink"]["share"] >= found["sink"]["share_with_merge"] > 0


@pytest.mark.parametrize("workload", "ABCDEFGH")
def test_every_workload_merges_to_what_the_engine_makes_of_it(server, workload) -> None:
    divide = {"E": 2000, "H": 10}.get(workload, 25)
    flags = ("--divide-clients", divide, "--repetitions", 1, "--chunk-bytes", 100_000, "--rounds", 2)
    assert measure(server.address, "--workload", workload, *flags)["rounds"] == 2


@pytest.mark.parametrize("workload", "ABCEFG")
def test_packed_submissions_merge_to_what_the_engine_makes_of_their_rounded_values(server, workload) -> None:
    divide = {"E": 2000, "H": 10}.get(workload, 25)
    flags = ("--workload", workload, "--divide-clients", divide, "--repetitions", 1, "--chunk-bytes", 50_000)
    found = measure(server.address, *flags, "--keys", "packed", "--values", "float16")
    assert (found["keys"], found["values"], found["verified"]) == ("packed", "float16", True)
    row_width = 64 if workload == "F" else 1
    # 2 bytes a value, and keys that cost something, but less than plain ones.
    assert 2 * row_width < found["bytes_per_tuple"] < 2 * row_width + 4.1


def test_packed_keys_of_an_unsorted_workload_are_refused(server) -> None:
    done = run("--target", server.address, "--workload", "D", "--divide-clients", 50, "--keys", "packed")
    assert (done.returncode, "do not strictly ascend" in done.stderr) == (1, True)


def test_rate_sends_all_clients_as_often_as_the_duration_takes(server) -> None:
    flags = ("--workload", "E", "--divide-clients", 1000, "--rate", 200, "--ramp", 0.1, "--duration", 0.2)
    found = measure(server.address, *flags, "--repetitions", 1)
    # 10 are due in the ramp and 20 in the tenth of a second after it, so that three passes of ten begin in time.
    assert found["latency"]["count"] == 30


def test_whole_rounds_are_timed_one_by_one(server) -> None:
    found = measure(server.address, "--workload", "E", "--divide-clients", 2000, "--whole-rounds", 4, "--streams", 5)
    assert (found["latency"]["count"], found["verified"]) == (4, True)


def test_a_refusal_fails_the_run(start_server) -> None:
    small = start_server("--max-tuples-per-submission", "99999")
    done = run("--target", small.address, "--divide-clients", 50, "--repetitions", 1)
    assert done.returncode == 1
    assert "2 submissions were refused, the first with code 8" in done.stderr
    assert "max_tuples_per_submission 99999" in done.stderr


def test_a_server_that_freezes_is_given_up(start_server) -> None:
    server = start_server()
    with subprocess.Popen(
        [loadgen_binary(), "--target", server.address, "--divide-clients=50", "--repetitions=1000000", "--silence=1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as loadgen:
        try:
            with sa.Client(server.address) as client:
                deadline = time.monotonic() + 60
                while not list(client.list_rounds()):
                    assert time.monotonic() < deadline
            server.process.send_signal(signal.SIGSTOP)
            _, stderr = loadgen.communicate(timeout=60)
        finally:
            server.process.send_signal(signal.SIGCONT)
            loadgen.kill()
    assert (loadgen.returncode, "sparseagg-loadgen: " in stderr) == (1, True), stderr


def test_flags_that_cannot_be_are_refused() -> None:
    paced = run("--target", "127.0.0.1:1", "--rate", 10, "--sink", "127.0.0.1:1")
    assert (paced.returncode != 0, "--rate" in paced.stderr) == (True, True)
    assert run("--workload", "Z").returncode != 0
    done = run()
    assert (done.returncode, "--target" in done.stderr) == (1, True)


def test_quick_benchmark_measures_everything(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "service.json"
    programs = ("--server", server_binary(), "--loadgen", loadgen_binary())
    command = [sys.executable, REPOSITORY / "bench/run.py", "service", *programs, "--quick", "--out", out]
    subprocess.run(command, check=True, timeout=300)
    found = json.loads(out.read_text())
    assert [run["streams"] for run in found["share_of_sink"]] == [1, 4]
    assert [run["values"] for run in found["packed"]] == ["float16", "float16"]
    assert [run["workload"] for run in found["tails"] if run["gigabits_per_s"] is None] == ["A", "E"]
    assert {run["gigabits_per_s"] for run in found["tails"]} <= {None, 1, 10}
    assert set(found["concurrent_rounds"]["seconds"]) == {"1", "8"}
    assert found["small_rounds"]["clients"] == 20
    assert len(found["memory_growth"]["resident_bytes"]) == 3
