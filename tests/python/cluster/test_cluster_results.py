"""Results of a cluster's rounds that stay on its servers, and servers that the cluster has started."""

from __future__ import annotations

import datetime
import importlib.util
import os
import shutil
import signal

import numpy as np
import pytest
import sparseagg as sa
from every_client import digest
from guarded_server import make_token
from real_server import stop
from sparseagg.cluster import Cluster
from sparseagg.cluster.exchange import put_result_range, result_range
from sparseagg.cluster.server_keeper import ray_session
from sparseagg.v1 import aggregation_pb2 as pb

CLIENTS = [f"client-{i}" for i in range(12)]
SPEC = sa.RoundSpec(
    [
        sa.TensorSpec("sparse", "float32", num_rows=1000, row_width=3, return_counts=True, return_weights=True),
        sa.TensorSpec("dense", "bfloat16", num_rows=100, row_width=3, result_layout="dense", fill=0.1),
        sa.TensorSpec("hashed", "float16", num_rows=0, return_moments=True),
        sa.TensorSpec("keys", "float32", num_rows=50, op="union"),
        sa.TensorSpec("top", "float64", num_rows=500, result_top_k=20),
    ],
    op="mean",
)


def updates_of(clients=CLIENTS):
    rng = np.random.default_rng(11)

    def rows(tensor):
        most = tensor.num_rows or 1 << 40
        keys = rng.integers(0, most, 40).astype(np.uint64)
        if tensor.name == "keys":
            return np.unique(keys), None
        return keys, rng.standard_normal((40, tensor.row_width))

    return {each: {tensor.name: rows(tensor) for tensor in SPEC.tensors} for each in clients}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "servers"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(3, data_dir=tmp_path_factory.mktemp("shared"), ranges=4, reducers=2) as started:
        yield started


def names_at(client, opened):
    """The rounds at a server that have the name of a round, or begin with it."""
    return [each.name for each in client.list_rounds() if each.name.startswith(opened.name)]


def submitted(cluster, spec=SPEC, updates=None):
    opened = cluster.create_round(spec)
    for client_id, update in (updates or updates_of()).items():
        opened.submit(client_id, update)
    return opened


def test_result_is_read_from_the_servers_whole_and_in_parts(cluster):
    expected = sa.aggregate(updates_of(), SPEC)
    with submitted(cluster) as opened:
        with pytest.raises(sa.errors.DeadlineExceededError):
            opened.result(timeout=0.01)
        info = opened.start_merge()
        assert (info.state, info.num_submissions) == ("done", 12)
        assert [(each.name, each.num_keys) for each in info.results] == [(n, len(expected[n])) for n in expected]
        assert {each.name: each.num_cut_keys for each in info.results}["top"] > 0
        assert digest(opened.result()) == digest(expected)
        for name, keys in (
            ("sparse", (250, 600)),
            ("dense", (10, 50)),
            ("hashed", (1 << 38, None)),
            ("top", (0, 7)),
            ("top", (1 << 32, None)),
        ):
            part, whole = opened.result([name], keys=keys)[name], expected[name]
            kept = (whole.keys >= keys[0]) & (whole.keys < (keys[1] if keys[1] is not None else 2**64 - 1))
            assert np.array_equal(part.keys, whole.keys[kept])
            assert np.asarray(part.values).tobytes() == np.asarray(whole.values)[kept].tobytes()
        ranges = list(opened.ranges("sparse"))
        assert len(ranges) > 1
        assert np.array_equal(np.concatenate([each.keys for each in ranges]), expected["sparse"].keys)
        assert len({part.server for part in opened._parts("sparse", None)}) == 3
        another = cluster.client().get_round(opened.name)
        assert another.wait(5).state == "done"
        assert digest(another.result()) == digest(expected)
    assert not [client for client in cluster._clients if names_at(client, opened)]


@pytest.fixture
def dies_before_the_list(monkeypatch):
    """A coordinator that merges and dies before it has put the list."""

    class Died(Exception):
        pass

    def close(opened, **options):
        def die(*_):
            raise Died

        with monkeypatch.context() as patched:
            patched.setattr("sparseagg.cluster.cluster_round.end_round", die)
            with pytest.raises(Died):
                opened.start_merge(**options)

    return close


