"""Rounds over several servers: homes, the coordinator's calls, and what happens when a part is missing."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import socket
import sys
import types

import numpy as np
import pytest
import sparseagg as sa
from every_client import digest, one
from guarded_server import make_token
from real_server import REPOSITORY, server_binary
from sparseagg._internal.spec.bounds import home_of
from sparseagg.cluster import Cluster, server_keeper
from sparseagg.cluster.plan import ranges_of_counts
from sparseagg.cluster.server_keeper import ServerKeeper, ray_session

CLIENTS = [f"client-{i}" for i in range(20)]
SPEC = one(op="mean", num_rows=1000, return_counts=True)


@pytest.fixture
def cluster(addresses):
    with Cluster(addresses, ranges=3, reducers=2) as connected:
        yield connected


def updates_of(clients=CLIENTS):
    rng = np.random.default_rng(7)
    return {each: (rng.integers(0, 1000, 50), rng.standard_normal(50).astype("f4")) for each in clients}


def submitted(cluster, spec=SPEC, updates=None):
    opened = cluster.create_round(spec)
    for client_id, update in (updates_of() if updates is None else updates).items():
        opened.submit(client_id, update)
    return opened


def test_round_like_an_update(cluster):
    updates = updates_of()
    with cluster.client().create_round(like=updates[CLIENTS[0]], op="mean") as opened:
        for client_id, update in updates.items():
            opened.submit(client_id, update)
        assert digest(opened.finish()) == digest(sa.aggregate(updates, op="mean"))
    with pytest.raises(sa.InvalidArgumentError, match="either a spec, or like=update"):
        cluster.create_round(SPEC, op="mean")


def failure_of(opened):
    with pytest.raises(sa.errors.RoundFailedError) as raised:
        opened.finish()
    return str(raised.value)


def test_homes_are_those_of_other_languages():
    """What they have in common is tested in C++."""
    assert [home_of(each, 4) for each in ("", "a", "client-7", "ü")] == [1, 3, 0, 1]


def test_submissions_are_on_their_home_servers(cluster, addresses):
    with submitted(cluster) as opened:
        assert [each.client_id for each in opened.submissions()] == sorted(CLIENTS)
        for index, address in enumerate(addresses):
            with sa.Client(address) as client:
                here = {each.client_id for each in client.get_round(opened.name).submissions()}
            assert here == {each for each in CLIENTS if home_of(each, 3) == index}
            assert all(opened.home(each) == address for each in here)
        assert opened.submit(CLIENTS[0], updates_of()[CLIENTS[0]]).duplicate
        assert opened.withdraw(CLIENTS[0])
        left = {each: update for each, update in updates_of().items() if each != CLIENTS[0]}
        result = opened.finish()
        assert digest(result) == digest(sa.aggregate(left, SPEC))
        info = result.info
        assert (info.num_submissions, info.num_tuples, info.state, info.spec) == (19, 19 * 50, "done", SPEC)
        with pytest.raises(sa.errors.RoundClosedError, match="DONE"):
            opened.submit("late", updates_of()[CLIENTS[0]])
        with pytest.raises(sa.errors.InvalidArgumentError):
            opened.submit("", updates_of()[CLIENTS[0]])


def test_another_coordinator_goes_on(addresses):
    with Cluster(addresses) as first:
        opened = submitted(first)
        name = opened.name
        expected = digest(opened.finish())
    for ranges in (1, 8):
        with Cluster(addresses, ranges=ranges) as second:
            assert second.resume(name.removeprefix("rounds/")).spec == SPEC
            assert digest(second.resume(name).finish()) == expected
    with Cluster(addresses) as last:
        resumed = last.resume(name)
        resumed.delete()
        resumed.delete()
        with pytest.raises(sa.errors.NotFoundError, match=addresses[0]):
            last.resume(name)


def test_servers_of_different_limits_make_no_cluster(start_server):
    servers = [
        start_server(),
        start_server("--max-bytes-per-submission", "1MiB"),
        start_server("--max-open-rounds", "1"),
    ]
    with (
        Cluster([each.address for each in servers[:2]]) as cluster,
        pytest.raises(sa.errors.FailedPreconditionError, match=r"max_bytes_per_submission.* 1048576"),
    ):
        cluster.create_round(SPEC)
    with Cluster([servers[0].address, servers[2].address]) as cluster:
        with cluster.create_round(SPEC), pytest.raises(sa.errors.ResourceExhaustedError):
            cluster.create_round(SPEC)
        assert [len(list(client.list_rounds())) for client in cluster._clients] == [0, 0], "nothing stays"


@pytest.mark.parametrize("spec", [SPEC, one("int64", num_rows=1000)], ids=["submissions", "partials"])
def test_client_on_two_servers_is_found(addresses, spec):
    """Servers send clients home, so that only rounds whose servers were told different places can have this."""
    with Cluster(addresses[:2]) as first, first.create_round(spec) as opened:
        swapped = dataclasses.replace(opened._rounds[0].spec, cluster=opened._rounds[1].spec.cluster)
        with sa.Client(addresses[0]) as client:
            client.get_round(opened.name).delete()
            client.create_round(swapped, opened.name.removeprefix("rounds/"))
        with pytest.raises(sa.errors.FailedPreconditionError, match="not the round of a cluster of 2 servers"):
            first.resume(opened.name)
        twice = next(each for each in CLIENTS if home_of(each, 2) == 1)
        for address in addresses[:2]:
            with sa.Client(address) as client:
                client.get_round(opened.name).submit(twice, ([1], [2]))
        text = f"'{twice}' has submissions .* on servers 0 and 1"
        with pytest.raises(sa.errors.FailedPreconditionError, match=text):
            opened.finish()


def test_numbers_of_submissions_are_those_of_the_cluster(cluster):
    few = one(op="mean", num_rows=1000, min_submissions=20)
    with submitted(cluster, few) as opened:
        assert len(opened.finish()["v"])
    with submitted(cluster, few, updates_of(CLIENTS[1:])) as opened:
        assert "closed with 19 submissions, below min_submissions 20" in failure_of(opened)
    binned = one(num_rows=1000, numerics="binned", max_submissions=19)
    with submitted(cluster, binned, updates_of(CLIENTS[1:])) as opened:
        assert digest(opened.finish()) == digest(sa.aggregate(updates_of(CLIENTS[1:]), binned))
        assert cluster.resume(opened.name).spec == binned


@pytest.mark.parametrize("options", [{"op": "mean"}, {"numerics": "binned"}])
def test_submissions_beyond_the_most_are_withdrawn(cluster, options):
    """Each server takes some before it can know what the others have. Every coordinator withdraws the same ones."""
    spec = one(num_rows=1000, max_submissions=15, **options)
    with submitted(cluster, spec) as first, submitted(cluster, spec) as second:
        result = first.finish()
        left = {each.client_id for each in first.submissions()}
        assert (result.info.num_submissions, len(left)) == (15, 15)
        expected = digest(sa.aggregate({each: updates_of()[each] for each in left}, spec))
        assert digest(result) == digest(cluster.resume(first.name).finish()) == expected
        second.seal()
        for each in {each.client_id for each in second.submissions()} - set(CLIENTS[3:]):
            second.withdraw(each)  # as another coordinator does meanwhile
        assert second.start_merge().num_submissions == 15
        listed = {each.client_id for each in second.submissions()}
        assert listed <= set(CLIENTS[3:])
        kept = {each: updates_of()[each] for each in listed}
        assert digest(second.result()) == digest(sa.aggregate(kept, spec))
        assert first.submit(sorted(left)[0], updates_of()[sorted(left)[0]]).duplicate


def test_clients_withdraw_nothing_from_a_sealed_round(start_server, tmp_path):
    table = tmp_path / "tokens"
    token, own = make_token(table, "admin"), make_token(table, "client", "--name", CLIENTS[0])
    server = start_server("--tokens-file", str(table))
    with Cluster([server.address], token=token) as admin, submitted(admin) as opened:
        opened.seal()
        with sa.Round.from_handle(opened.handle, token=own) as rnd, pytest.raises(sa.errors.RoundClosedError):
            rnd.withdraw(CLIENTS[0])
        assert opened.withdraw(CLIENTS[0])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"deadline": 5.0}, "deadline 5.0"),
        ({"clip": sa.ClipSpec(l2=1.0)}, "clip.l2 1.0"),
        ({"privacy": sa.PrivacySpec(noise_multiplier=1.0, keys="public")}, "privacy"),
    ],
)
def test_specs_that_are_not_for_clusters(cluster, options, text):
    with pytest.raises(sa.errors.InvalidArgumentError, match=text):
        cluster.create_round(one(**options))


def test_bounds_of_submissions(cluster):
    spec = one(op="sum", num_rows=1000, clip=sa.ClipSpec(linf=0.5, max_keys=10))
    with submitted(cluster, spec) as opened:
        result = opened.finish()
        assert digest(result) == digest(sa.aggregate(updates_of(), spec))
        assert (result.info.clip.num_clipped, result.info.clip.num_max_keys) == (20, 20)


@pytest.mark.parametrize(
    "arguments",
    [
        {"servers": []},
        {"servers": ["a:1", "a:1"]},
        {"servers": "a:1"},
        {"servers": 0},
        {"servers": ["a:1"], "data_dir": "x"},
        {"servers": 1, "executor": "spark"},
        {"servers": ["a:1"], "ranges": 0},
    ],
)
def test_bad_arguments(arguments):
    with pytest.raises(sa.errors.InvalidArgumentError):
        Cluster(**arguments)


def test_example_of_the_page(monkeypatch, capsys):
    monkeypatch.setenv("SPARSEAGG_SERVER", server_binary())
    text = (REPOSITORY / "docs" / "scale.md").read_text(encoding="utf-8")
    exec(text.split("```python\n")[1].split("```")[0], {})
    assert capsys.readouterr().out == "[0 1 2 3 4 5 6 7 8 9]\n"


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: make test-ray")
def test_ray_gives_the_same_bits_also_when_an_actor_is_killed(addresses):
    spec = one(op="mean", num_rows=1000, return_counts=True)
    with Cluster(addresses, executor="ray", ranges=3, reducers=2) as cluster, submitted(cluster, spec) as opened:
        expected = digest(sa.aggregate(updates_of(), spec))
        assert digest(opened.finish()) == expected
        for actor in cluster._executor._actors:
            cluster._executor._ray.kill(actor, no_restart=False)
        assert digest(opened.finish()) == expected
        with submitted(cluster, one(dtype="int64"), {"a": ([1], [2**62]), "b": ([1], [2**62])}) as failed:
            assert "OUT_OF_RANGE" in failure_of(failed)


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_ray_that_is_missing_is_named(addresses):
    with pytest.raises(sa.errors.UnimplementedError, match=r"ray\[data\]"):
        Cluster(addresses, executor="ray")


def test_servers_keep_their_ports_while_those_of_before_end(monkeypatch, tmp_path):
    """Of an actor whose node has died, Ray may start another one before its server has ended."""
    monkeypatch.setenv("SPARSEAGG_SERVER", server_binary())

    def keeper():
        return contextlib.closing(ServerKeeper(tmp_path / "server-0", "127.0.0.1", []))

    with keeper() as first:
        address = first.home().address
        with keeper() as second:
            while second._failure is None:
                pass
            first.close()
            assert second.home().address == address
    host, port = address.split(":")
    with socket.create_server((host, int(port))), keeper() as third:  # which somebody else has taken
        assert third.home().address != address


def test_server_of_ray_starts_only_where_its_directory_can_be(monkeypatch, tmp_path):
    """A node that does not mount the volume has no folder for the servers, and gets none."""
    util = types.ModuleType("ray.util")
    util.get_node_ip_address = lambda: "127.0.0.1"
    monkeypatch.setitem(sys.modules, "ray.util", util)
    monkeypatch.setattr(server_keeper, "_RAY_READY_S", 0.5)
    missing = tmp_path / "data"
    actor = server_keeper._ServerActor(str(missing / "server-0"), None, [])
    try:
        with pytest.raises(sa.errors.FailedPreconditionError, match=str(missing)):
            actor.home()
        assert not missing.exists()
    finally:
        actor.close()


def test_creating_again_gives_the_same_round(cluster):
    with cluster.create_round(SPEC, "twice") as opened:
        assert cluster.create_round(SPEC, "twice").name == opened.name
        with pytest.raises(sa.errors.AlreadyExistsError):
            cluster.create_round(one(op="sum"), "twice")


@pytest.mark.parametrize("given", [None, "ray://head:10001", "ray start"])
def test_ray_of_a_job_is_joined_as_it_is(monkeypatch, given):
    """``ray job submit`` sets RAY_ADDRESS, ``ray start`` writes a file; ``ray.init`` then takes no number of CPUs."""
    begun = []

    def init(**options):
        if given == "ray start" and "num_cpus" in options:
            raise ValueError("When connecting to an existing cluster, num_cpus and num_gpus must not be provided.")
        begun.append(options)

    ray = types.ModuleType("ray")
    ray.is_initialized, ray.shutdown, ray.init = (lambda: False), (lambda: None), init
    for name in ("ray", "ray.util"):
        monkeypatch.setitem(sys.modules, name, ray)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "token")
    monkeypatch.setenv("RAY_ADDRESS", given if given != "ray start" and given else "")
    with ray_session(2.5) as joined:
        assert joined is ray
    (options,) = begun
    # Others than the actors, such as tasks of Ray Data, find room on a Ray of this process, too.
    assert options.get("num_cpus") == (None if given else 3 + (os.cpu_count() or 1))


def test_merges_that_fail_say_why(cluster):
    for spec, weight, text in (
        (one("int64"), None, "OUT_OF_RANGE: tensor 'v', key 1: the sum overflows int64"),
        (one(op="mean", weighting="by_weight"), 0.0, "the weights of all submissions add up to 0, so there is no mean"),
        (one(op="median", weighting="by_weight", layout="dense"), 0.0, "so there is no median"),
    ):
        update = np.ones(10) if spec.tensors[0].layout == "dense" else ([1], [2**62])
        with cluster.create_round(spec) as opened:
            for client_id in "ab":
                opened.submit(client_id, update, weight)
            assert text in failure_of(opened)
    weighted = one(op="median", weighting="by_weight", layout="dense")
    with submitted(cluster, weighted, {}) as opened:
        opened.submit("a", np.ones(10), 2.0)
        assert opened.finish()["v"].values.tolist() == [1.0] * 10


KEYS = {
    "even": (lambda rng: rng.integers(0, 1 << 24, 10**6), 1 << 24),
    "even, of any number": (lambda rng: rng.integers(0, 1 << 64, 10**6, np.uint64), 0),
    "crowded": (lambda rng: np.exp(rng.uniform(0, np.log(2**40), 10**6)), 1 << 40),
    "in 3000 places": (lambda rng: rng.integers(0, 3000, 10**6) * 330_000_017 + rng.integers(0, 900, 10**6), 10**12),
}


@pytest.mark.parametrize("number", [2, 400])
@pytest.mark.parametrize("case", KEYS)
def test_no_range_has_a_tenth_more_than_the_mean(case, number):
    draw, num_rows = KEYS[case]
    keys = np.sort(draw(np.random.default_rng(5)).astype(np.uint64))
    asked = []

    def count(bits, within):
        within_bits, numbers = within or (((num_rows - 1) % (1 << 64)).bit_length(), [0])
        asked.append(len(numbers) << (within_bits - bits))
        firsts = (np.array(numbers, np.uint64) << np.uint64(within_bits % 64))[:, None]
        begins = firsts + (np.arange(1 << (within_bits - bits), dtype=np.uint64) << np.uint64(bits))
        lasts = begins + np.uint64((1 << bits) - 1)
        return (np.searchsorted(keys, lasts, "right") - np.searchsorted(keys, begins)).reshape(-1)

    ranges, any_order = ranges_of_counts(count, num_rows, number, lambda num_keys: number if num_keys == 10**6 else 0)
    places = np.append(np.searchsorted(keys, np.array([begin for begin, _ in ranges], np.uint64)), len(keys))
    assert len(ranges) <= number
    for first, end in zip(places, places[1:]):
        assert end - first <= 1.1 * len(keys) / number or keys[first] == keys[end - 1]
    assert max(asked) <= 1 << 17
    assert any_order or case == "crowded"
    assert ranges_of_counts(None, num_rows, 1, None) == ([(0, None)], True)
