"""The CUDA engine as a library that is loaded at run time: its way into this process, on a device that is the host."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.request

import numpy as np
import pytest
import sparseagg as sa
from cuda_plugins import plugin
from every_client import digest
from random_rounds import random_pools, random_spec, random_updates
from real_server import server_binary
from sparseagg._internal.local import cuda_plugin


def test_large_round_whose_columns_go_both_ways_has_the_bits_of_the_cpu_engine(on_host):
    # Keys and results of megabytes are mapped memory, which only the store that made it can free.
    rng = np.random.default_rng(1)
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=1 << 22)], op="mean", return_counts=True)
    keys = [np.unique(rng.integers(0, 1 << 22, 1_500_000, np.uint32)) for _ in range(2)]
    updates = {str(i): ({"v": (some, rng.random(len(some), np.float32))}, 1.0) for i, some in enumerate(keys)}
    on_cpu = digest(sa.aggregate(updates, spec, device="cpu"))
    for _ in range(2):  # the second with the memory that the first one has freed
        assert digest(sa.aggregate(updates, spec, device="cuda")) == on_cpu
    sa.release_memory()


def test_engine_is_that_of_the_plugin(on_host):
    aggregator = sa.Aggregator(sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=9)]), device="cuda")
    aggregator.add("a", {"v": ([1], np.ones(1, np.float32))})
    assert aggregator.finish().info.engine.startswith("cuda (kernels on the host")
    assert cuda_plugin.load().startswith("cuda (kernels on the host")


def test_argument_device_is_checked():
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=9)])
    for device in ("gpu", "cuda:0", 0, b"cuda"):
        with pytest.raises(sa.InvalidArgumentError, match="device must be 'cpu', 'cuda' or None, got"):
            sa.Aggregator(spec, device=device)
    assert sa.Aggregator(spec, device="cpu").finish().info.engine.startswith("cpu ")


def test_aggregators_on_different_engines_do_not_merge(on_host):
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=9)])
    one, other = sa.Aggregator(spec, device="cuda"), sa.Aggregator(spec)
    for aggregator, client in ((one, "a"), (other, "b")):
        aggregator.add(client, {"v": ([1], np.ones(1, np.float32))})
    with pytest.raises(sa.InvalidArgumentError, match="one of the two aggregators merges on the CPU, the other on the"):
        one.merge(other)
    assert one.finish()["v"].values.tolist() == other.finish()["v"].values.tolist() == [1.0]


# What a process that has loaded no engine yet prints.
def printed(script: str, path: str = "", folder: pathlib.Path | None = None) -> str:
    environment = {**os.environ, "SPARSEAGG_CUDA_PLUGIN": path}
    if folder is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(folder), environment.get("PYTHONPATH", "")])
    command = [sys.executable, "-W", "ignore", "-c", "import os, sys\nimport sparseagg as sa\n" + script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


_TRY = """
spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=9)])
try:
    sa.Aggregator(spec, device="cuda")
except sa.SparseaggError as error:
    print(type(error).__name__, error)
assert sa.Aggregator(spec).finish().info.engine.startswith("cpu ")
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("no_entry_plugin", "is no CUDA plug-in: it has no function sparseagg_cuda_plugin"),
        ("other_build_plugin", "belongs to sparseagg 0.0.9, interface 000000000000, GNU 9, z80, this program to "),
        ("no_driver_plugin", "no usable GPU: this machine has no NVIDIA driver"),
        ("old_driver_plugin", "driver 550.54.15 is for CUDA 12.4, and the CUDA engine needs a driver for CUDA 13"),
    ],
)
def test_refused_plugin_says_why_and_what_to_install(name, text):
    said = printed(_TRY, plugin(name))
    assert said.startswith("UnavailableError ")
    assert text in said
    assert "make cuda-wheel" in said


def test_plugin_that_is_not_there_says_where_it_was_looked_for():
    said = printed(_TRY, "/nowhere/plugin.so")
    assert said.startswith("UnavailableError there is no CUDA plug-in: no file /nowhere/plugin.so")


def test_no_plugin_says_what_to_install():
    said = printed("sys.modules['sparseagg_cuda13'] = None\n" + _TRY)
    assert said.startswith("EngineMissingError no CUDA engine is installed: the wheel that `make cuda-wheel` builds")


def test_installed_package_is_found_and_not_imported(tmp_path):
    package = tmp_path / "sparseagg_cuda13"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')\n", encoding="utf-8")
    (package / "libsparseagg_cuda.so").symlink_to(plugin("test_plugin"))
    script = _DOCTOR + "assert 'sparseagg_cuda13' not in sys.modules"
    assert "cuda (kernels on the host" in printed(script, folder=tmp_path)


# The child tries the parent's round and one of its own, merges on the CPU, and drops the parent's round.
_FORK = """
spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=9)])
aggregator = sa.Aggregator(spec, device="cuda")
aggregator.add("a", {"v": ([1], [1.0])})
child = os.fork()
if child == 0:
    for use in (lambda: sa.Aggregator(spec, device="cuda"), lambda: aggregator.add("b", {"v": ([1], [1.0])}),
                aggregator.finish):
        try:
            use()
        except sa.SparseaggError as error:
            print(error)
    print(sa.aggregate([{"v": ([1], [2.0])}], spec)["v"].values)
    del aggregator, use
    print("end", flush=True)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print(aggregator.finish()["v"].values)
"""


