"""The asyncio client does what the other one does."""

from __future__ import annotations

import asyncio
import threading
from concurrent import futures

import numpy as np
import pytest
import sparseagg as sa
from sparseagg.v1 import aggregation_pb2 as pb
from test_retry import Scripted, serving

ONE = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=10)], return_counts=True)


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 60))


def test_aio_client_of_another_loop_says_so(server):
    client = sa.aio.Client(server.address)
    opened = run(client.create_round(ONE))
    for call in (
        client.server_info(),
        client.aggregate([([1], [1.0])], ONE),
        opened.submit("a", ([1], [1.0])),
        opened.result(),
        client.close(),
    ):
        with pytest.raises(sa.errors.FailedPreconditionError, match="this client is in use in another event loop"):
            run(call)


def test_aio_disconnect_of_a_client_that_never_called():
    async def job():
        client = sa.aio.Client("127.0.0.1:1")
        await client.close()
        with pytest.raises(sa.errors.FailedPreconditionError, match="this client is closed"):
            await client.server_info()

    run(job())


def test_aio_aggregate_of_an_asynchronous_generator_says_what_to_do(client, server):
    async def updates():
        yield ([1], [1.0])

    async def job():
        async with sa.aio.Client(server.address) as client:
            await client.aggregate(updates(), ONE)

    for use in (lambda: run(job()), lambda: client.aggregate(updates(), ONE), lambda: sa.aggregate(updates(), ONE)):
        with pytest.raises(sa.InvalidArgumentError, match="updates must not be an asynchronous iterator"):
            use()


class Waiting(Scripted):
    """Keeps those who call WaitRound or StreamResult, and tells when there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.over = threading.Event()

    def WaitRound(self, request, context):
        self.entered.set()
        self.over.wait(60)
        return pb.Round(name=request.round, state=pb.ROUND_STATE_DONE)

    def StreamResult(self, request, context):
        self.WaitRound(request, context)
        yield pb.ResultPage()


CALLS = {"unary": lambda found: found.wait(), "stream": lambda found: found.result()}


@pytest.fixture
def waiting():
    servicer = Waiting()
    with serving(servicer) as address:
        yield servicer, address
        servicer.over.set()


@pytest.mark.parametrize("call", CALLS)
def test_aio_disconnect_raises_cancelled_in_calls_under_way(waiting, call):
    servicer, address = waiting

    async def job():
        client = sa.aio.Client(address)
        under_way = asyncio.ensure_future(CALLS[call](await client.get_round("r")))
        await asyncio.get_running_loop().run_in_executor(None, servicer.entered.wait)
        await client.close()
        with pytest.raises(sa.errors.CancelledError, match="closed"):
            await under_way
        assert not under_way.cancelled()

    run(job())


@pytest.mark.parametrize("call", CALLS)
def test_aio_cancelled_task_stays_cancelled(waiting, call):
    servicer, address = waiting

    async def job():
        client = sa.aio.Client(address)
        under_way = asyncio.ensure_future(CALLS[call](await client.get_round("r")))
        await asyncio.get_running_loop().run_in_executor(None, servicer.entered.wait)
        under_way.cancel()
        await client.close()
        with pytest.raises(asyncio.CancelledError):
            await under_way
        assert under_way.cancelled()

    run(job())


@pytest.mark.parametrize("call", CALLS)
def test_disconnect_raises_cancelled_in_calls_under_way(waiting, call):
    servicer, address = waiting
    client = sa.Client(address)
    with futures.ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(CALLS[call], client.get_round("r"))
        assert servicer.entered.wait(60)
        client.close()
        with pytest.raises(sa.errors.CancelledError):
            under_way.result(timeout=60)


class Exporter:
    """An array that remembers which threads have read it."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values
        self.threads: set[int] = set()

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        self.threads.add(threading.get_ident())
        return self.values


def test_aio_updates_are_converted_apart_and_made_in_the_event_loop(server):
    arrays = [Exporter(np.ones(10)) for _ in range(4)]
    makers = set()

    def made(some):
        for array in some:
            makers.add(threading.get_ident())
            yield {"v": array}

    async def job():
        async with sa.aio.Client(server.address) as client:
            opened = await client.create_round(ONE)
            await opened.submit("a", {"v": arrays[0]})
            await client.aggregate([{"v": arrays[1]}], ONE)
            return await client.aggregate(made(arrays[2:]), ONE)

    assert run(job())["v"].values.tolist() == [2.0] * 10
    assert makers == {threading.get_ident()}
    for array in arrays:
        assert array.threads
        assert threading.get_ident() not in array.threads


def test_aio_update_that_stops_an_iteration_is_an_error(server):
    class Stops(dict):
        def items(self):
            raise StopIteration

    async def job():
        async with sa.aio.Client(server.address) as client:
            with pytest.raises(RuntimeError, match="StopIteration"):
                await asyncio.wait_for(client.aggregate(Stops(), ONE), 60)

    run(job())
