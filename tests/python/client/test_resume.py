"""Uploads under a submission id that others know, too: what is resumed, what takes whose place, and that one counts."""

from __future__ import annotations

import functools
import threading
import time
from concurrent import futures
from typing import Any

import numpy as np
import pytest
import sparseagg as sa
from every_client import settled
from sparseagg._internal.client import connection

SPEC = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=1_000_000)], weighting="by_weight", return_counts=True)
FAST = sa.RetryPolicy(initial=0.01, maximum=0.05)
KEYS = np.arange(100_000) * 3
VALUES = np.arange(100_000, dtype=np.float32) / 3  # 800 kB with the keys


def submit(
    address: str,
    opened: sa.Round,
    update=(KEYS, VALUES),
    weight=1.0,
    *,
    chunk_bytes=50_000,
    retry=FAST,
    timeout=60.0,
    shell=sa.Client,
    **more,
):
    """A worker with a client of its own, as "a"."""
    more = {"submission_id": "mine", "resumable": True, **more}
    with settled(shell, address, timeout=timeout, retry=retry, chunk_bytes=chunk_bytes) as worker:
        return worker.get_round(opened.name).submit("a", update, weight, **more)


SUBMITS = pytest.mark.parametrize(
    "submits", [submit, functools.partial(submit, shell=sa.aio.Client)], ids=["blocking", "asyncio"]
)


def assert_counts_once(opened: sa.Round, keys=KEYS, values=VALUES) -> None:
    merged = opened.finish()["v"]
    assert np.array_equal(merged.keys, keys)
    assert np.array_equal(merged.values, values)
    assert set(merged.counts.tolist()) == {1}


def leave_half(flaky, opened: sa.Round, submits=submit, **more) -> None:
    """A worker that dies on its way."""
    with pytest.raises(sa.errors.UnavailableError):
        submits(flaky(400_000).address, opened, key_encoding="plain", retry=sa.RetryPolicy(attempts=1), **more)
    assert opened.refresh().num_uploads == 1


@SUBMITS
@pytest.mark.parametrize(("before", "after"), [(50_000, 50_000), (50_000, 130_000), (50_000, 17_000), (90_000, 90_001)])
def test_submit_by_a_new_process_with_other_chunks_counts_all_rows_once(flaky, server, client, submits, before, after):
    opened = client.create_round(SPEC)
    leave_half(flaky, opened, submits, chunk_bytes=before)
    submission = submits(server.address, opened, chunk_bytes=after)
    assert (submission.num_tuples, submission.duplicate) == (100_000, False)
    assert_counts_once(opened)


@SUBMITS
@pytest.mark.parametrize(
    ("change", "keys", "values"),
    [
        ({"update": (KEYS, VALUES + 1)}, KEYS, VALUES + 1),
        ({"update": (KEYS + 1, VALUES)}, KEYS + 1, VALUES),
        ({"update": (KEYS[::-1], VALUES)}, KEYS, VALUES[::-1]),
        ({"update": (KEYS[:90_000], VALUES[:90_000])}, KEYS[:90_000], VALUES[:90_000]),
        ({"weight": 2.0}, KEYS, VALUES * 2),
        ({"value_encoding": "float16"}, KEYS, VALUES.astype(np.float16).astype(np.float32)),
    ],
    ids=["values", "keys", "order", "length", "weight", "encoding"],
)
def test_submit_by_a_new_process_of_other_content_counts_as_if_it_were_alone(
    flaky, server, client, submits, change, keys, values
):
    opened = client.create_round(SPEC)
    leave_half(flaky, opened)
    assert not submits(server.address, opened, **change).duplicate
    assert_counts_once(opened, keys, values)


