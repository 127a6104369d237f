"""Clients of both shells at every address: in memory, at a server of the client's own, at another server."""

from __future__ import annotations

import pytest
from every_client import Settled


@pytest.fixture(scope="module", params=["memory", "local", "address"])
def address(request, server) -> str:
    return {"memory": ":memory:", "local": ":local:", "address": server.address}[request.param]


@pytest.fixture(scope="module")
def any_client(connect, address) -> Settled:
    return connect(address)
