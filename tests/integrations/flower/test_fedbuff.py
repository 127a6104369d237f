"""SparseFedBuff: against arithmetic in float64, with every fault, and under Flower's simulation."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jobs
import numpy as np
import pytest
import sparseagg as sa
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from local_grid import LocalGrid, changing
from sparseagg.flower import SparseFedBuff, sparse_mod

NODES = 10


def initial() -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in jobs.initial_model().items()})


def arrays_of(record: ArrayRecord) -> jobs.Arrays:
    return {name: array.numpy() for name, array in record.items()}


@dataclasses.dataclass
class Trained:
    """What a client made: the partition, the version that it was sent, and its arrays before and after."""

    partition: int
    base: int
    before: jobs.Arrays
    after: jobs.Arrays


def recording(trained: list[Trained]) -> Any:
    """A mod behind sparse_mod that notes what the training function is given and returns."""

    def mod(message: Message, context: Any, call_next: Any) -> Message:
        before = arrays_of(message.content["arrays"])
        base = int(message.content["config"]["server-round"]) - 1
        reply = call_next(message, context)
        if not reply.has_error():
            partition = int(context.node_config["partition-id"])
            trained.append(Trained(partition, base, before, arrays_of(reply.content["arrays"])))
        return reply

    return mod


def check_versions(trained: list[Trained], models: dict[int, jobs.Arrays], buffer: int) -> set[int]:
    """Compares each version with float64 arithmetic over the updates in order of arrival; returns the stalenesses."""
    seen = set()
    for version in range(1, max(models) + 1):
        part = trained[(version - 1) * buffer : version * buffer]
        stalenesses = [version - 1 - each.base for each in part]
        seen.update(stalenesses)
        for name, before in models[version - 1].items():
            step = np.zeros(before.shape)
            for each, staleness in zip(part, stalenesses):
                np.testing.assert_array_equal(each.before[name], models[each.base][name])
                difference = each.after[name].astype(np.float64) - each.before[name].astype(np.float64)
                step += (1 + staleness) ** -0.5 * difference / buffer
            want = before.astype(np.float64) + step
            want = np.rint(want) if before.dtype.kind == "i" else want
            np.testing.assert_allclose(models[version][name], want, rtol=0, atol=2e-6, err_msg=name)
    return seen


def run(
    app: Any, *, grid: LocalGrid | None = None, versions: int = 6, config: Any = None, timeout: float = 60, **more: Any
) -> Any:
    """Runs the strategy; returns Flower's result, and the model of each version."""
    models: dict[int, jobs.Arrays] = {}

    def evaluate(version: int, record: ArrayRecord) -> MetricRecord:
        models[version] = arrays_of(record)
        return MetricRecord({"version": version})

    grid = LocalGrid(app, NODES) if grid is None else grid
    resume = {name: more.pop(name) for name in ("initial_version", "arrays") if name in more}
    settings = {"sparse": ["embedding.weight"], "concurrency": 6, "buffer": 3, "seed": 1, **more}
    strategy = SparseFedBuff(**settings)
    result = strategy.start(
        grid,
        resume.pop("arrays", initial()),
        versions,
        timeout,
        train_config=ConfigRecord(config or {}),
        evaluate_fn=evaluate,
        **resume,
    )
    assert list(result.evaluate_metrics_serverapp) == list(models)
    last = arrays_of(result.arrays)
    for name, array in models[max(models)].items():
        np.testing.assert_array_equal(last[name], array)
    return result, models


@pytest.mark.parametrize("timeout", [math.nan, -1.0, "60"])
def test_timeout_that_is_no_number_is_refused(timeout: Any) -> None:  # at NaN, a run would wait for ever
    with pytest.raises(sa.InvalidArgumentError, match="timeout must be a number of seconds"):
        SparseFedBuff(sparse=[], concurrency=1, buffer=1).start(None, initial(), 1, timeout)