class Halts:
    """Lets uploads of so many chunks wait at chunk 3, each once, until they may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._here: list[tuple[threading.Event, threading.Event]] = []
        real = connection.counted

        def counted(chunks, bar):
            at = self._here.pop(0) if self._here else None
            for number, chunk in enumerate(real(chunks, bar)):
                if number == 3 and at is not None:
                    at[0].set()
                    assert at[1].wait(60)
                yield chunk

        monkeypatch.setattr(connection, "counted", counted)

    def start(self, pool: futures.Executor, *submit: Any, **options: Any) -> tuple[futures.Future, threading.Event]:
        """Starts an upload and returns when it waits; with what lets it go on."""
        there, goes_on = threading.Event(), threading.Event()
        self._here.append((there, goes_on))
        future = pool.submit(*submit, **options)
        assert there.wait(60)
        return future, goes_on


@pytest.fixture
def halts(monkeypatch):
    return Halts(monkeypatch)


@SUBMITS
def test_submit_whose_place_is_taken_tells_and_does_not_take_it_back(server, client, halts, submits):
    opened = client.create_round(SPEC)
    with futures.ThreadPoolExecutor(2) as pool:
        first, go_on = halts.start(pool, submits, server.address, opened)
        second, other_goes_on = halts.start(pool, submit, server.address, opened, chunk_bytes=20_000)
        go_on.set()
        with pytest.raises(
            sa.errors.FailedPreconditionError, match=r"another upload.* submission 'mine' of client 'a'"
        ):
            first.result(timeout=60)
        other_goes_on.set()
        assert not second.result(timeout=60).duplicate
    assert_counts_once(opened)


@SUBMITS
@pytest.mark.parametrize("factor", [1, 2], ids=["same content", "other content"])
def test_submit_overtaken_by_another_worker_that_has_committed(server, client, halts, submits, factor):
    opened = client.create_round(SPEC)
    with futures.ThreadPoolExecutor(1) as pool:
        first, go_on = halts.start(pool, submits, server.address, opened)
        assert not submit(server.address, opened, (KEYS, VALUES * factor), chunk_bytes=20_000).duplicate
        go_on.set()
        if factor == 1:
            assert first.result(timeout=60).duplicate
        else:
            with pytest.raises(sa.errors.AlreadyExistsError, match="other content"):
                first.result(timeout=60)
    assert_counts_once(opened, values=VALUES * factor)


@SUBMITS
def test_submit_to_a_round_that_closes_meanwhile_says_that(server, client, halts, submits):
    opened = client.create_round(SPEC)
    with futures.ThreadPoolExecutor(1) as pool:
        first, go_on = halts.start(pool, submits, server.address, opened)
        opened.finish()
        go_on.set()
        with pytest.raises(sa.errors.FailedPreconditionError, match=r"^rounds/.*: the round is DONE$"):
            first.result(timeout=60)


class Stalls:
    """Lets so many uploads sleep before their fourth chunk, or behind the last one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        self.behind = False
        real = connection.counted

        def counted(chunks, bar):
            for number, chunk in enumerate(real(chunks, bar)):
                if number == 3 and not self.behind:
                    self._sleep()
                yield chunk
            if self.behind:
                self._sleep()

        monkeypatch.setattr(connection, "counted", counted)

    def _sleep(self) -> None:
        if self.left > 0:
            self.left -= 1
            time.sleep(1.2)  # longer than upload_timeout


@pytest.fixture
def stalls(monkeypatch):
    return Stalls(monkeypatch)


@pytest.fixture
def impatient(start_server):
    return start_server("--upload-timeout", "0.5s").address


OWN_ID = pytest.mark.parametrize("submission_id", ["mine", None])


@SUBMITS
@OWN_ID
@pytest.mark.parametrize("resumable", [True, False], ids=["unary", "stream"])
@pytest.mark.parametrize("times", [1, 2])
def test_submit_that_stalls_beyond_the_upload_timeout_goes_on(
    impatient, stalls, submits, resumable, times, submission_id
):
    with sa.Client(impatient) as client:
        opened = client.create_round(SPEC)
        stalls.left = times
        assert not submits(impatient, opened, resumable=resumable, submission_id=submission_id).duplicate
        assert stalls.left == 0
        assert_counts_once(opened)


@SUBMITS
@pytest.mark.parametrize(
    ("resumable", "kind"), [(True, sa.errors.FailedPreconditionError), (False, sa.errors.DeadlineExceededError)]
)
def test_submit_that_stalls_again_and_again_ends_and_names_the_timeout(impatient, stalls, submits, resumable, kind):
    with sa.Client(impatient) as client:
        opened = client.create_round(SPEC)
        stalls.left = 10
        retry = sa.RetryPolicy(attempts=1 if kind is sa.errors.DeadlineExceededError else 3, initial=0.01)
        with pytest.raises(kind, match="upload_timeout"):
            submits(impatient, opened, resumable=resumable, retry=retry)
        assert stalls.left == 10 - retry.attempts
        opened.cancel()
