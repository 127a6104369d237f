"""How rounds end, and how their end is waited for, by both clients."""

from __future__ import annotations

import asyncio
import inspect
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import sparseagg as sa

SPEC = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=10)])


class Twin:
    """A round of either client, of which one call is made at a time."""

    def __init__(self, address: str, kind: str, **options) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = (sa.aio.Client if kind == "aio" else sa.Client)(address, **options)
        self.connection = self._client._connection
        self._round = self._run(self._client.create_round(SPEC))

    def _run(self, answer):
        return self._loop.run_until_complete(answer) if inspect.isawaitable(answer) else answer

    def __getattr__(self, name: str):
        async def awaited(*arguments, **options):
            return await getattr(self._round, name)(*arguments, **options)

        def call(*arguments, **options):
            if isinstance(self._round, sa.Round):
                return getattr(self._round, name)(*arguments, **options)
            return self._run(awaited(*arguments, **options))

        return call

    def leave(self) -> None:
        self._run(self._client.close())
        self._loop.close()


@pytest.fixture(params=["sync", "aio"])
def open_round(request, server):
    twins: list[Twin] = []

    def make(address: str = "", **options) -> Twin:
        twins.append(Twin(address or server.address, request.param, **options))
        return twins[-1]

    yield make
    for twin in twins:
        twin.leave()


def test_close_and_wait_read_nothing(open_round, monkeypatch):
    opened = open_round()
    opened.submit("a", np.ones(10))

    def read(*_):
        raise AssertionError("the result was read")

    monkeypatch.setattr(opened.connection, "read", read)
    for _ in range(2):
        assert opened.close(timeout=60).state in ("finalizing", "done")
        info = opened.wait(timeout=60)
        assert (info.state, info.num_submissions, info.results[0].num_keys) == ("done", 1, 10)


def test_result_waits_until_the_round_is_closed(client):
    opened = client.create_round(sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=9)]))
    opened.submit("a", ([1], [1.0]))
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(opened.result)
        client.get_round(opened.name).close()
        assert reading.result(timeout=60)["v"].keys.tolist() == [1]


@pytest.mark.parametrize("attempts", [1, 5])
@pytest.mark.parametrize("max_wait", ["0s", "2ms"])
def test_wait_at_a_server_that_waits_little_asks_now_and_then(
    open_round, start_server, monkeypatch, max_wait, attempts
):
    server = start_server("--max-wait", max_wait)
    opened = open_round(server.address, retry=sa.RetryPolicy(attempts=attempts, initial=0.1))
    calls = 0
    real = opened.connection.call

    def call(method, *arguments, **options):
        nonlocal calls
        calls += method == "WaitRound"
        return real(method, *arguments, **options)

    monkeypatch.setattr(opened.connection, "call", call)
    with pytest.raises(TimeoutError, match="still open"):
        opened.wait(timeout=0.5)
    assert 1 <= calls <= 15
    opened.close()
    assert opened.wait().state == "done"