def test_another_coordinator_with_other_ranges_leaves_one_result(cluster, dies_before_the_list):
    opened = submitted(cluster)
    dies_before_the_list(opened)
    with Cluster(cluster.addresses, ranges=7) as second:
        second.resume(opened.name).start_merge()
        opened.start_merge()
        assert digest(opened.result()) == digest(sa.aggregate(updates_of(), SPEC))


def test_ranges_of_some_clients_are_not_those_of_all(cluster, dies_before_the_list):
    opened = submitted(cluster)
    dies_before_the_list(opened, only=CLIENTS[:2])
    another = cluster.resume(opened.name)
    assert another.start_merge().num_submissions == 12
    assert digest(opened.result()) == digest(sa.aggregate(updates_of(), SPEC))
    with pytest.raises(sa.errors.FailedPreconditionError, match="counts other clients"):
        opened.start_merge(only=CLIENTS[:2])
    assert digest(opened.result()) == digest(sa.aggregate(updates_of(), SPEC))


def test_a_result_is_no_round_that_clients_could_submit_to(cluster, dies_before_the_list):
    opened = submitted(cluster)
    dies_before_the_list(opened)
    for client in cluster._clients:
        assert names_at(client, opened) == [opened.name]
        for name in (f"{opened.name}.0.0-", f"{opened.name}.result"):
            with pytest.raises(sa.errors.NotFoundError):
                client.get_round(name).submit("rows", updates_of()[CLIENTS[0]])


def page_of(keys, tensor="w"):
    keys = np.asarray(keys, np.uint32)
    values = np.ones(len(keys), np.float32).tobytes()
    piece = pb.TensorSlice(tensor=tensor, key_encoding="KEY_ENCODING_U32", keys=keys.tobytes(), values=values)
    piece.value_encoding = pb.VALUE_ENCODING_FLOAT32
    return pb.ResultPage(slice=piece)


def test_ranges_that_do_not_fit_are_refused(start_server, tmp_path):
    """The rows that are there stay, whoever sends others."""
    roles = ("coordinator", "client", "observer")
    tokens = {role: make_token(tmp_path / "tokens", role, "--name", f"{role}-1") for role in roles}
    server = start_server("--tokens-file", str(tmp_path / "tokens"), "--max-message-bytes", "64KiB")
    spec = sa.RoundSpec([sa.TensorSpec("w", "float32", num_rows=1000)])
    with Cluster([server.address], token=tokens["coordinator"]) as cluster:
        opened = cluster.create_round(spec)
        handle = f"sparseagg://{server.address}/{opened.name}"
        round_of = {role: sa.Round.from_handle(handle, token=token) for role, token in tokens.items()}
        rnd = round_of["coordinator"]
        names = {"created": rnd.info.create_time, "only": "", "plan": "p"}
        with pytest.raises(sa.errors.FailedPreconditionError, match=r"only a SEALED round .* is OPEN"):
            put_result_range(rnd, page_of([1]), **names)
        opened.seal()
        put_result_range(rnd, page_of([10, 11]), keys=(10, 20), **names)
        for role in ("client", "observer"):
            with pytest.raises(sa.errors.PermissionDeniedError, match="PutResultRange"):
                put_result_range(round_of[role], page_of([30]), keys=(30, 40), **names)
        other_time = {**names, "created": rnd.info.create_time + datetime.timedelta(microseconds=1)}
        for keys, page, changed, error in (
            ((19, 30), page_of([19]), names, sa.errors.InvalidArgumentError),  # overlaps
            ((0, None), page_of([0]), names, sa.errors.InvalidArgumentError),
            ((30, 20), page_of([30]), names, sa.errors.InvalidArgumentError),
            ((30, 40), page_of([30], "v"), names, sa.errors.InvalidArgumentError),
            ((30, 40), page_of([30]), {**names, "plan": "p" * 129}, sa.errors.InvalidArgumentError),
            ((10, 20), page_of([12]), names, sa.errors.AlreadyExistsError),
            ((30, 40), page_of([30]), other_time, sa.errors.FailedPreconditionError),
            ((30, 40), page_of(range(10_000)), names, sa.errors.ResourceExhaustedError),
        ):
            with pytest.raises(error):
                put_result_range(rnd, page, keys=keys, **changed)
        with pytest.raises(sa.errors.NotFoundError):
            result_range(round_of["client"])
        put_result_range(rnd, pb.ResultPage(ranges="{}"), **names)
        for changed in ({**names, "only": "some"}, {**names, "plan": "q"}):
            for page in (page_of([30]), pb.ResultPage(ranges="{}")):
                with pytest.raises(sa.errors.FailedPreconditionError, match="has its result already"):
                    put_result_range(rnd, page, keys=(30, 40), **changed)
        for role in roles:
            assert result_range(round_of[role]).head.ranges == "{}"
            assert bytes(result_range(round_of[role], "w", 10).keys) == np.array([10, 11], np.uint32).tobytes()
        opened.delete()
        with pytest.raises(sa.errors.NotFoundError):
            put_result_range(rnd, page_of([30]), keys=(30, 40), **names)
        cluster.create_round(spec, rnd.name.removeprefix("rounds/")).seal()
        with pytest.raises(sa.errors.FailedPreconditionError, match="created at"):
            put_result_range(rnd, page_of([30]), keys=(30, 40), **names)
        alone = sa.Client(server.address, token=tokens["coordinator"]).create_round(spec)
        alone.seal()
        with pytest.raises(sa.errors.FailedPreconditionError, match="only a round of a cluster"):
            put_result_range(alone, page_of([30]), created=alone.info.create_time)


