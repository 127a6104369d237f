"""A real SuperLink and two SuperNodes: a process for each message, and HTTP between them."""

from __future__ import annotations

import hashlib
import pathlib
from collections.abc import Iterator

import jobs
import numpy as np
import pytest
from guarded_server import GuardedServer
from superlink import SuperLink

NODES = 2

SERVER = """
import jobs
import numpy as np
from flwr.app import ArrayRecord, Array
from flwr.serverapp import ServerApp
from sparseagg.flower import SparseFedAvg

app = ServerApp()

@app.main()
def main(grid, context):
    record = ArrayRecord({{name: Array(array) for name, array in jobs.initial_model().items()}})
    strategy = SparseFedAvg(sparse=["embedding.weight"]{options})
    result = strategy.start(grid, record, num_rounds=3, timeout=120)
    np.savez({out!r}, checksum=result.evaluate_metrics_clientapp[3]["checksum"],
             **{{name: array.numpy() for name, array in result.arrays.items()}})
"""

CLIENT = """
import jobs
from sparseagg.flower import sparse_mod

app = jobs.make_client_app([sparse_mod])
"""


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SuperLink]:
    with SuperLink(tmp_path_factory.mktemp("superlink"), NODES) as link:
        yield link


def models(rounds: int) -> jobs.Arrays:
    model = jobs.initial_model()
    for server_round in range(1, rounds + 1):
        trained = [jobs.train_arrays(model, client, server_round) for client in range(NODES)]
        model = jobs.rounded(model, jobs.average(model, trained))
    return model


def check(out: pathlib.Path, log: str) -> None:
    with np.load(out) as found:
        got = {name: found[name] for name in found.files}
    checksum = got.pop("checksum")
    wanted = models(3)
    np.testing.assert_allclose(got["embedding.weight"], wanted["embedding.weight"], rtol=0, atol=5e-7)
    jobs.assert_rounded_once(got, wanted, set(wanted) - {"embedding.weight"})
    # Clients have evaluated the whole model, which each of their processes has made of rows and a copy.
    assert checksum == pytest.approx(sum(float(array.astype(np.float64).sum()) for array in got.values()), rel=1e-12)
    assert log.count(f"aggregate_train: Received {NODES} results and 0 failures") == 3
    assert "Traceback" not in log


def test_arrays_in_replies(link: SuperLink, tmp_path: pathlib.Path) -> None:
    out = tmp_path / "model.npz"
    check(out, link.run(SERVER.format(options="", out=str(out)), CLIENT))
    # The copies that the next process of a node has found: the two newest versions.
    assert len(list(link.folder.glob("sparseagg-flower-*/*/*"))) == 2


def test_uploads_with_tls_and_a_token_for_each_node(tmp_path: pathlib.Path) -> None:
    """The app has no credentials in it: processes have them in their environments."""
    folder, out = tmp_path / "server", tmp_path / "model.npz"
    folder.mkdir()
    with GuardedServer(folder, NODES) as server:

        def environment(node: int | None) -> dict[str, str]:
            token = server.coordinator if node is None else server.clients[node]
            return {"SPARSEAGG_TLS_CA": str(server.ca), "SPARSEAGG_TOKEN": token}

        with SuperLink(tmp_path, NODES, environment=environment) as link:
            check(out, link.run(SERVER.format(options=f", server={server.address!r}", out=str(out)), CLIENT))


BUFFERED_SERVER = """
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
    strategy = SparseFedBuff(sparse=["embedding.weight"], concurrency=2, buffer=2, min_nodes=2)
    strategy.start(grid, record, 3, 120, evaluate_fn=keep)
"""


def test_buffered_versions(link: SuperLink, tmp_path: pathlib.Path) -> None:
    log = link.run(BUFFERED_SERVER.format(folder=tmp_path), CLIENT)
    assert "Traceback" not in log
    models = []
    for version in range(4):
        with np.load(tmp_path / f"{version}.npz") as found:
            models.append(found["embedding.weight"])
    np.testing.assert_array_equal(models[0], jobs.initial_model()["embedding.weight"])
    for before, after in zip(models, models[1:]):
        assert 0 < (before != after).any(axis=1).sum() <= NODES * jobs.TOUCHED


RESUMED_SERVER = """
import os
import signal

import jobs
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp
from sparseagg.flower import SparseFedAdam

app = ServerApp()
file = {file!r}

@app.main()
def main(grid, context):
    record = ArrayRecord({{name: Array(array) for name, array in jobs.initial_model().items()}})
    strategy = SparseFedAdam(sparse=["embedding.weight"], fraction_evaluate=0.0)
    if os.path.exists(file):
        strategy.load(file)

    def keep(server_round, arrays):
        strategy.save(file)
        if server_round == {killed}:
            os.kill(os.getpid(), signal.SIGKILL)

    strategy.start(grid, record, 3, 120, evaluate_fn=keep)
"""


def test_a_killed_run_ends_with_the_bits_of_a_whole_one(link: SuperLink, tmp_path: pathlib.Path) -> None:
    hashes = []
    for name, kills in {"whole": [None], "killed": [2, None]}.items():
        file = tmp_path / f"{name}.npz"
        for killed in kills:  # each in a process of its own
            log = link.run(RESUMED_SERVER.format(file=str(file), killed=killed), CLIENT)
            assert ("Strategy execution finished" in log) == (killed is None)
        with np.load(file) as state:
            assert state["round"] == 3
            content = b"".join(key.encode() + state[key].tobytes() for key in sorted(state))
        hashes.append(hashlib.sha256(content).hexdigest())
        print(f"{name}: {hashes[-1]}")
    assert hashes[0] == hashes[1]
