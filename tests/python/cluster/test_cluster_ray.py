"""Servers and reducers of a cluster in actors of Ray: what outlives a driver, what moves, and what Ray keeps of it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import time

import numpy as np
import pytest
import sparseagg as sa
from every_client import digest, one
from real_server import REPOSITORY
from sparseagg.cluster import Cluster, range_merge, server_keeper

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: make test-ray")

CLIENTS = [f"client-{i}" for i in range(12)]
SPEC = one(op="mean", num_rows=1000, return_counts=True)
NO_CPUS = {"reducer_cpus": 0, "ranges": 3, "reducers": 2}

# A driver that dies with its round sealed.
DRIVER = """
import os, sys
import ray, sparseagg as sa
from sparseagg.cluster import Cluster
from every_client import one

ray.init(address=sys.argv[1], log_to_driver=False)
cluster = Cluster(2, executor="ray", name="kept", data_dir=sys.argv[2], server_cpus=0, reducer_cpus=0)
cluster.create_round(one(op="mean", num_rows=1000, return_counts=True), "round")
os.kill(os.getpid(), 9)
"""


@pytest.fixture(scope="module")
def nodes():
    """Two nodes that mount the servers' volume, as those of deploy/kuberay, and one with more cores, which does not."""
    sys.path.append(str(REPOSITORY / "tests" / "system"))
    from crash.ray_nodes import RayNodes

    mounts = {"resources": {"sparseagg_server": 1}}
    with RayNodes([mounts, mounts, {"num_cpus": 8}]) as started:
        yield started


@pytest.fixture(scope="module")
def ray(nodes):
    return importlib.import_module("ray")


@pytest.fixture
def updates():
    rng = np.random.default_rng(3)
    return {each: (rng.integers(0, 1000, 50), rng.standard_normal(50).astype("f4")) for each in CLIENTS}


def moved(ray, cluster, index, data_dir):
    """Lets Ray start a server again, which finds none of its ports: as on another node. Returns where it was."""
    before = cluster.addresses[index]
    (data_dir / f"server-{index}" / "ports.json").unlink()
    ray.kill(cluster._started.actors[index], no_restart=False)
    locate = cluster._started.locators()[index]
    while locate(60.0) in (None, before):  # an actor that is being killed still answers for a moment
        pass
    return before


