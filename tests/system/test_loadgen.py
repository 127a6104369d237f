"""sparseagg-loadgen against a real server, and the benchmark that is made of it."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import urllib.request
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


def resident_bytes(pid: int) -> int:
    status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) << 10


def gauge(metrics_address: str, name: str) -> float:
    with urllib.request.urlopen(f"http://{metrics_address}/metrics", timeout=60) as answer:
        return float(re.search(rf"^{name} (\S+)$", answer.read().decode(), re.MULTILINE)[1])


def test_ingest_is_verified_and_compared_with_both_sinks(server) -> None:
    found = measure(server.address, "--divide-clients", 20, "--streams", 2, "--sink", "raw", "--sink", "typed")
    assert found["verified"] is True
    assert (found["clients"], found["tuples"], found["connections"]) == (5, 500_000, 2)
    assert found["bytes"] >= found["tuples"] * 8
    assert len(found["ingest_seconds"]) == 3
    assert found["latency"]["count"] == 15
    assert found["latency"]["p50_ms"] <= found["latency"]["p99_ms"] <= found["latency"]["max_ms"]
    for kind in ("raw", "typed"):
        sink = found["sinks"][kind]
        assert len(sink["seconds"]) == 3
        assert sink["share"] >= sink["share_with_merge"] > 0


@pytest.mark.parametrize("workload", "ABCDEFGH")
def test_every_workload_merges_to_what_the_engine_makes_of_it(server, workload) -> None:
    divide = {"E": 2000, "H": 10}.get(workload, 25)
    flags = ("--divide-clients", divide, "--repetitions", 1, "--chunk-bytes", 100_000, "--rounds", 2)
    assert measure(server.address, "--workload", workload, *flags)["rounds"] == 2


@pytest.mark.parametrize("workload", "ADF")
def test_batches_of_small_clients_merge_to_what_the_engine_makes_of_them(server, workload) -> None:
    flags = ("--workload", workload, "--divide-clients", 25, "--split", 999, "--batch", 7, "--repetitions", 1)
    found = measure(server.address, *flags)
    clients = {"A": 4, "D": 4, "F": 2}[workload]
    assert found["clients"] == clients * -(-found["tuples"] // clients // 999)
    assert (found["mode"], found["verified"]) == ("batches", True)
    assert found["submissions_per_s"] > 0


def test_batches_are_not_paced(server) -> None:
    done = run("--target", server.address, "--workload", "C", "--divide-clients", 64, "--batch", 2, "--rate", 5)
    assert done.returncode != 0
    assert "--rate excludes --batch" in done.stderr


def test_fixed_point_merges_to_what_the_engine_makes_of_it(server) -> None:
    found = measure(server.address, "--divide-clients", 30, "--repetitions", 1, "--numerics", "fixed_point")
    assert found["numerics"] == "fixed_point"


@pytest.mark.parametrize("workload", "ABCEFG")
def test_packed_submissions_merge_to_what_the_engine_makes_of_their_rounded_values(server, workload) -> None:
    divide = {"E": 2000, "H": 10}.get(workload, 25)
    flags = ("--workload", workload, "--divide-clients", divide, "--repetitions", 1, "--chunk-bytes", 50_000)
    found = measure(server.address, *flags, "--keys", "packed", "--values", "float16", "--against-plain")
    assert (found["keys"], found["values"], found["verified"]) == ("packed", "float16", True)
    row_width = 64 if workload == "F" else 1
    # 2 bytes a value, and keys that cost something, but less than plain ones.
    assert 2 * row_width < found["bytes_per_tuple"] < 2 * row_width + 4.1
    assert found["plain"]["bytes_per_tuple"] > 4 + 4 * row_width
    assert found["plain"]["tuples_per_s_against_it"] > 0


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


def test_it_leaves_no_round_behind(server, client) -> None:
    before = {found.name for found in client.list_rounds()}
    measure(server.address, "--divide-clients", 50, "--repetitions", 1, "--rounds", 2)
    assert {found.name for found in client.list_rounds()} == before


def test_soak_counts_every_good_submission_once_and_stays_within_the_limit(start_server) -> None:
    limit = 256 << 20
    flags = ("--memory-limit", str(limit), "--max-message-bytes", "1MiB", "--upload-timeout", "2s")
    server = start_server(*flags, "--metrics-address", "127.0.0.1:0")
    # As much traffic, all of it good.
    load = ("--workload", "B", "--divide-clients", 4, "--chunk-bytes", 100_000)
    measure(server.address, *load, "--streams", 20, "--repetitions", 10)
    before = resident_bytes(server.process.pid)
    soak = ("--soak", "--duration", 6, "--connections", 80, "--rate", 100, "--server-pid", server.process.pid)
    found = measure(server.address, *soak, *load)
    assert found["submissions"] == found["latency"]["count"] == found["rounds"] * found["clients"] > 0
    assert found["connections"] == found["clients_at_once"] == 80
    assert min(found["stalled"], found["vanished"], found["garbage"]) >= 20
    assert "0" not in found["answers_to_bad"]
    assert len(found["resident"]) >= 10
    assert found["peak_bytes"] <= 1.1 * limit
    # What was made for the bad clients is gone: they have sent up to two megabytes each time.
    deadline = time.monotonic() + 60
    while any(gauge(server.metrics_address, name) for name in ("sparseagg_kept_bytes", "sparseagg_uploads")):
        assert time.monotonic() < deadline, "something of the bad clients is left"
        time.sleep(0.1)  # until the server has seen that they are gone
    assert resident_bytes(server.process.pid) <= before + (64 << 20)
    assert server.stop() == 0


def test_refusals_fail_the_run_unless_they_are_allowed(start_server) -> None:
    small = start_server("--max-tuples-per-submission", "99999")
    done = run("--target", small.address, "--divide-clients", 50, "--repetitions", 1)
    assert done.returncode == 1
    assert "2 submissions were refused with code 8" in done.stderr
    assert "max_tuples_per_submission 99999" in done.stderr
    flags = ("--divide-clients", 50, "--repetitions", 2, "--allow-refusals", "--against-plain")
    found = measure(small.address, *flags)
    for (refused,) in (found["refused"], found["plain"]["refused"]):
        assert (refused["code"], refused["count"]) == (8, 4)
    assert (found["tuples_per_s"], found["plain"]["tuples_per_s_against_it"]) == (0, None)


@pytest.mark.parametrize("rate", [(), ("--rate", 100, "--duration", 0.1)])
def test_what_was_refused_in_part_is_not_called_verified(start_server, rate) -> None:
    flags = ("--divide-clients", 20, "--repetitions", 2, "--allow-refusals", *rate)
    assert measure(start_server().address, *flags)["verified"] is True
    found = measure(start_server("--max-submissions", "3").address, *flags)
    assert (len(found["refused"]), found["verified"]) == (1, False)


def test_share_of_the_sink_counts_only_what_was_acknowledged(start_server) -> None:
    server = start_server("--max-submissions", "1")
    flags = ("--divide-clients", 20, "--streams", 1, "--repetitions", 1, "--allow-refusals", "--sink", "raw")
    found = measure(server.address, *flags)
    assert found["latency"]["count"] == 1
    sink = found["sinks"]["raw"]
    assert sink["share"] == pytest.approx(found["bytes_per_s"] / sink["bytes_per_s"], rel=0.01)
    bytes_with_merge_per_s = found["bytes"] / found["clients"] / found["total_seconds"][0]
    assert sink["share_with_merge"] == pytest.approx(bytes_with_merge_per_s / sink["bytes_per_s"], rel=0.01)


@pytest.mark.parametrize("mode", ["--soak", "--whole-rounds=1"])
def test_refusals_cannot_be_allowed_where_they_are_not_counted(mode) -> None:
    done = run("--target", "127.0.0.1:1", mode, "--allow-refusals")
    assert (done.returncode != 0, "--allow-refusals" in done.stderr) == (True, True)


def test_soak_without_a_process_to_look_at_claims_no_memory(server) -> None:
    soak = ("--soak", "--duration", 0.1, "--connections", 4, "--rate", 1000)
    found = measure(server.address, *soak, "--divide-clients", 50)
    assert (found["peak_bytes"], found["resident"], found["verified"]) == (None, [], True)


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
    paced = run("--target", "127.0.0.1:1", "--rate", 10, "--sink", "raw")
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
    assert found["soak"]["clients_at_once"] == 40
