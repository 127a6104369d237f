"""How operations of the client wait: blocking, without an event loop, and beside one."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import sparseagg as sa
from sparseagg.client.transport import BlockingTransport, run


def test_run_returns_what_the_operation_returns():
    async def operation() -> int:
        transport = BlockingTransport()
        await transport.sleep(0.0)
        return await transport.convert(max, 3, 7)

    assert run(operation()) == 7


def test_run_raises_what_the_operation_raises():
    async def operation() -> None:
        raise sa.NotFound("no such round")

    with pytest.raises(sa.NotFound, match="no such round"):
        run(operation())


def test_run_of_an_operation_that_suspends_is_an_error():
    async def operation() -> None:
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="suspended"):
        run(operation())


def test_blocking_client_works_in_a_thread_with_an_event_loop(server):
    async def job() -> list[float]:
        with sa.Client(server.address) as client:
            rnd = client.create_round(sa.RoundSpec([sa.TensorSpec("v", "float32", 10)]))
            rnd.submit("a", ([3], [1.5]))
            rnd.submit("b", {"v": (np.array([3]), np.array([2.0]))}, resumable=True)
            return rnd.close()["v"].values.tolist()

    assert asyncio.run(job()) == [3.5]