@pytest.mark.parametrize("mods", [True, False])
def test_versions_are_those_of_float64_arithmetic(tmp_path: Any, mods: bool) -> None:
    trained: list[Trained] = []
    app = jobs.make_client_app([*([sparse_mod(copies=tmp_path)] if mods else []), recording(trained)])
    result, models = run(app, versions=8)
    assert sorted(models) == list(range(9))
    assert len(trained) == 8 * 3
    assert max(check_versions(trained, models, 3)) >= 1
    assert set(result.train_metrics_clientapp) == set(range(1, 9))


@pytest.mark.parametrize("silent", [[], [3]])
def test_clients_evaluate_each_version(tmp_path: Any, silent: list[int]) -> None:
    grid = LocalGrid(jobs.make_client_app([sparse_mod(copies=tmp_path)]), NODES, silent=silent)
    result, models = run(grid.app, grid=grid, versions=8, evaluate_nodes=2, timeout=5 if silent else 60)
    found = result.evaluate_metrics_clientapp
    # A node that has lost its copy of a version evaluates the one that it is sent whole.
    assert 8 in found, "the evaluations of the last version are awaited"
    assert 4 <= len(found) <= 8
    for version, metrics in found.items():
        checksum = sum(array.astype(np.float64).sum() for array in models[version].values())
        assert metrics["checksum"] == pytest.approx(checksum, rel=1e-12)


def test_a_server_has_the_versions_and_gives_the_same_bits(tmp_path: Any) -> None:
    app = jobs.make_client_app([sparse_mod(copies=tmp_path)])
    _, models = run(app)
    with sa.Client(":local:") as client:
        _, others = run(app, server=client, stream_id="kept")
        stream = client.get_stream("kept")
        assert stream.refresh().version == 7
        assert [version.num_submissions for version in stream.watch(0)] == [3] * 6
        with pytest.raises(sa.errors.FailedPreconditionError, match="has commits already"):
            run(app, server=client, stream_id="kept")
    for version, arrays in models.items():
        for name, array in arrays.items():
            np.testing.assert_array_equal(others[version][name], array)


def test_a_run_goes_on_with_the_stream_of_an_earlier_one(tmp_path: Any) -> None:
    trained: list[Trained] = []
    app = jobs.make_client_app([sparse_mod(copies=tmp_path), recording(trained)])
    with sa.Client(":local:") as client:
        again = {"server": client, "stream_id": "kept", "options": {"result_ttl": 600}}
        _, first = run(app, versions=3, **again)
        stream = client.get_stream("kept")
        del trained[9:]
        _, resumed = run(app, versions=6, initial_version=0, **again)
        assert list(resumed) == list(range(7))
        for version in range(4):  # the first run's, applied again to the same initial model
            for name, array in first[version].items():
                np.testing.assert_array_equal(resumed[version][name], array)
        check_versions(trained, resumed, 3)
        record = ArrayRecord({name: Array(array) for name, array in resumed[5].items()})
        _, last = run(app, versions=7, initial_version=5, arrays=record, **again)
        assert list(last) == [5, 6, 7]
        for name, array in resumed[6].items():
            np.testing.assert_array_equal(last[6][name], array)
        with pytest.raises(
            sa.errors.InvalidArgumentError, match="initial_version is 8, and streams/kept has 7 versions"
        ):
            run(app, versions=9, initial_version=8, **again)
        client.get_round("kept.v1").delete()
        with pytest.raises(
            sa.errors.FailedPreconditionError, match="only versions from 2 on, and initial_version is 0"
        ):
            run(app, versions=9, initial_version=0, **again)
        assert stream.refresh().version == 8


