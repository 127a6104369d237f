"""How submissions fail at their making, how rounds end, and how their end is waited for, by both clients."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import sparseagg as sa
from every_client import SHELLS, one, settled
from sparseagg._internal.wire import encode

SPEC = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=10)])


def test_close_and_wait_read_nothing(connect, server, monkeypatch):
    client = connect(server.address)
    opened = client.create_round(SPEC)
    opened.submit("a", np.ones(10))

    def read(*_):
        raise AssertionError("the result was read")

    monkeypatch.setattr(client._connection, "read", read)
    for _ in range(2):
        assert opened.start_merge(timeout=60).state in ("finalizing", "done")
        info = opened.wait(timeout=60)
        assert (info.state, info.num_submissions, info.results[0].num_keys) == ("done", 1, 10)


def test_result_waits_until_the_round_is_closed(client):
    opened = client.create_round(sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=9)]))
    opened.submit("a", ([1], [1.0]))
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(opened.result)
        client.get_round(opened.name).start_merge()
        assert reading.result(timeout=60)["v"].keys.tolist() == [1]


@pytest.mark.parametrize("attempts", [1, 5])
@pytest.mark.parametrize("max_wait", ["0s", "2ms"])
def test_wait_at_a_server_that_waits_little_asks_now_and_then(connect, start_server, monkeypatch, max_wait, attempts):
    server = start_server("--max-wait", max_wait)
    client = connect(server.address, retry=sa.RetryPolicy(attempts=attempts, initial=0.1))
    opened = client.create_round(SPEC)
    calls = 0
    real = client._connection.call

    def call(method, *arguments, **options):
        nonlocal calls
        calls += method == "WaitRound"
        return real(method, *arguments, **options)

    monkeypatch.setattr(client._connection, "call", call)
    with pytest.raises(TimeoutError, match="still open"):
        opened.wait(timeout=0.5)
    assert 1 <= calls <= 15
    opened.start_merge()
    assert opened.wait().state == "done"
    client.close()


@SHELLS
@pytest.mark.parametrize("resumable", [False, True])
def test_submit_raises_what_making_a_chunk_raises(server, monkeypatch, shell, resumable):
    update = fail_after(monkeypatch, 2)
    with settled(shell, server.address, chunk_bytes=1000) as client:
        opened = client.create_round(one(num_rows=1000))
        with pytest.raises(MemoryError, match="no room for this chunk"):
            opened.submit("a", update, resumable=resumable)
        with pytest.raises(MemoryError, match="no room for this chunk"):
            client.aggregate([update], one(num_rows=1000))
        assert opened.refresh().num_submissions == 0


def fail_after(monkeypatch: pytest.MonkeyPatch, slices: int) -> tuple[np.ndarray, np.ndarray]:
    """An update of more slices than that, making one of which fails."""
    made = []

    def failing(*arguments):
        made.append(arguments)
        if len(made) > slices:
            raise MemoryError("no room for this chunk")
        return whole(*arguments)

    whole = encode._slice
    monkeypatch.setattr(encode, "_slice", failing)
    return np.arange(1000), np.ones(1000, np.float32)
