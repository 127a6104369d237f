"""The CUDA engine as a library that is loaded at run time: its way into this process, on a device that is the host."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import sparseagg as sa
from cuda_plugins import plugin
from every_client import digest
from sparseagg._internal.local import cuda_plugin


def test_large_round_whose_columns_go_both_ways_has_the_bits_of_the_cpu_engine(on_host):
    # Keys and results of megabytes are mapped memory, which only the store that made it can free.
    rng = np.random.default_rng(1)
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=1 << 22)], op="mean", return_counts=True)
    keys = [np.unique(rng.integers(0, 1 << 22, 1_500_000, np.uint32)) for _ in range(3)]
    updates = {str(i): ({"v": (some, rng.random(len(some), np.float32))}, 1.0) for i, some in enumerate(keys)}
    for _ in range(2):  # the second with the memory that the first one has freed
        on_cuda, on_cpu = (digest(sa.aggregate(updates, spec, device=device)) for device in ("cuda", "cpu"))
        assert on_cuda == on_cpu
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
