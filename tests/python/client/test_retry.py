"""Lost connections and restarted servers: what is tried again, what resumes, and that everything counts once."""

from __future__ import annotations

import contextlib
import datetime
import fractions
import json
import re
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import numpy as np
import pytest
import sparseagg as sa
from every_client import SHELLS, settled
from google.protobuf import empty_pb2
from real_server import REPOSITORY, ServerProcess, stop
from scripted_server import Scripted, serving
from sparseagg._internal.client.channels import channel_options
from sparseagg._internal.client.retry import wait_before_retry
from sparseagg.v1 import aggregation_pb2 as pb
from sparseagg.v1 import models_pb2, tasks_pb2

SPEC = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=100_000)], return_counts=True)
FAST = sa.RetryPolicy(initial=0.01, maximum=0.05)


def update() -> dict:
    return {"v": (np.arange(100_000), np.arange(100_000, dtype=np.float32))}  # 800 kB when plain


@SHELLS
@pytest.mark.parametrize("resumable", [False, True])
@pytest.mark.parametrize("budgets", [[300_000], [300_000, 50_000, 400_000], [100, 100]])
def test_submit_over_a_breaking_connection_counts_once(flaky, client, shell, resumable, budgets):
    opened = client.create_round(SPEC)
    with settled(shell, flaky(*budgets).address, retry=FAST, chunk_bytes=50_000) as unlucky:
        found = unlucky.get_round(opened.name)
        submission = found.submit("a", update(), resumable=resumable, key_encoding="plain", progress=True)
    assert submission.num_tuples == 100_000
    merged = opened.finish()["v"]
    assert merged.values.tolist() == list(range(100_000))
    assert set(merged.counts.tolist()) == {1}


def test_submit_resumes_and_does_not_start_again(flaky, client):
    # No connection carries half of the update: only a client that resumes ever gets it through. It takes more of them
    # than there are attempts, which count anew whenever something has arrived.
    proxy = flaky(*[120_000] * 100)
    opened = client.create_round(SPEC)
    patience = sa.RetryPolicy(attempts=4, initial=0.3, multiplier=3.0, maximum=3.0)
    with sa.Client(proxy.address, retry=patience, chunk_bytes=50_000) as unlucky:
        unlucky.get_round(opened.name).submit("a", update(), key_encoding="plain")
    assert 5 <= proxy.broken <= 20
    assert len(opened.finish()["v"]) == 100_000


def test_aggregate_and_results_over_a_breaking_connection(flaky, client):
    with sa.Client(flaky(300_000, 300_000).address, retry=FAST, chunk_bytes=50_000) as unlucky:
        merged = unlucky.aggregate([update(), update()], SPEC)["v"]
    assert merged.values.tolist() == list(range(0, 200_000, 2))


def test_client_finds_a_restarted_server_and_lost_rounds(start_server):
    first = start_server()
    with sa.Client(first.address, retry=sa.RetryPolicy(attempts=40, maximum=0.5)) as client:
        opened = client.create_round(SPEC)
        first.kill()
        waiting = futures.ThreadPoolExecutor(1).submit(client.server_info)
        start_server(address=first.address)
        assert waiting.result(timeout=60).version
        with pytest.raises(sa.errors.NotFoundError, match=opened.name.partition("/")[2]):
            opened.submit("a", update())
        client.create_round(SPEC).submit("a", update())


@SHELLS
def test_client_learns_that_a_restarted_server_takes_smaller_messages(start_server, shell):
    first = start_server()
    with settled(shell, first.address, retry=sa.RetryPolicy(attempts=40, maximum=0.5)) as client:
        client.create_round(SPEC).submit("a", update(), key_encoding="plain")
        first.kill()
        start_server("--max-message-bytes", "64KiB", address=first.address)
        opened = client.create_round(SPEC)
        with contextlib.suppress(sa.errors.ResourceExhaustedError):  # where the client has not noticed
            opened.submit("a", update(), key_encoding="plain")
        assert opened.submit("b", update(), key_encoding="plain").num_tuples == 100_000


UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
RETRIED = [UNAVAILABLE, grpc.StatusCode.CANCELLED]


@pytest.mark.parametrize("code", RETRIED)
@pytest.mark.parametrize(
    ("failures", "attempts", "succeeds"), [(0, 1, True), (2, 3, True), (3, 3, False), (1, 1, False)]
)
def test_client_whom_the_server_sends_away_tries_as_often_as_allowed(code, failures, attempts, succeeds):
    servicer = Scripted(*[code] * failures)
    with (
        serving(servicer) as address,
        sa.Client(address, retry=sa.RetryPolicy(attempts=attempts, initial=0.001)) as client,
    ):
        if succeeds:
            client.get_round("r")
        else:
            with pytest.raises(sa.SparseaggError, match="as scripted") as failed:
                client.get_round("r")
            assert failed.value.code is code
    assert servicer.calls == (failures + 1 if succeeds else attempts)


def test_client_exhausted_with_a_delay_is_tried_again_no_sooner():
    servicer = Scripted(*[grpc.StatusCode.RESOURCE_EXHAUSTED] * 2, delay_ms=40)
    begin = time.monotonic()
    with serving(servicer) as address, sa.Client(address, retry=FAST) as client:
        client.get_round("r")
    assert servicer.calls == 3
    assert time.monotonic() - begin >= 2 * 0.04


def test_client_exhausted_for_good_is_not_tried_again():
    servicer = Scripted(grpc.StatusCode.RESOURCE_EXHAUSTED, delay_ms=-1)
    exhausted = pytest.raises(sa.errors.ResourceExhaustedError, match="as scripted")
    with serving(servicer) as address, sa.Client(address, retry=FAST) as client, exhausted:
        client.get_round("r")
    assert servicer.calls == 1