def test_failing_and_bad_clients_cost_their_own_updates_alone(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    trained: list[Trained] = []

    def spoil(arrays: jobs.Arrays, partition: int) -> None:
        if partition == 1:
            arrays["dense.weight"] = arrays["dense.weight"][:, :2]
        if partition == 2:
            arrays["embedding.weight"][5, 0] = np.inf

    app = jobs.make_client_app([sparse_mod(copies=tmp_path), changing(spoil), recording(trained)])
    _, models = run(app, config={"failing": [0]})
    good = [each for each in trained if each.partition not in (1, 2)]
    assert max(models) == 6
    check_versions(good, models, 3)
    assert "client 0 fails" in caplog.text
    assert "'dense.weight' has shape" in caplog.text
    assert "embedding.weight" in caplog.text


def test_clients_that_never_reply_are_replaced(tmp_path: Any) -> None:
    trained: list[Trained] = []
    app = jobs.make_client_app([sparse_mod(copies=tmp_path), recording(trained)])
    grid = LocalGrid(app, NODES, silent=[3, 4])
    _, models = run(app, grid=grid, concurrency=2, timeout=0.2)
    assert max(models) == 6
    assert all(len(grid.sent[partition]) == 1 for partition in (3, 4))
    assert {3, 4}.isdisjoint(each.partition for each in trained)
    check_versions(trained, models, 3)


def test_a_late_client_does_not_hold_a_version_back(tmp_path: Any) -> None:
    """One client commits and then fails, one never replies, and the others fail: the version is cut with one update."""
    calls = 0

    def once(message: Message, context: Any, call_next: Any) -> Message:
        nonlocal calls
        if context.node_config["partition-id"] == 0:
            calls += 1
            assert calls == 1, "the client fails"
        return call_next(message, context)

    app = jobs.make_client_app([sparse_mod(copies=tmp_path), once])
    grid = LocalGrid(app, NODES, silent=[1])
    _, models = run(app, grid=grid, versions=1, timeout=0.2, concurrency=NODES, config={"failing": [*range(2, NODES)]})
    assert list(models) == [0, 1]


def test_a_run_that_has_begun_goes_on_with_fewer_nodes(tmp_path: Any) -> None:
    class Leaving(LocalGrid):
        """Of which a node leaves for good."""

        def get_node_ids(self) -> list[int]:
            return super().get_node_ids()[1 if self.replies else 0 :]

    app = jobs.make_client_app([sparse_mod(copies=tmp_path)])
    _, models = run(app, grid=Leaving(app, NODES), versions=4, min_nodes=NODES, timeout=1)
    assert max(models) == 4


def test_a_run_that_cannot_begin_leaves_no_stream() -> None:
    def broken(version: int, record: ArrayRecord) -> MetricRecord:
        raise ZeroDivisionError

    with sa.Client(":local:") as client:
        strategy = SparseFedBuff(sparse=[], concurrency=1, buffer=1, server=client)
        grid = LocalGrid(jobs.make_client_app([]), NODES)
        with pytest.raises(ZeroDivisionError):
            strategy.start(grid, initial(), 1, evaluate_fn=broken)
        with pytest.raises(sa.InvalidArgumentError, match="initial_version is 3"):
            strategy.start(grid, initial(), 1, initial_version=3)
        assert not list(client.list_streams())


def test_an_update_beyond_max_staleness_does_not_count(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    trained: list[Trained] = []
    app = jobs.make_client_app([sparse_mod(copies=tmp_path), recording(trained)])

    class Late(LocalGrid):
        """Partition 0 replies when all others have been asked often."""

        calls = 0

        def pull_messages(self, message_ids: Any) -> Any:
            self.calls += 1
            self.silent = set() if self.calls > 12 else {0}
            return super().pull_messages(message_ids)

    _, models = run(app, grid=Late(app, NODES), versions=8, max_staleness=1, concurrency=NODES)
    assert "stale by" in caplog.text
    counted, version = [], 1
    for each in trained:
        if version - 1 - each.base <= 1:
            counted.append(each)
            version = 1 + len(counted) // 3
    assert len(counted) < len(trained)
    check_versions(counted, models, 3)


def test_the_run_ends_when_all_clients_fail(caplog: pytest.LogCaptureFixture) -> None:
    app = jobs.make_client_app([sparse_mod])
    _, models = run(app, config={"failing": list(range(NODES))})
    assert list(models) == [0]
    assert "all clients have failed since version 0" in caplog.text
