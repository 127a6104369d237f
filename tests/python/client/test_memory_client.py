"""Clients of ":memory:" and ":local:": what they alone do. What every client does is in tests/python/every_address."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from concurrent import futures

import numpy as np
import pytest
import sparseagg as sa
from sparseagg._internal.local import extension, memory_round
from sparseagg._internal.local.engine import Aggregator
from sparseagg._internal.local.memory_round import MemoryRound

ONE = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=10)])
UPDATE = ([1, 2], [1.0, 2.0])
PATIENCE_S = 60


@pytest.fixture(params=[sa.Client, sa.aio.Client], ids=["blocking", "asyncio"])
def shell(request) -> type:
    return request.param


@pytest.fixture
def merge_gate(monkeypatch):
    """Holds all merges: ``entered`` is set when one has begun, and ``leave`` lets them go on."""

    class Gate:
        entered = threading.Event()
        leave = threading.Event()

    def finish(self: Aggregator, real=Aggregator.finish) -> sa.Result:
        Gate.entered.set()
        assert Gate.leave.wait(PATIENCE_S)
        return real(self)

    monkeypatch.setattr(Aggregator, "finish", finish)
    yield Gate
    Gate.leave.set()


@pytest.mark.parametrize(
    ("name", "value"), [("token", "secret"), ("tls", True), ("tls", "ca.pem"), ("options", [("grpc.x", 1)])]
)
def test_memory_client_refuses_what_is_for_a_server(shell, name, value):
    with pytest.raises(
        sa.InvalidArgumentError, match=f'^a client of ":memory:" takes no {name}, which is for'
    ) as caught:
        shell(":memory:", **{name: value})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"timeout": "soon"}, "timeout must be a number of seconds"),
        ({"retry": 3}, "retry must be a RetryPolicy"),
        ({"chunk_bytes": 0}, "chunk_bytes must be a number from 1 on"),
        ({"connections": 0}, "connections must be a number from 1 on"),
    ],
)
def test_memory_client_checks_what_has_no_effect(shell, options, text):
    with pytest.raises(sa.InvalidArgumentError, match=text):
        shell(":memory:", **options)
    shell(":memory:", timeout=1, retry=sa.RetryPolicy(attempts=1), chunk_bytes=1, connections=1)


def test_memory_client_without_engine_says_so_at_once(shell, monkeypatch):
    def missing():
        raise sa.errors.EngineMissingError("this installation of sparseagg has no engine of its own")

    monkeypatch.setattr(extension, "load", missing)
    with pytest.raises(sa.errors.EngineMissingError, match="has no engine"):
        shell(":memory:")


def test_memory_clients_have_rounds_of_their_own():
    with sa.Client(":memory:") as first, sa.Client(":memory:") as second:
        assert first.address == ":memory:"
        opened = first.create_round(ONE, "r")
        assert list(second.list_rounds()) == []
        second.create_round(sa.RoundSpec([sa.TensorSpec("w", "int32", num_rows=5)]), "r")
        opened.submit("a", UPDATE)
        assert opened.finish()["v"].keys.tolist() == [1, 2]


def test_memory_round_has_copies_of_updates_and_gives_copies_of_results():
    keys, rows = np.array([1, 2], np.uint32), np.array([1, 2], np.float32)
    dense = np.ones(10, np.float32)
    with sa.Client(":memory:") as client:
        opened = client.create_round(ONE)
        opened.submit("a", (keys, rows))
        opened.submit("b", dense)
        for array in (keys, rows, dense):
            array[:] = 0
        merged = opened.finish()["v"]
        assert merged.values.tolist() == [1, 2, 3, 1, 1, 1, 1, 1, 1, 1]
        merged.values[:] = 0
        merged.keys[:] = 0
        again = opened.result(keys=(1, 4))["v"]
        assert (again.keys.tolist(), again.values.tolist()) == ([1, 2, 3], [2, 3, 1])


def test_memory_round_takes_one_submission_of_a_client_from_many_threads():
    with sa.Client(":memory:") as client, futures.ThreadPoolExecutor(16) as threads:
        opened = client.create_round(ONE)
        answers = list(threads.map(lambda i: opened.submit(f"c{i % 8}", ([i % 8], [1.0])), range(64)))
        assert sum(not answer.duplicate for answer in answers) == 8
        assert opened.finish()["v"].values.tolist() == [1.0] * 8
        assert opened.info.num_submissions == 8

        full = client.create_round(sa.RoundSpec(ONE.tensors, max_submissions=3))

        def refused(i: int) -> str:
            try:
                full.submit(f"c{i}", UPDATE)
            except sa.errors.FailedPreconditionError as error:
                return str(error).partition(": ")[2]
            return ""

        expected = [""] * 3 + ["there are max_submissions 3 submissions already"] * 29
        assert sorted(threads.map(refused, range(32))) == expected
        assert full.wait(PATIENCE_S).num_submissions == 3


def test_memory_round_takes_a_submission_once_that_comes_again_meanwhile(monkeypatch):
    checked = threading.Semaphore(0)
    adding = threading.Event()

    def duplicate(self: MemoryRound, *arguments, real=MemoryRound._duplicate):
        checked.release()
        return real(self, *arguments)

    def add(self: Aggregator, *arguments, real=Aggregator.add, **options) -> None:
        adding.set()
        for _ in range(3):  # by this thread, before and after it has waited for others, and by the other thread
            assert checked.acquire(timeout=PATIENCE_S)
        real(self, *arguments, **options)

    monkeypatch.setattr(MemoryRound, "_duplicate", duplicate)
    monkeypatch.setattr(Aggregator, "add", add)
    with sa.Client(":memory:") as client, futures.ThreadPoolExecutor(1) as threads:
        opened = client.create_round(ONE)
        first = threads.submit(opened.submit, "a", UPDATE)
        assert adding.wait(PATIENCE_S)
        assert opened.submit("a", UPDATE).duplicate
        assert not first.result(PATIENCE_S).duplicate


def test_memory_waits_of_asyncio_leave_the_threads_to_others():
    async def job():
        async with sa.aio.Client(":memory:") as client:
            rounds = [await client.create_round(ONE) for _ in range(100)]
            waits = [asyncio.create_task(each.wait()) for each in rounds]  # more than the loop's executor has threads
            await asyncio.sleep(0)
            given_up = [asyncio.create_task(each.wait()) for each in rounds]
            await asyncio.sleep(0)
            for task in given_up:
                task.cancel()
            await asyncio.gather(*(each.submit("a", UPDATE) for each in rounds))
            assert not any(task.done() for task in waits)
            await asyncio.gather(*(each.close() for each in rounds))
            return [info.state for info in await asyncio.gather(*waits)]

    assert asyncio.run(asyncio.wait_for(job(), PATIENCE_S)) == ["done"] * 100


def test_memory_merge_goes_on_after_a_timeout(merge_gate):
    with sa.Client(":memory:") as client:
        opened = client.create_round(ONE)
        opened.submit("a", UPDATE)
        for call in (opened.finish, opened.result, opened.wait):
            with pytest.raises(TimeoutError, match=f"^{opened.name} is still finalizing$"):
                call(timeout=0.02)
        with pytest.raises(sa.errors.FailedPreconditionError, match=f"^{opened.name} is finalizing$"):
            opened.submit("b", UPDATE)
        assert opened.submit("a", UPDATE).duplicate
        with pytest.raises(TimeoutError, match=r"^the aggregation has not ended: the merge was under way$"):
            client.aggregate([UPDATE], ONE, timeout=0.02)
        merge_gate.leave.set()
        assert opened.finish(timeout=PATIENCE_S)["v"].values.tolist() == [1.0, 2.0]


def test_memory_round_cancelled_during_its_merge_has_no_result(merge_gate):
    with sa.Client(":memory:") as client:
        opened = client.create_round(ONE)
        with pytest.raises(TimeoutError):
            opened.finish(timeout=0)
        assert merge_gate.entered.wait(PATIENCE_S)
        assert opened.cancel("enough").state == "cancelled"
        merge_gate.leave.set()
        with pytest.raises(sa.RoundFailedError, match="cancelled: enough"):
            opened.finish()


def test_memory_submission_to_a_round_cancelled_meanwhile_does_not_count(monkeypatch):
    with sa.Client(":memory:") as client:
        opened = client.create_round(ONE)

        def add(self: Aggregator, *arguments, real=Aggregator.add, **options) -> None:
            real(self, *arguments, **options)
            opened.cancel("enough")

        monkeypatch.setattr(Aggregator, "add", add)
        with pytest.raises(sa.errors.FailedPreconditionError, match=f"^{opened.name} is cancelled: enough$"):
            opened.submit("a", UPDATE)
        assert opened.refresh().num_submissions == 0


def test_memory_round_fails_when_the_merge_has_a_fault(monkeypatch):
    def fault(self: Aggregator) -> sa.Result:
        raise RuntimeError("a fault")

    monkeypatch.setattr(Aggregator, "finish", fault)
    with sa.Client(":memory:") as client, pytest.raises(sa.RoundFailedError, match="failed: INTERNAL: a fault"):
        client.create_round(ONE).finish(timeout=PATIENCE_S)


def test_memory_disconnect_ends_calls_under_way(monkeypatch):
    waiting = threading.Event()
    real = futures.wait

    def wait(*arguments):
        waiting.set()
        return real(*arguments)

    monkeypatch.setattr("concurrent.futures.wait", wait)
    client = sa.Client(":memory:")
    opened = client.create_round(ONE)
    with futures.ThreadPoolExecutor(1) as threads:
        call = threads.submit(opened.wait)
        assert waiting.wait(PATIENCE_S)
        client.close()
        with pytest.raises(sa.errors.CancelledError, match="this client is closed"):
            call.result(PATIENCE_S)


def test_memory_aio_disconnect_ends_calls_under_way():
    async def job():
        client = sa.aio.Client(":memory:")
        opened = await client.create_round(ONE)
        call = asyncio.create_task(opened.wait())
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(sa.errors.CancelledError, match="this client is closed"):
            await call

    asyncio.run(asyncio.wait_for(job(), PATIENCE_S))


def test_memory_delete_ends_waits():
    async def job():
        async with sa.aio.Client(":memory:") as client:
            opened = await client.create_round(ONE)
            call = asyncio.create_task(opened.wait())
            await asyncio.sleep(0)
            await opened.delete()
            return await call

    info = asyncio.run(asyncio.wait_for(job(), PATIENCE_S))
    assert (info.state, info.state_reason) == ("cancelled", "the round was deleted")


def test_memory_aggregate_that_fails_leaves_no_timer():
    with sa.Client(":memory:") as client, pytest.raises(sa.InvalidArgumentError):
        client.aggregate([([10], [1.0])], sa.RoundSpec(ONE.tensors, deadline=3600))
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer) and thread.interval == 3600:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


@pytest.mark.parametrize("end", ["cancel", "delete", "disconnect", "drop"])
def test_memory_round_that_has_no_use_is_freed(monkeypatch, end):
    made: list[weakref.ref] = []

    class Watched(Aggregator):
        def __init__(self, *arguments) -> None:
            super().__init__(*arguments)
            made.append(weakref.ref(self))

    monkeypatch.setattr(memory_round, "Aggregator", Watched)
    client = sa.Client(":memory:")
    opened = client.create_round(sa.RoundSpec(ONE.tensors, deadline=1800, result_ttl=1800))
    opened.submit("a", UPDATE)
    assert made[0]() is not None
    if end == "drop":
        del client, opened
    elif end == "disconnect":
        client.close()
    else:
        getattr(opened, end)()
    gc.collect()
    assert made[0]() is None


def test_server_that_does_not_know_only_is_found_out(monkeypatch):
    monkeypatch.setattr(MemoryRound, "close_with_only", lambda self, client_ids: None)
    with sa.Client(":memory:") as client:
        opened = client.create_round(ONE)
        for client_id in "ab":
            opened.submit(client_id, UPDATE)
        with pytest.raises(
            sa.errors.UnimplementedError, match="counts 2 submissions instead of 1: the server is too old"
        ):
            opened.finish(only=["a"])


def test_local_client_has_a_server_of_its_own_until_it_disconnects():
    with sa.Client(":local:") as client, sa.Client(":local:") as other:
        assert client.address != other.address
        opened = client.create_round(ONE)
        with sa.Client(client.address) as third:
            third.get_round(opened.id).submit("a", UPDATE)
        assert opened.finish()["v"].values.tolist() == [1.0, 2.0]
    with sa.Client(client.address, retry=sa.RetryPolicy(attempts=1)) as late, pytest.raises(sa.errors.UnavailableError):
        late.server_info()


def test_local_client_with_a_bad_argument_leaves_no_server(shell, monkeypatch):
    stopped = []

    def stop(self: sa.Server, real=sa.Server.stop) -> None:
        stopped.append(self)
        real(self)

    monkeypatch.setattr(sa.Server, "stop", stop)
    with pytest.raises(sa.InvalidArgumentError, match="connections must be a number"):
        shell(":local:", connections=0)
    assert [server.pid for server in stopped] == [None]
    with pytest.raises(sa.InvalidArgumentError, match='a client of ":local:" takes no tls'):
        shell(":local:", tls=True)
    assert len(stopped) == 1