@pytest.mark.parametrize(("delay_ms", "calls"), [(50, 4), (-1, 1), (None, 4)])
def test_service_config_lets_any_client_of_grpc_repeat_what_may_be_repeated(delay_ms, calls):
    config = (REPOSITORY / "proto/sparseagg/v1/service_config.json").read_text(encoding="utf-8")
    servicer = Scripted(*[grpc.StatusCode.RESOURCE_EXHAUSTED] * 3, delay_ms=delay_ms)
    # Not faster: gRPC 1.85 loses a call now and then whose wait is a millisecond.
    options = [("grpc.service_config", config.replace('"0.5s"', '"0.05s"'))]
    with serving(servicer) as address, grpc.insecure_channel(address, options) as channel:
        call = channel.unary_unary("/sparseagg.v1.Aggregation/GetRound", pb.GetRoundRequest.SerializeToString)
        with pytest.raises(grpc.RpcError) if calls == 1 else contextlib.nullcontext():
            call(pb.GetRoundRequest(round="rounds/r"), timeout=60)
    assert servicer.calls == calls


def test_service_config_names_the_services_and_methods_of_the_proto():
    config = json.loads((REPOSITORY / "proto/sparseagg/v1/service_config.json").read_text(encoding="utf-8"))
    files = [module.DESCRIPTOR for module in (pb, models_pb2, tasks_pb2)]
    known = {each.full_name: set(each.methods_by_name) for file in files for each in file.services_by_name.values()}
    named = [name for each in config["methodConfig"] for name in each["name"]]
    assert {name["service"] for name in named} == set(known)
    assert all(name["method"] in known[name["service"]] for name in named if "method" in name)


class LosesAnswers(Scripted):
    """Deletes its round when it is first asked to; so many answers to that are lost."""

    def __init__(self, lost: int) -> None:
        super().__init__()
        self.lost = lost
        self.deletions = 0

    def DeleteRound(self, request, context):
        self.deletions += 1
        if self.deletions <= self.lost:
            context.abort(UNAVAILABLE, "the answer is lost")
        if self.deletions > 1:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such round")
        return empty_pb2.Empty()


@SHELLS
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_delete_succeeds_though_its_answer_was_lost(shell, lost):
    servicer = LosesAnswers(lost)
    with serving(servicer) as address, settled(shell, address, retry=FAST) as client:
        client.get_round("r").delete()
        assert servicer.deletions == lost + 1
        with pytest.raises(sa.errors.NotFoundError, match="no such round"):
            client.get_round("r").delete()


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code not in (grpc.StatusCode.OK, *RETRIED)])
def test_client_other_codes_are_raised_at_once(code):
    servicer = Scripted(code)
    with serving(servicer) as address, sa.Client(address, retry=FAST) as client:
        with pytest.raises(sa.SparseaggError, match="as scripted") as failed:
            client.get_round("r")
        assert failed.value.code is code
        assert (type(failed.value) is sa.SparseaggError) == (
            code in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS)
        )
    assert servicer.calls == 1


@pytest.mark.parametrize(
    ("debug", "retried"),
    [('Failed "execute_batch": (<SendMessageOperation>,)', True), ("UNKNOWN:Error received from peer", False)],
)
def test_wait_before_retry_internal_only_where_a_send_met_the_end_of_the_call(debug, retried):
    nothing = grpc.aio.Metadata()
    error = grpc.aio.AioRpcError(
        grpc.StatusCode.INTERNAL, nothing, nothing, details="Internal error from Core", debug_error_string=debug
    )
    assert (wait_before_retry(error, iter([0.5])) == 0.5) is retried


@SHELLS
def test_answer_of_many_messages_that_is_none_of_the_protocol_is_an_error(shell):
    class Stranger:
        def GetServerInfo(self, request, context):
            return pb.ServerInfo()

        def Aggregate(self, requests, context):
            yield b"\xff"

    unread = pytest.raises(sa.errors.InternalError, match="deserializ")
    with serving(Stranger()) as address, settled(shell, address, retry=FAST) as client, unread:
        client.aggregate([update()], SPEC)


def test_channels_ping_by_default_no_more_often_than_servers_allow():
    options = dict(channel_options("localhost:1", None))
    sources = "".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "service").rglob("*.cc"))
    (allowed,) = re.findall(r"GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, ([\d']+)\)", sources)
    assert int(allowed.replace("'", "")) < options["grpc.keepalive_time_ms"] <= 30_000
    assert options["grpc.keepalive_timeout_ms"] <= 30_000
    assert options["grpc.http2.max_pings_without_data"] == 0
    assert dict(channel_options("localhost:1", [("grpc.keepalive_time_ms", 1)]))["grpc.keepalive_time_ms"] == 1


def test_retry_policy_waits_grow_up_to_the_maximum():
    policy = sa.RetryPolicy(attempts=6, initial=1.0, multiplier=2.0, maximum=5.0)
    waits = list(policy.waits())
    assert len(waits) == 5
    for wait, bound in zip(waits, [1.0, 2.0, 4.0, 5.0, 5.0]):
        assert bound / 2 <= wait <= bound


def test_client_retries_after_waits_of_any_type_of_number():
    servicer = Scripted(UNAVAILABLE, UNAVAILABLE)
    policy = sa.RetryPolicy(initial=np.float32(0.001), multiplier=fractions.Fraction(3, 2))
    with serving(servicer) as address, sa.Client(address, retry=policy) as client:
        client.get_round("r")
    assert servicer.calls == 3


# ---- servers that do not answer, timeouts of calls that ask for them, and what errors of calls that took too long say


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
