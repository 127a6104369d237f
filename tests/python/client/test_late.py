"""What errors of calls that took too long say, and how long they are waited for."""

from __future__ import annotations

import contextlib
import datetime
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import sparseagg as sa
from every_client import SHELLS, settled
from test_retry import Scripted, serving, update

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
