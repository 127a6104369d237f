"""What calls that fail hold on to: nothing, once their errors are handled, without Python's search for cycles."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import sparseagg as sa
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
