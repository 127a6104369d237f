"""Servers that do not answer, timeouts of calls that ask for them, and what errors of calls that took too long say."""

from __future__ import annotations

import contextlib
import datetime
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import sparseagg as sa
from every_client import SHELLS, settled
from real_server import ServerProcess, stop
from scripted_server import Scripted, serving
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


SELDOM = sa.RetryPolicy(attempts=3, initial=60.0, maximum=60.0)


class Late(Scripted):
    """Goes down whenever it is asked what it takes, and answers GetRound when it is told to, if ``slow``."""

    def __init__(self, slow: bool = False) -> None:
        super().__init__()
        self.goes_on = threading.Event()
        self.asked = 0
        if not slow:
            self.goes_on.set()

    def GetServerInfo(self, request: Any, context: grpc.ServicerContext) -> None:
        self.asked += 1
        context.abort(grpc.StatusCode.UNAVAILABLE, "going down for a reason")

    def GetRound(self, request: Any, context: grpc.ServicerContext) -> Any:
        assert self.goes_on.wait(60)
        return super().GetRound(request, context)


@contextlib.contextmanager
def late(slow: bool = False) -> Iterator[tuple[Late, str]]:
    servicer = Late(slow)
    with serving(servicer) as address:
        try:
            yield servicer, address
        finally:
            servicer.goes_on.set()


TIMEOUTS = pytest.mark.parametrize("timeout", [0.2, datetime.timedelta(milliseconds=200)])


@SHELLS
@TIMEOUTS
def test_call_whose_time_runs_out_between_attempts_says_why_the_last_one_failed(shell: type, timeout: Any) -> None:
    with late() as (servicer, address), settled(shell, address, retry=SELDOM) as client:
        opened = client.get_round("r")
        with pytest.raises(TimeoutError, match=r"^the submission to rounds/r has not ended: going down for a reason$"):
            opened.submit("a", update(), timeout=timeout)
        assert servicer.asked == 1, "no attempt with no time for an answer"


@SHELLS
@TIMEOUTS
def test_call_without_an_answer_in_its_time_says_which_one_it_is(shell: type, timeout: Any) -> None:
    expected = pytest.raises(sa.errors.DeadlineExceededError, match=r"^GetRound has had no answer within 0\.2 s$")
    with late(slow=True) as (_, address), settled(shell, address, timeout=timeout) as client, expected:
        client.get_round("r")