def test_delete_takes_no_round_of_a_similar_name(cluster):
    others = [cluster.create_round(SPEC, name) for name in ("exp.2", "exp.eval")]
    with cluster.create_round(SPEC, "exp") as opened:
        opened.submit(CLIENTS[0], updates_of()[CLIENTS[0]])
        opened.start_merge()
    assert [each.refresh().state for each in others] == ["open", "open"]


def test_a_later_round_of_the_same_id_has_its_own_result(cluster):
    first = cluster.create_round(SPEC, "again")
    first.submit(CLIENTS[0], updates_of()[CLIENTS[0]])
    first.start_merge()
    for client in cluster._clients:  # by a tool that knows nothing of clusters
        client.get_round("again").delete()
    second = cluster.create_round(SPEC, "again")
    for client_id in CLIENTS[:3]:
        second.submit(client_id, updates_of()[client_id])
    assert second.start_merge().num_submissions == 3
    assert digest(second.result()) == digest(sa.aggregate(updates_of(CLIENTS[:3]), SPEC))


@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_disk_is_an_error_of_the_round(lost):
    with Cluster(2) as cluster:
        opened = submitted(cluster)
        keeper = cluster._started.keepers[lost]
        os.kill(keeper.pid, signal.SIGKILL)
        with pytest.raises(sa.errors.NotFoundError):
            opened.finish()
        for _ in range(2):
            with pytest.raises(sa.errors.NotFoundError, match=cluster.addresses[lost]):
                cluster.create_round(SPEC, opened.name.removeprefix("rounds/"))
        with pytest.raises(sa.errors.NotFoundError, match=cluster.addresses[lost]):
            cluster.resume(opened.name)


@pytest.mark.parametrize("restored", [[0], [0, 1]])
def test_servers_go_on_with_their_backups(restored, start_server, tmp_path):
    """A restored copy has another name than the data that it is of, and the part of each round that it had."""
    folders = [("--data-dir", str(tmp_path / f"{n}"), "--backup-dir", str(tmp_path / f"{n}-backups")) for n in (0, 1)]
    servers = [start_server(*each) for each in folders]
    addresses = [each.address for each in servers]
    with Cluster(addresses) as cluster:
        opened = submitted(cluster)
        name = opened.name.removeprefix("rounds/")
        for number in restored:
            with sa.Client(addresses[number]) as client:
                before = client.server_info().instance
                client.backup("monday")
            servers[number].kill()
            shutil.rmtree(tmp_path / f"{number}")
            shutil.copytree(tmp_path / f"{number}-backups/monday", tmp_path / f"{number}")
            start_server(*folders[number], address=addresses[number])
            with sa.Client(addresses[number]) as client:
                assert client.server_info().instance != before
        again = cluster.create_round(SPEC, name)
        assert digest(again.finish()) == digest(sa.aggregate(updates_of(), SPEC))


