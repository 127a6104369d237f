"""Clients of both shells at every address: in memory, at a server of the client's own, at another server."""

from __future__ import annotations

import asyncio

import pytest
import sparseagg as sa
from every_client import Settled


@pytest.fixture(scope="module", params=["memory", "local", "address"])
def address(request, server) -> str:
    return {"memory": ":memory:", "local": ":local:", "address": server.address}[request.param]


@pytest.fixture(scope="module", params=["blocking", "asyncio"])
def connect(request):
    """Makes a client of either shell; the fixture closes them."""
    loop = asyncio.new_event_loop()
    made: list[Settled] = []

    def make(*arguments, **options) -> Settled:
        shell = sa.Client if request.param == "blocking" else sa.aio.Client
        made.append(Settled(shell(*arguments, **options), loop))
        return made[-1]

    yield make
    for each in made:
        each.close()
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


@pytest.fixture(scope="module")
def any_client(connect, address) -> Settled:
    return connect(address)
