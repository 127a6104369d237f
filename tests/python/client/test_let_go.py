"""What calls that fail hold on to: nothing, once their errors are handled, without Python's search for cycles."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import sparseagg as sa
from growth import ONE, UPDATE, check_linear, cpu_clock, many_rounds, round_of_tensors
from real_server import ServerProcess

NUM_ROWS = 100_000
SPEC = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=NUM_ROWS, layout="dense")])
WAIT_S = 20.0


class Watched(np.ndarray):
    """An array that can be referred to weakly."""


@pytest.fixture
def no_search() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def watched(value: float) -> Watched:
    return np.full(NUM_ROWS, value, np.float32).view(Watched)


def is_gone(reference: weakref.ref[Watched]) -> bool:
    """Whether nobody has it any more; gRPC's threads, which may have been sending it, take a moment to let go."""
    until = time.monotonic() + WAIT_S
    while reference() is not None and time.monotonic() < until:
        time.sleep(0.001)
    return reference() is None


# Refused by the server, after it has come, and not sent at all, for the time is over before it can be.
CALLS: dict[str, Any] = {
    "submit": lambda client, opened, update: opened.submit("a", update),
    "resumable": lambda client, opened, update: opened.submit("a", update, resumable=True),
    "aggregate": lambda client, opened, update: client.aggregate([update], SPEC),
}


@pytest.mark.parametrize("chunk_bytes", [None, 50_000])
@pytest.mark.parametrize("call", CALLS)
def test_update_that_is_refused_is_let_go_of(server: ServerProcess, no_search: None, call: str, chunk_bytes: Any):
    with sa.Client(server.address, chunk_bytes=chunk_bytes) as client:
        opened = client.create_round(SPEC)
        update = watched(np.nan)
        with contextlib.suppress(sa.InvalidArgumentError):
            CALLS[call](client, opened, update)
            raise AssertionError("it was not refused")
        reference = weakref.ref(update)
        del update
        assert is_gone(reference)


@pytest.mark.parametrize("chunk_bytes", [None, 50_000])
@pytest.mark.parametrize("call", CALLS)
def test_update_that_is_refused_is_let_go_of_with_asyncio(
    server: ServerProcess, no_search: None, call: str, chunk_bytes: Any
):
    async def attempt(client: sa.aio.Client, opened: sa.aio.Round) -> weakref.ref[Watched]:
        update = watched(np.nan)
        with contextlib.suppress(sa.InvalidArgumentError):
            await CALLS[call](client, opened, update)
            raise AssertionError("it was not refused")
        return weakref.ref(update)

    async def job() -> None:
        async with sa.aio.Client(server.address, chunk_bytes=chunk_bytes) as client:
            opened = await client.create_round(SPEC)
            reference = await attempt(client, opened)
            until = time.monotonic() + WAIT_S
            while reference() is not None and time.monotonic() < until:
                await asyncio.sleep(0.001)
            assert reference() is None

    asyncio.run(job())


@pytest.mark.parametrize("call", ["submit", "aggregate"])
def test_update_that_no_server_takes_is_let_go_of(start_server: Any, no_search: None, call: str):
    server = start_server()
    retry = sa.RetryPolicy(attempts=3, initial=0.001)
    with sa.Client(server.address, retry=retry) as client:
        opened = client.create_round(SPEC)
        opened.submit("before", watched(1))
        server.kill()
        update = watched(2)
        with contextlib.suppress(sa.errors.UnavailableError):
            CALLS[call](client, opened, update)
            raise AssertionError("there is no server")
        reference = weakref.ref(update)
        del update
        assert is_gone(reference)


def test_result_that_cannot_be_read_holds_no_frame(server: ServerProcess, no_search: None):
    with sa.Client(server.address) as client:
        opened = client.create_round(SPEC)
        opened.cancel()

        def read() -> weakref.ref[Watched]:
            held = watched(1)  # by this frame, which an error's traceback would hold
            with contextlib.suppress(sa.RoundFailedError):
                opened.result()
                raise AssertionError("the round is cancelled")
            return weakref.ref(held)

        assert is_gone(read())


# ---- the cost of rounds on a server grows in proportion to tensors, chunks, clients, rounds and tasks


FLAGS = ("--max-tensors", "0", "--max-open-rounds", "0")


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server on disk with room for many tensors and rounds."""
    folder = tmp_path_factory.mktemp("server")
    kept = ("--data-dir", str(folder / "data"), "--durability", "memory")
    running = ServerProcess(folder / "log", *FLAGS, *kept)
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def connected(roomy: ServerProcess) -> Iterator[sa.Client]:
    with sa.Client(roomy.address) as client:
        yield client


def round_of_chunks(client: sa.Client, n: int) -> Callable[[], object]:
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=1 << 20)])
    keys = np.random.default_rng(1).permutation(1 << 20)[: 100 * n]
    update = (keys, np.ones(len(keys), np.float32))
    cutting = sa.Client(client.address, chunk_bytes=900)

    def run() -> None:
        opened = cutting.create_round(spec)
        opened.submit("a", update)
        opened.finish()
        opened.delete()

    return run


def round_of_clients(client: sa.Client, n: int) -> Callable[[], object]:
    def run() -> None:
        opened = client.create_round(ONE)
        for i in range(n):
            opened.submit(i, UPDATE)
        assert len(list(opened.submissions())) == n
        opened.finish(only=[str(i) for i in range(0, n, 2)])
        opened.delete()

    return run


def aggregate_of_clients(client: sa.Client, n: int) -> Callable[[], object]:
    updates = [UPDATE] * n
    return lambda: client.aggregate(updates, ONE)


def many_tasks(client: sa.Client, n: int) -> Callable[[], object]:
    def run() -> None:
        client.create_tasks([sa.NewTask(payload=b"x")] * n)
        for i in range(n):
            client.complete_task(client.lease_task(f"w{i}"))

    return run


SIZES = {
    round_of_tensors: 1000,
    round_of_chunks: 400,
    round_of_clients: 300,
    aggregate_of_clients: 1000,
    many_rounds: 200,
    many_tasks: 300,
}


@pytest.mark.parametrize("make", SIZES, ids=lambda make: make.__name__)
def test_cost_of_client_and_server_is_in_proportion(make, connected, roomy):
    clocks = (time.process_time, cpu_clock(roomy.process.pid))
    check_linear(lambda n: make(connected, n), SIZES[make], *clocks)