def test_a_stopped_server_is_waited_for_until_the_timeout():
    with Cluster(2) as cluster:
        opened = submitted(cluster)
        pid = cluster._started.keepers[1].pid
        stop(pid)
        try:
            for end in (opened.finish, opened.start_merge):
                with pytest.raises(sa.errors.DeadlineExceededError, match=r"within [05]\."):
                    end(timeout=0.5)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert digest(opened.finish(timeout=60)) == digest(sa.aggregate(updates_of(), SPEC))


def test_more_servers_know_the_rounds_of_fewer(folder):
    with Cluster(2, data_dir=folder) as two:
        closed, opened = submitted(two), submitted(two)
        closed.start_merge()
    expected = digest(sa.aggregate(updates_of(), SPEC))
    with Cluster(4, data_dir=folder) as four:
        assert [each.name for each in four.client().list_rounds()] == [closed.name, opened.name]
        assert digest(four.resume(closed.name).result()) == expected
        assert digest(four.resume(opened.name).finish()) == expected


def test_finished_rounds_are_done_and_hold_no_place():
    with Cluster(2, server_options=["--max-open-rounds", "2"]) as cluster:
        for number in range(4):
            opened = cluster.create_round(SPEC, f"round-{number}")
            opened.submit(CLIENTS[0], updates_of()[CLIENTS[0]])
            result = opened.finish()
            assert [client.get_round(opened.name).info.state for client in cluster._clients] == ["done", "done"]
            assert digest(opened.finish()) == digest(result) == digest(cluster.resume(opened.name).finish())


def test_large_ranges_are_put_in_blocks(folder):
    spec = sa.RoundSpec([sa.TensorSpec("w", "float32", num_rows=0, row_width=8, return_counts=True)])
    keys = np.arange(1 << 60, (1 << 60) + 20_000, dtype=np.uint64)
    update = {"w": (keys, np.random.default_rng(5).standard_normal((len(keys), 8)).astype("f4"))}
    options = ["--max-message-bytes", "64KiB"]
    with Cluster(2, ranges=2, data_dir=folder, server_options=options) as cluster, cluster.create_round(spec) as opened:
        opened.submit("a", update)
        opened.start_merge()
        parts = opened._parts("w", None)
        assert len(parts) == 2
        assert all(len(part.blocks) > 5 for part in parts)
        assert digest(opened.result()) == digest(sa.aggregate({"a": update}, spec))
        some = opened.result(keys=(int(keys[5000]), int(keys[15_000])))["w"]
        assert np.array_equal(some.keys, keys[5000:15_000])
        assert np.array_equal(some.values, update["w"][1][5000:15_000])


def test_waiting_for_a_result_that_nobody_leaves_ends(cluster):
    with submitted(cluster) as opened:
        opened.finish()
        with pytest.raises(sa.errors.FailedPreconditionError, match=r"start_merge\(\) does"):
            opened.result(timeout=60)
        opened.start_merge()
        assert digest(opened.result(timeout=60)) == digest(sa.aggregate(updates_of(), SPEC))
    with submitted(cluster) as opened:
        opened.cancel("enough")
        with pytest.raises(sa.errors.RoundFailedError, match="cancelled: enough"):
            opened.result(timeout=60)


def test_rounds_without_submissions_are_closed(cluster):
    with cluster.create_round(SPEC) as opened:
        assert opened.start_merge().state == "done"
        assert digest(opened.result()) == digest(sa.aggregate({}, SPEC))


def test_killed_servers_are_started_again_at_their_addresses(folder):
    with Cluster(3, data_dir=folder, ranges=4, reducers=2) as cluster, submitted(cluster) as opened:
        for keeper in cluster._started.keepers:
            os.kill(keeper.pid, signal.SIGKILL)
        expected = digest(sa.aggregate(updates_of(), SPEC))
        assert digest(opened.finish()) == expected
        for keeper in cluster._started.keepers:
            os.kill(keeper.pid, signal.SIGKILL)
        opened.start_merge()
        assert digest(opened.result()) == expected
        assert sum(keeper.num_restarts for keeper in cluster._started.keepers) == 6


