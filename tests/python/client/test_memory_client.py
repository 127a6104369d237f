"""Clients of ":memory:" and ":local:": what they alone do. What every client does is in tests/python/every_address."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from concurrent import futures

import numpy as np
import pytest
import sparseagg as sa
from sparseagg._internal.base import extension
from sparseagg._internal.client import memory_connection
from sparseagg.v1 import aggregation_pb2 as pb

ONE = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=10)])
UPDATE = ([1, 2], [1.0, 2.0])
PATIENCE_S = 60


@pytest.fixture(params=[sa.Client, sa.aio.Client], ids=["blocking", "asyncio"])
def shell(request) -> type:
    return request.param


@pytest.fixture
def no_merges(monkeypatch):
    """Lets no merge begin."""
    monkeypatch.setattr(memory_connection, "_MERGES", 0)


def wait_until_freed(client: sa.Client, to: int = 0) -> None:
    """Waits for the thread that frees what rounds no longer need."""
    until = time.monotonic() + PATIENCE_S
    while client._connection._rounds.memory_bytes > to:
        assert time.monotonic() < until
        time.sleep(0.001)


@pytest.mark.parametrize("options", [{"layout": "dense"}, {"result_layout": "dense"}])
def test_memory_refuses_dense_results_that_no_memory_holds(options):
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=10**10, row_width=64, **options)])
    with (
        sa.Client(":memory:") as client,
        pytest.raises(sa.errors.ResourceExhaustedError, match="dense results of 2560"),
    ):
        client.create_round(spec)


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
            await asyncio.gather(*(each.start_merge() for each in rounds))
            return [info.state for info in await asyncio.gather(*waits)]

    assert asyncio.run(asyncio.wait_for(job(), PATIENCE_S)) == ["done"] * 100


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


def test_memory_disconnect_ends_a_merge_that_is_waited_for(no_merges):
    async def job():
        client = sa.aio.Client(":memory:")
        call = asyncio.create_task(client.aggregate([UPDATE], ONE))
        while not client._connection._waits:
            await asyncio.sleep(0)
        await client.close()
        with pytest.raises(sa.errors.CancelledError, match="this client is closed"):
            await call

    asyncio.run(asyncio.wait_for(job(), PATIENCE_S))


@pytest.mark.parametrize("end", ["cancel", "delete"])
def test_memory_round_that_has_no_use_is_freed(end):
    with sa.Client(":memory:") as client:
        opened = client.create_round(sa.RoundSpec(ONE.tensors, deadline=1800, result_ttl=1800))
        empty = client._connection._rounds.memory_bytes
        opened.submit("a", UPDATE)
        assert client._connection._rounds.memory_bytes > empty
        getattr(opened, end)()
        wait_until_freed(client, 0 if end == "delete" else empty)


@pytest.mark.parametrize("end", ["sys.exit()", "os.fork() or sys.exit()", "os.fork() and os.wait()"])
def test_memory_client_that_nobody_closes_does_not_hold_up_the_end_of_python(end):
    code = f"""
import os, sys, threading
import sparseagg as sa
client = sa.Client(":memory:")
opened = client.create_round(sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=10)], deadline=3600))
threading.Thread(target=opened.wait, daemon=True).start()
while not client._connection._waits:
    pass
{end}
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=PATIENCE_S, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_server_that_does_not_know_only_is_found_out(monkeypatch):
    def call(self, method, request, *arguments, real=memory_connection.MemoryConnection.call, **named):
        if method == "CloseRound":
            request = pb.CloseRoundRequest(round=request.round)
        return real(self, method, request, *arguments, **named)

    monkeypatch.setattr(memory_connection.MemoryConnection, "call", call)
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
            third.get_round(opened.name).submit("a", UPDATE)
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


def test_threads_in_the_engine_at_the_end_of_python_end_quietly():
    code = """
import contextlib, sys, threading
import sparseagg as sa
spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=10)])
client = sa.Client(":memory:")
started = threading.Barrier(5)
def work():
    aggregator, opened = sa.Aggregator(spec), client.create_round(spec)
    started.wait()
    with contextlib.suppress(sa.SparseaggError):  # of the client, which the end of Python closes
        for number in range(10**9):
            aggregator.add(str(number), ([1], [1.0]))
            opened.submit(str(number), ([1], [1.0]))
            client.create_round(spec)
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
started.wait()
"""
    for _ in range(4):  # one in four was aborted where a destructor took the GIL
        done = subprocess.run([sys.executable, "-c", code], timeout=PATIENCE_S, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