def test_child_of_a_process_that_has_used_cuda_is_told_to_use_spawn():
    lines = printed(_FORK, plugin("test_plugin")).splitlines()
    assert len({*lines[:3]}) == 1, lines
    assert lines[0].startswith("CUDA was used before the fork, and does not work in the child: ")
    assert '"spawn"' in lines[0]
    assert lines[3:] == ["[2.]", "end", "[1.]"]


_DOCTOR = """
from sparseagg._internal.commands import doctor
print(*next(vars(found).values() for found in doctor.findings() if found.name == "CUDA engine"), sep="|")
"""


def test_doctor_says_whether_the_engine_loads():
    path = plugin("test_plugin")
    name, found, state, advice = printed(_DOCTOR, path).split("|")
    assert (name, state, advice) == ("CUDA engine", "ok", "")
    assert found.startswith("cuda (kernels on the host")
    assert found.endswith(f", {path}")
    path = plugin("old_driver_plugin")
    _, found, state, advice = printed(_DOCTOR, path).split("|")
    assert (found, state) == (f"{path}, refused", "wrong")
    assert "R580" in advice
    assert "make cuda-wheel" in advice


# ---- the server with the CUDA engine of a plug-in, on a device that is the host


def log_of(server) -> str:
    return open(server._log.name, encoding="utf-8").read()


def test_server_merges_with_the_plugin_and_has_the_bits_of_the_cpu_engine(start_server):
    server = start_server("--backend", "cuda", "--cuda-plugin", plugin("test_plugin"))
    with sa.Client(server.address) as client:
        info = client.server_info()
        assert (info.engine, info.engine_description.split(",")[0]) == ("cuda", "kernels on the host")
        for seed in (1, 2, 3, 4, 5, 6):
            rng = np.random.default_rng(seed)
            spec = random_spec(rng)
            pools = random_pools(rng, spec)
            updates = random_updates(rng, spec, pools, rng.integers(1, 6), least_weight=1)
            try:
                here = sa.aggregate(updates, spec)
            except sa.SparseaggError as error:
                with pytest.raises(type(error)):
                    client.aggregate(updates, spec)
                continue
            assert digest(client.aggregate(updates, spec)) == digest(here)
    assert server.stop() == 0


def test_metrics_are_by_device(start_server):
    flags = ("--backend", "cuda", "--cuda-plugin", plugin("test_plugin"), "--gpu-devices", "2")
    server = start_server(*flags, "--metrics-address", "127.0.0.1:0")

    def of_devices(name: str) -> list[int]:
        with urllib.request.urlopen(f"http://{server.metrics_address}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        return [int(n) for n in re.findall(rf'^sparseagg_gpu_{name}{{device="[01]"}} (\d+)$', text, re.MULTILINE)]

    spec = sa.RoundSpec([sa.TensorSpec("v", dtype="float32", num_rows=1000)])
    keys, rows = np.arange(1000)[::-1].copy(), np.ones(1000, np.float32)
    with sa.Client(server.address) as client:
        assert (of_devices("usable"), of_devices("operations")) == ([1, 1], [0, 0])
        client.aggregate([(keys, rows)] * 2, spec)
        assert (of_devices("operations"), of_devices("sent_bytes")) == ([1, 0], [16000, 0])
        client.aggregate([(keys, rows)] * 3, spec)
        assert (of_devices("operations"), of_devices("sent_bytes")) == ([1, 1], [16000, 24000])
    assert server.stop() == 0


def test_server_of_the_wheel_finds_the_plugin_of_the_other_wheel(tmp_path, start_server, monkeypatch):
    library = plugin("test_plugin")
    program = tmp_path / "sparseagg" / "bin" / "sparseagg-server"
    program.parent.mkdir(parents=True)
    shutil.copy2(server_binary(), program)
    (tmp_path / "sparseagg_cuda13").mkdir()
    (tmp_path / "sparseagg_cuda13" / "libsparseagg_cuda.so").symlink_to(library)
    monkeypatch.setenv("SPARSEAGG_SERVER", str(program))
    server = start_server()
    with sa.Client(server.address) as client:
        assert client.server_info().engine == "cuda"
    assert server.stop() == 0


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("other_build_plugin", "belongs to sparseagg 0.0.9, interface 000000000000, GNU 9, z80"),
        ("old_driver_plugin", "the NVIDIA driver 550.54.15 is for CUDA 12.4"),
        ("/nowhere/plugin.so", "no file /nowhere/plugin.so"),
    ],
)
def test_refused_plugin_stops_the_start_or_leaves_it_to_the_cpu_engine(start_server, path, reason):
    path = path if "/" in path else plugin(path)
    flags = ["--grpc-address", "127.0.0.1:0", "--http-address", "", "--metrics-address", "", "--cuda-plugin", path]
    done = subprocess.run([server_binary(), *flags, "--backend", "cuda"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "no_engine" in done.stderr
    assert "--backend cuda is not available: " in done.stderr
    assert reason in done.stderr
    server = start_server("--backend", "auto", "--cuda-plugin", path)
    log = log_of(server)
    assert "no_gpu reason=" in log
    assert reason in log
    assert "engine name=cpu" in log
    assert server.stop() == 0
