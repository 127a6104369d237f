"""The server with the CUDA engine of a plug-in, on a device that is the host."""

from __future__ import annotations

import re
import shutil
import subprocess
import urllib.request

import numpy as np
import pytest
import sparseagg as sa
from cuda_plugins import plugin
from every_client import digest
from random_rounds import random_pools, random_spec, random_updates
from real_server import server_binary


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