def test_tables_are_written_in_parts(cluster, tmp_path):
    expected = sa.aggregate(updates_of(), SPEC)
    with submitted(cluster) as opened:
        opened.start_merge()
        for name in ("sparse", "dense", "keys"):
            paths = opened.save(tmp_path / name, name)
            loaded = [dict(np.load(path)) for path in paths]
            assert [path.name for path in paths] == sorted(path.name for path in (tmp_path / name).iterdir())
            assert np.array_equal(np.concatenate([each["keys"] for each in loaded]), indices_of(expected[name]))
        rows = np.concatenate(
            [each["values"] for each in [dict(np.load(p)) for p in opened.save(tmp_path / "a", "sparse")]]
        )
        assert rows.tobytes() == np.asarray(expected["sparse"].values).tobytes()
        with pytest.raises(sa.errors.InvalidArgumentError, match="5 tensors"):
            opened.save(tmp_path)
        with pytest.raises(sa.errors.InvalidArgumentError, match="csv"):
            opened.save(tmp_path, "sparse", kind="csv")


def indices_of(result):
    """The keys with a submission: all of a sparse result, and those of a dense one that are not filled."""
    if result.layout == "sparse":
        return result.keys
    listed = np.concatenate([update[result.name][0] for update in updates_of().values()])
    return np.unique(listed)


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="PyArrow is not installed")
def test_tables_in_parquet(cluster, tmp_path):
    parquet = importlib.import_module("pyarrow.parquet")
    expected = sa.aggregate(updates_of(), SPEC)["sparse"]
    with submitted(cluster) as opened:
        opened.start_merge()
        tables = [parquet.read_table(path) for path in opened.save(tmp_path, "sparse", kind="parquet")]
    assert [key for table in tables for key in table["keys"].to_pylist()] == expected.keys.tolist()
    assert [row for table in tables for row in table["values"].to_pylist()] == np.asarray(expected.values).tolist()
    assert tables[0].column_names == ["keys", "values", "counts", "weights"]


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is not None, reason="PyArrow is installed")
def test_parquet_needs_pyarrow(cluster, tmp_path):
    with submitted(cluster) as opened:
        opened.start_merge()
        with pytest.raises(sa.errors.UnimplementedError, match="pyarrow"):
            opened.save(tmp_path, "sparse", kind="parquet")


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: make test-ray")
def test_ray_dataset_of_a_result(folder):
    expected = sa.aggregate(updates_of(), SPEC)
    with (
        ray_session(num_cpus=2),
        Cluster(3, data_dir=folder, executor="ray", ranges=4, reducers=1, reducer_cpus=0, server_cpus=0) as cluster,
        submitted(cluster) as opened,
    ):
        opened.start_merge()
        for name in ("sparse", "dense", "hashed", "keys", "top"):
            rows = opened.dataset(name).take_all()  # in order of keys
            whole = expected[name]
            assert [row["keys"] for row in rows] == indices_of(whole).tolist()
            if name == "sparse":
                assert np.array([row["values"] for row in rows], "f4").tobytes() == np.asarray(whole.values).tobytes()
                assert [row["weights"] for row in rows] == whole.weights.tolist()
        totals = opened.dataset("hashed").map(lambda row: {"one": 1, "value": float(row["values"])}).sum("one")
        assert totals == len(expected["hashed"])


def test_only_some_clients_count(cluster):
    chosen = CLIENTS[2:9]
    expected = sa.aggregate({each: updates_of()[each] for each in chosen}, SPEC)
    with submitted(cluster) as opened:
        result = opened.finish(only=chosen)
        assert (digest(result), result.info.num_submissions) == (digest(expected), 7)
        assert opened.start_merge(only=chosen).num_submissions == 7
        assert digest(opened.result()) == digest(expected)
        with pytest.raises(sa.errors.FailedPreconditionError, match="'nobody'"):
            opened.finish(only=["nobody"])
