"""gpu_bench over a device in host memory: every measurement is made, verified and written, and none means anything."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess

import numpy as np
import pytest
from real_server import REPOSITORY

GPU_BENCH = os.environ.get("SPARSEAGG_GPU_BENCH") or str(REPOSITORY / "build/dev/bench/gpu_bench")


def gpu_bench(*arguments: object) -> subprocess.CompletedProcess[str]:
    assert os.access(GPU_BENCH, os.X_OK), f"no {GPU_BENCH}: build it (`make build`) or set SPARSEAGG_GPU_BENCH"
    return subprocess.run([GPU_BENCH, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict:
    path = tmp_path_factory.mktemp("gpu") / "gpu.json"
    done = gpu_bench(
        *("--device", "host", "--workloads", "CDF", "--divide-clients", 64, "--repetitions", 2, "--out", path)
    )
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text(encoding="utf-8"))


def test_every_measurement_is_written(written) -> None:
    assert written["is_gpu"] is False
    assert written["left_out"] == []
    assert all(rate > 0 for rate in written["limits"].values())
    found = [(row["workload"], row["variant"], row["what"], row["memory"]) for row in written["results"]]
    ways = [("end_to_end", "pageable"), ("end_to_end", "pinned"), ("finish", "pinned")]
    ways += [("resident", "device"), ("kernels", "device")]
    cases = [("C", "plain"), ("C", "shuffled"), ("C", "skewed"), ("D", "plain"), ("D", "skewed")]
    cases += [("F", "plain"), ("F", "shuffled"), ("F", "skewed")]
    assert found == [(*case, *way) for case in cases for way in ways]  # D is shuffled as it is


def test_figures_agree_with_each_other(written) -> None:
    for row in written["results"]:
        assert row["verified"] is True
        assert row["bytes_in"] == row["tuples"] * ((8 if row["workload"] == "D" else 4) + 4 * row["row_width"])
        assert 0 < row["rows_out"] <= row["tuples"]
        assert len(row["seconds"]) == 2
        assert row["median_seconds"] in row["seconds"]
        assert row["tuples_per_s"] == pytest.approx(row["tuples"] / row["median_seconds"], rel=1e-3)
        bytes_counted = (0 if row["what"] == "finish" else row["bytes_in"]) + (
            0 if row["what"] == "end_to_end" else row["bytes_out"]
        )
        limit = written["limits"][row["limit"]]
        share = bytes_counted / row["median_seconds"] / limit
        assert row["share_of_limit"] == pytest.approx(share, rel=1e-3, abs=1e-4)
        assert row["device_peak_bytes"] >= row["bytes_in"]
        assert bool(row["kernels"]) == (row["what"] == "kernels")


def test_exported_workloads_are_what_the_peers_read(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "bench" / "peers"))
    import gpu_peers

    for letter, num_rows, shape in (
        ("C", 1_000_000, (400_000,)),
        ("D", 1 << 40, (200_000,)),
        ("F", 10**6, (40_000, 64)),
    ):
        keys, values, found = gpu_peers.read_workload(pathlib.Path(GPU_BENCH), letter, {"D": 50}.get(letter, 32))
        assert (found, values.shape, values.dtype) == (num_rows, shape, np.float32)
        assert (keys.shape, keys.dtype) == (shape[:1], np.uint64 if letter == "D" else np.uint32)
        assert keys.max() < num_rows
        first = keys[: len(keys) // 2]
        assert len(np.unique(first)) == len(first)  # one client's
        assert abs(values.mean()) < 0.01


def test_probe_says_what_there_is() -> None:
    done = gpu_bench("--probe")
    if done.returncode == 0:
        assert "compute capability" in done.stdout
    else:
        assert done.returncode == 1
        assert done.stderr.startswith("gpu_bench: UNAVAILABLE: ")


def test_without_a_gpu_it_measures_nothing(tmp_path) -> None:
    if gpu_bench("--probe").returncode == 0:
        pytest.skip("there is a GPU")
    done = gpu_bench("--workloads", "C", "--divide-clients", 60, "--out", tmp_path / "gpu.json")
    assert done.returncode == 1
    assert "UNAVAILABLE" in done.stderr
    assert not (tmp_path / "gpu.json").exists()