def test_servers_with_a_name_outlive_their_driver_and_are_followed(ray, tmp_path, updates):
    address = ray.get_runtime_context().gcs_address
    paths = os.pathsep.join(sys.path)
    driver = [sys.executable, "-c", DRIVER, address, str(tmp_path)]
    died = subprocess.run(driver, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    assert died.returncode == -9, died.stderr
    with pytest.raises(sa.errors.NotFoundError, match="'other'"):
        Cluster.attach("other")
    with pytest.raises(sa.errors.AlreadyExistsError, match="attach"):
        Cluster(2, executor="ray", name="kept")
    with Cluster.attach("kept", **NO_CPUS) as cluster:
        opened = cluster.resume("round")
        for client_id in CLIENTS[:4]:
            opened.submit(client_id, updates[client_id])
        old = opened.handle
        places = [moved(ray, cluster, index, tmp_path) for index in range(2)]
        assert not set(opened.handle.removeprefix("sparseagg://").split("/")[0].split(",")) & set(places)
        for client_id in CLIENTS[4:6]:
            opened.submit(client_id, updates[client_id])
        ids = CLIENTS[6:9]
        keys, rows = (np.concatenate([updates[each][column] for each in ids]) for column in (0, 1))
        assert not opened.submit_batch(ids, {"v": (np.arange(0, 151, 50), keys, rows)}).refused
        with sa.Round.from_handle(opened.handle) as rnd:
            for client_id in CLIENTS[9:]:
                rnd.submit(client_id, updates[client_id])
        assert opened.handle != old
        assert cluster.create_round(SPEC, "round").name == opened.name
    expected = digest(sa.aggregate(updates, SPEC))
    with Cluster.attach("kept", **NO_CPUS) as cluster:  # the one before has left the servers
        opened = cluster.resume("round")
        assert digest(opened.finish()) == expected
        moved(ray, cluster, 1, tmp_path)
        assert digest(opened.finish()) == expected, "reducers follow, too"
        opened.start_merge()
        assert digest(opened.result()) == expected
        cluster.shutdown()
    with pytest.raises(sa.errors.NotFoundError):
        Cluster.attach("kept")


def test_ray_keeps_no_token(ray, monkeypatch, updates):
    """Ray's GCS stores the arguments of actors, in a database where it is to survive."""
    given = []
    made = ray.actor.ActorClass._remote
    monkeypatch.setattr(
        ray.actor.ActorClass,
        "_remote",
        lambda self, args=None, *rest, **named: (given.append(args), made(self, args, *rest, **named))[1],
    )
    options = {"executor": "ray", "server_cpus": 0, "token": "the-secret", **NO_CPUS}
    with Cluster(1, **options) as cluster, cluster.create_round(SPEC) as opened:
        opened.submit("a", updates[CLIENTS[0]])
        assert digest(opened.finish()) == digest(sa.aggregate({"a": updates[CLIENTS[0]]}, SPEC))
    assert len(given) == 3
    assert b"the-secret" not in ray.cloudpickle.dumps(given)


class Deadly:
    """A task that kills the process that reads it, such as a range that needs more memory than a node has."""

    def __init__(self, deaths):
        self._deaths = str(deaths)

    def __reduce__(self):
        return exec, (f"import os; open({self._deaths!r}, 'a').write('x'); os.kill(os.getpid(), 9)",)


def test_retries_are_bounded(ray, tmp_path, monkeypatch):
    monkeypatch.setattr(range_merge, "_RETRIES", 1)
    reducers = range_merge.RayExecutor(ray, [], 1, 0, 0)
    try:
        with pytest.raises(sa.errors.UnavailableError, match="2 times over a range"):
            reducers.run([Deadly(tmp_path / "deaths")], time.monotonic() + 60)
    finally:
        reducers.close()
    assert (tmp_path / "deaths").read_text() == "xx"
    monkeypatch.setattr(server_keeper, "_RETRIES", 7)
    with Cluster(1, executor="ray", server_cpus=0, **NO_CPUS) as cluster:
        assert cluster._started.actors[0]._ray_max_task_retries == 7


def test_data_sets_are_read_late_and_need_no_cpus(ray, tmp_path, updates):
    options = {"server_cpus": 0, "data_dir": tmp_path, **NO_CPUS, "ranges": 8}
    with Cluster(2, executor="ray", **options) as cluster, cluster.create_round(SPEC) as opened:
        for client_id, update in updates.items():
            opened.submit(client_id, update)
        opened.start_merge()

        class Busy:
            def ready(self):
                return True

        busy = ray.remote(num_cpus=1)(Busy)
        all_cpus = [busy.remote() for _ in range(int(ray.cluster_resources()["CPU"]))]
        ray.get([each.ready.remote() for each in all_cpus])
        first, second = opened.dataset(), opened.dataset()
        expected = sa.aggregate(updates, SPEC)["v"]
        assert [row["keys"] for row in first.take_all()] == expected.keys.tolist()
        opened.delete()
        with pytest.raises(Exception, match=r"NotFound|no round"):  # it was not read before
            second.take_all()


def places_of(ray, cluster):
    """The nodes of the servers' actors, each of which is alive."""
    actors = ray._private.state.actors()
    return {actors[actor._actor_id.hex()]["Address"]["NodeID"] for actor in cluster._started.actors}


def nodes_of_servers(ray):
    return {each["NodeID"] for each in ray.nodes() if each["Alive"] and "sparseagg_server" in each["Resources"]}


def test_servers_are_on_the_nodes_of_their_volume_and_follow_it(nodes, ray, tmp_path, updates):
    with Cluster(2, executor="ray", data_dir=tmp_path, **NO_CPUS) as cluster, cluster.create_round(SPEC) as opened:
        before = nodes_of_servers(ray)
        assert places_of(ray, cluster) == before
        for client_id in CLIENTS[:6]:
            opened.submit(client_id, updates[client_id])
        nodes.kill(0)
        for client_id in CLIENTS[6:]:
            opened.submit(client_id, updates[client_id])
        assert digest(opened.finish()) == digest(sa.aggregate(updates, SPEC))
        assert places_of(ray, cluster) == nodes_of_servers(ray) != before
