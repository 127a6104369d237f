"""SparseFedBuff on a real SuperLink with three SuperNodes and a real server, which is killed between two runs."""

from __future__ import annotations

import pathlib

import jobs
import numpy as np
import sparseagg as sa
from real_server import ServerProcess
from superlink import SuperLink

NODES, BUFFER = 3, 2

SERVER = """
import jobs
import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp
from sparseagg.flower import SparseFedBuff

app = ServerApp()

def keep(version, record):
    np.savez(f"{folder}/{{version}}.npz", **{{name: array.numpy() for name, array in record.items()}})

@app.main()
def main(grid, context):
    record = ArrayRecord({{name: Array(array) for name, array in jobs.initial_model().items()}})
    strategy = SparseFedBuff(sparse=["embedding.weight"], concurrency={nodes}, buffer={buffer}, min_nodes={nodes},
                             server={address!r}, stream_id="kept")
    strategy.start(grid, record, {versions}, 120, evaluate_fn=keep, initial_version={initial_version})
"""

CLIENT = """
import jobs
from sparseagg.flower import sparse_mod

app = jobs.make_client_app([sparse_mod])
"""


def run(
    link: SuperLink, server: ServerProcess, folder: pathlib.Path, versions: int, initial_version: int | None
) -> dict[int, jobs.Arrays]:
    """Runs the app; returns the model of each version."""
    folder.mkdir()
    app = SERVER.format(
        folder=folder,
        nodes=NODES,
        buffer=BUFFER,
        address=server.address,
        versions=versions,
        initial_version=initial_version,
    )
    log = link.run(app, CLIENT)
    assert "Traceback" not in log
    models = {}
    for path in folder.glob("*.npz"):
        with np.load(path) as file:
            models[int(path.stem)] = {name: file[name] for name in file.files}
    assert sorted(models) == list(range(versions + 1)), f"{log}\n{link.logs()}"
    return models


def check(stream: sa.Stream, models: dict[int, jobs.Arrays]) -> None:
    """Compares each version with float64 arithmetic over its commits, which depend on their base version alone."""
    counted = set()
    for version in range(1, max(models) + 1):
        commits = stream.round(version).submissions()
        assert len(commits) == BUFFER
        for name, before in models[version - 1].items():
            step = np.zeros(before.shape)
            for commit in commits:
                base = models[commit.stream.base_version]
                partition = int(commit.client_id.partition(":")[0])
                after, _ = jobs.train_arrays(base, partition, commit.stream.base_version + 1)
                difference = after[name].astype(np.float64) - base[name].astype(np.float64)
                step += (1 + commit.stream.staleness) ** -0.5 * difference / BUFFER
            want = before.astype(np.float64) + step
            want = np.rint(want) if before.dtype.kind == "i" else want
            np.testing.assert_allclose(models[version][name], want, rtol=0, atol=2e-6, err_msg=f"{version} {name}")
        counted.update((commit.client_id, commit.submission_id) for commit in commits)
    assert len(counted) == BUFFER * max(models)


def test_two_runs_fill_one_stream_of_a_server_that_is_killed_between(tmp_path: pathlib.Path) -> None:
    data = ("--data-dir", str(tmp_path / "data"))
    server = ServerProcess(tmp_path / "first.log", *data)
    try:
        with SuperLink(tmp_path, NODES) as link:
            first = run(link, server, tmp_path / "first", 3, None)
            server.kill()
            server = ServerProcess(tmp_path / "second.log", *data)
            models = run(link, server, tmp_path / "second", 6, 0)
        for version, arrays in first.items():
            for name, array in arrays.items():
                np.testing.assert_array_equal(models[version][name], array)
        with sa.Client(server.address) as client:
            check(client.get_stream("kept"), models)
    finally:
        server.kill()
