"""Servers that do not answer, and timeouts of calls that ask for them."""

from __future__ import annotations

import time

import pytest
import sparseagg as sa
from real_server import ServerProcess, stop
from test_retry import SPEC, update


@pytest.fixture
def stopped(start_server):
    """A server that holds on to its connections and says nothing: a client that has called it, and a round."""
    server = start_server()
    # As by default, only sooner. Servers allow pings every ten seconds; this one is in no state to complain.
    names = ("grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms")
    options = [(name, 200) for name in names]
    with sa.Client(server.address, timeout=None, retry=sa.RetryPolicy(attempts=1), options=options) as client:
        opened = client.create_round(SPEC)
        opened.submit("a", update())
        stop(server.process.pid)
        yield opened
    server.kill()


@pytest.mark.parametrize(
    "call",
    [
        lambda opened: opened.submit("b", update()),
        lambda opened: opened.submit("b", update(), resumable=True),
        lambda opened: opened.result(),
        lambda opened: opened.wait(),
    ],
    ids=["submit", "resumable", "result", "wait"],
)
def test_server_that_says_nothing_is_unavailable(stopped, call):
    with pytest.raises(sa.errors.UnavailableError):
        call(stopped)


@pytest.fixture(params=[lambda server: stop(server.process.pid), ServerProcess.kill], ids=["stop", "kill"])
def silence(request, monkeypatch):
    """Makes a server answer no more, in one of two ways."""
    monkeypatch.setattr("sparseagg._internal.client.retry._GRACE_S", 0.1)
    return request.param


TIMED = {
    "submit": lambda opened, client: opened.submit("b", update(), timeout=0.1),
    "resumable": lambda opened, client: opened.submit("b", update(), resumable=True, timeout=0.1),
    "result": lambda opened, client: opened.result(timeout=0.1),
    "start_merge": lambda opened, client: opened.start_merge(0.1),
    "finish": lambda opened, client: opened.finish(0.1),
    "aggregate": lambda opened, client: client.aggregate([update()], SPEC, timeout=0.1),
}
LATE = (
    "^(the (submission to|result of) rounds/.* has not (ended|been read)|the aggregation has not ended|rounds/.* was)"
)


@pytest.mark.parametrize("knows", [False, True], ids=["new", "used"])
@pytest.mark.parametrize("call", TIMED)
def test_call_of_a_server_that_does_not_answer_ends_with_its_timeout(start_server, silence, connect, call, knows):
    server = start_server()
    retry = sa.RetryPolicy(initial=60.0, maximum=60.0)
    client = connect(server.address, timeout=None, retry=retry)
    opened = client.create_round(SPEC)
    if knows:
        opened.submit("a", update())
    silence(server)
    begun = time.monotonic()
    with pytest.raises(TimeoutError, match=LATE):
        TIMED[call](opened, client)
    assert time.monotonic() - begun < retry.initial, "no attempt after it"
    client.close()


@pytest.mark.parametrize("timeout", ["5", -1, True])
def test_calls_with_a_timeout_that_is_none_send_nothing(client, timeout):
    opened = client.create_round(SPEC)
    for call in (
        lambda: opened.submit("a", update(), timeout=timeout),
        lambda: opened.result(timeout=timeout),
        lambda: client.aggregate([update()], SPEC, timeout=timeout),
    ):
        with pytest.raises(
            sa.InvalidArgumentError, match="timeout must be a number of seconds, a timedelta, or None for ever"
        ):
            call()
    assert opened.refresh().num_submissions == 0
