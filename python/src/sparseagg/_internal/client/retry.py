"""When calls are repeated, from where uploads go on, and what errors say when the time is over."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from sparseagg._internal.base.arguments import checked_integer, checked_number, checked_seconds, shown
from sparseagg._internal.base.credentials import TOKEN_VARIABLE
from sparseagg._internal.client.obstacles import Obstacle
from sparseagg._internal.client.transport import broke_while_sending
from sparseagg.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    RoundClosedError,
    SparseaggError,
    UnavailableError,
    error_of,
)
from sparseagg.v1 import aggregation_pb2 as pb

_RETRIED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


@dataclasses.dataclass(frozen=True)
class RetryPolicy:
    """Exponential backoff with jitter, for calls that fail with UNAVAILABLE or CANCELLED, or that the server delays.

    An upload that the server has discarded, because no chunk came for upload_timeout, begins again. No retry begins
    after the time of the call: see ``Client``'s ``timeout``.

    All calls are safe to repeat: a submission counts once however often it arrives, and a round that a second attempt
    to delete does not find was deleted by the first attempt.

    Args:
        attempts: number of calls in all; 1 for no retries.
        initial: longest first wait, in seconds.
        multiplier: factor between the longest wait of one retry and that of the next.
        maximum: longest wait of any retry, in seconds.
    """

    attempts: int = 8
    initial: float = 0.1
    multiplier: float = 2.0
    maximum: float = 5.0

    def __post_init__(self) -> None:
        # Kept as Python's own numbers: clocks take no fractions, and not every number of NumPy is a float.
        attempts = checked_integer("attempts must be a number of calls from 1 on", self.attempts, 1, sys.maxsize)
        object.__setattr__(self, "attempts", attempts)
        for name in ("initial", "multiplier", "maximum"):
            number = checked_number(f"{name} must be a number from 0 on", getattr(self, name))
            object.__setattr__(self, name, number)

    def waits(self) -> Iterator[float]:
        """Yields the wait before each retry, in seconds: ``attempts`` − 1 waits."""
        bound = min(self.maximum, self.initial)
        for _ in range(self.attempts - 1):
            # At least half of the bound, so that many clients do not ask a restarting server in a burst.
            yield bound * random.uniform(0.5, 1.0)  # allow(randomness): clients must not wait in step
            bound = min(self.maximum, bound * self.multiplier)


class Retries:
    """The waits between the attempts of one operation. When ``progress`` grows, the operation has all of them again."""

    def __init__(self, policy: RetryPolicy, progress: Callable[[], int] = lambda: 0) -> None:
        self._policy = policy
        self._progress = progress
        self._before = progress()
        self._waits = policy.waits()

    def wait_after(self, error: grpc.RpcError) -> float | None:
        """Returns the wait before the next attempt, in seconds; None: ``error`` is final."""
        if self._progress() > self._before:
            self._waits, self._before = self._policy.waits(), self._progress()
        return wait_before_retry(error, self._waits)


def checked_retry(retry: Any) -> RetryPolicy | None:
    """Returns ``retry``; ``InvalidArgumentError`` if it is neither a policy nor None."""
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise InvalidArgumentError(f"retry must be a RetryPolicy, or None for the default, got {shown(retry)}")
    return retry


def wait_before_retry(error: grpc.RpcError, waits: Iterator[float]) -> float | None:
    """Returns the wait before a failed call is repeated, in seconds; None: the call is not repeated.

    These errors are temporary:

    - UNAVAILABLE: the connection broke, or there is no server.
    - CANCELLED: a server that stops has cancelled the call. (``ChannelPool`` handles the calls that this client
      cancels by disconnecting.)
    - INTERNAL, if ``broke_while_sending``.
    - RESOURCE_EXHAUSTED with a suggested retry delay: the server's in-flight memory is full at the moment. Without the
      delay, a limit is exceeded, and will be again.
    - DEADLINE_EXCEEDED by the server's upload_timeout: it has discarded a stream on which no chunk came for so long,
      because this machine slept or the network stalled.

    Args:
        error: of the call. It loses its traceback: the traceback's frames hold the update, or a part of the result, and
            may hold the error, so that all these would live until Python's search for cycles.
        waits: of the policy; the next wait is taken.
    """
    error.__traceback__ = None
    asked = 0.0
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        delay = trailer(error, "grpc-retry-pushback-ms")
        if not isinstance(delay, str) or not delay.isdigit():  # -1: never
            return None
        asked = int(delay) / 1e3
    elif error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        if info_of(error).reason != "UPLOAD_TIMED_OUT":  # the timeout is the caller's own
            return None
    elif error.code() not in _RETRIED and not broke_while_sending(error):
        return None
    wait = next(waits, None)
    return None if wait is None else max(wait, asked)


def trailer(error: grpc.RpcError, name: str) -> str | bytes | None:
    """Returns a trailing metadata of the answer; None: it has none of this name."""
    return next((value for key, value in error.trailing_metadata() or () if key == name), None)


def info_of(error: grpc.RpcError) -> error_details_pb2.ErrorInfo:
    """Returns the ErrorInfo of the answer, by which programs tell errors apart; an empty one if it has none."""
    info = error_details_pb2.ErrorInfo()
    found = trailer(error, "grpc-status-details-bin")
    with contextlib.suppress(DecodeError):  # of something in between
        for detail in status_pb2.Status.FromString(found).details if isinstance(found, bytes) else ():
            if detail.Unpack(info) and info.domain == "sparseagg":
                return info
    return error_details_pb2.ErrorInfo()


def error_from_call(error: grpc.RpcError, text: str, obstacle: Obstacle | None = None) -> SparseaggError:
    """Returns the typed error of a failed call, with this text; ``obstacle`` has kept the call from its server."""
    info = info_of(error)
    if info.reason == "CREDENTIAL_MISSING":
        text += f"; token=…, or {TOKEN_VARIABLE} in the environment, sends it (--token-file FILE for commands)"
    found = error_of(error.code(), text, info.reason, info.metadata)
    if isinstance(found, UnavailableError):
        found.cannot_pass = obstacle is not None and not obstacle.is_absence
    return found


# The server's answers to chunks and commits of an upload that it has discarded.
_LOST = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND)


class Resumption:
    """The state of one upload over all its attempts. The upload's submit call owns it. Not thread-safe.

    Calls, for each attempt: ``first_chunk``, ``arrived`` after each chunk, ``wait_after`` if the attempt has failed.

    The server discards an upload for two reasons. No chunk came for upload_timeout: the upload begins again. Or another
    upload, with other content or other chunks, has begun under the same submission id, such as that of a worker which
    was started in place of this one: this upload fails, since otherwise the two would replace each other for ever.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._waits = policy.waits()
        self._most = 0  # the most chunks that the server has had at the beginning of an attempt
        self._has_begun = False  # the server has had a chunk since the upload began, or began again
        self._has_some = False  # the server has had a chunk in this attempt

    def first_chunk(self, status: pb.UploadStatus | None) -> int:
        """Returns the number of the chunk to go on with; ``status`` of None: the server does not know the upload.

        Raises ``FailedPreconditionError`` if another upload has begun under the submission id.
        """
        first = 0 if status is None else int(status.next_sequence)
        if status is None:
            # The upload begins again. If this attempt breaks off, the server may have it open without a first chunk.
            self._has_begun = False
        elif self._has_begun and first == 0:
            raise FailedPreconditionError(
                "another upload, of other content or in other chunks, has taken the place of this one under submission "
                f"{status.submission_id!r} of client {status.client_id!r}"
            )
        if first > self._most:  # progress: all retries again
            self._most = first
            self._waits = self._policy.waits()
        self._has_some = first > 0
        self._has_begun |= self._has_some
        return first

    def arrived(self) -> None:
        """Tells that the server has received another chunk."""
        self._has_some = self._has_begun = True

    def wait_after(self, error: grpc.RpcError) -> float | None:
        """Returns the wait before the next attempt, in seconds; None: ``error`` is final."""
        wait = wait_before_retry(error, self._waits)
        if wait is None and self._has_some and error.code() in _LOST and info_of(error).reason != "HOME_ELSEWHERE":
            wait = next(self._waits, None)
        self._has_some = False
        return wait


# How long one call of a long poll asks the server to wait; the server may wait less.
_LONG_POLL_S = 30.0

# The least pause between long polls that the server answers at once, whatever the retry policy is.
_LEAST_PAUSE_S = 0.01

# The texts of gRPC's DEADLINE_EXCEEDED when the client's own timeout is over.
_OWN_DEADLINE = ("Deadline Exceeded", "Deadline exceeded", "")

# How long after its deadline a patient call still waits for an answer that may be on its way.
_GRACE_S = 5.0


def checked_deadline(timeout: Any) -> float | None:
    """Returns the deadline of a timeout that begins now; ``InvalidArgumentError`` if ``timeout`` is none."""
    length = checked_seconds("timeout", timeout)
    return None if length is None else time.monotonic() + length


def seconds_to(deadline: float | None) -> float:
    """Returns the seconds from now to the deadline, 0 if it has passed."""
    return math.inf if deadline is None else max(0.0, deadline - time.monotonic())


def earliest(*deadlines: float | None) -> float | None:
    """Returns the first of the deadlines; None if none of them is a limit."""
    return min((each for each in deadlines if each is not None), default=None)


def call_seconds(deadline: float | None, own: float | None = None, patient: bool = False) -> float | None:
    """Returns the timeout of one attempt at a call, None for no limit, from the deadlines of the operation and of the
    call.

    ``patient``: whether to wait beyond ``deadline`` for an answer that may be on its way.
    """
    # The grace is added to the deadline, so that consecutive calls share it.
    until = earliest(own, deadline + _GRACE_S if patient and deadline is not None else deadline)
    return None if until is None else seconds_to(until)


def pause_after(wait: float | None, deadline: float | None, patient: bool = False) -> tuple[float, bool]:
    """Returns how long to pause after a failed attempt, and whether another attempt follows.

    No attempt follows that would begin at the deadline, unless it is ``patient``: its error would hide the reason of
    the failed one. ``wait``: before the next attempt; None: the failure is final.
    """
    if wait is None:
        return 0.0, False
    left = seconds_to(deadline)
    return min(wait, left), wait < left or (patient and left > 0)


async def long_poll(
    connection: Any, method: str, request: Any, deadline: float | None, is_over: Callable[[Any], Any]
) -> Any:
    """Calls a method that waits on the server, again and again, with ``request.timeout`` set each time.

    Returns the first answer that ``is_over``, or that which comes at the deadline.
    """
    pause = max(_LEAST_PAUSE_S, min(connection.retry.initial, connection.retry.maximum))
    while True:
        begun, poll = time.monotonic(), min(_LONG_POLL_S, seconds_to(deadline))
        # At least a millisecond: no timeout, or zero, would mean the server's default.
        request.timeout.FromNanoseconds(max(1_000_000, int(poll * 1e9)))
        answer = await connection.call(method, request, poll, deadline, patient=True)
        if is_over(answer) or seconds_to(deadline) == 0:
            return answer
        # A server with a short --max-wait answers at once. Without a pause, the client would ask as fast as it answers.
        await connection.transport.sleep(max(0.0, min(pause, begun + poll - time.monotonic())))


async def pages(connection: Any, method: str, request: Any) -> AsyncIterator[Any]:
    """Yields the pages of a list, from that which ``request`` asks for."""
    while True:
        page = await connection.call(method, request)
        yield page
        request.page_token = page.next_page_token
        if not request.page_token:
            return


@contextlib.contextmanager
def named_if_late(method: str, timeout: float | None) -> Iterator[None]:
    """Names the method in the ``DeadlineExceededError`` of a call whose own timeout, ``timeout`` seconds, is over.

    A DEADLINE_EXCEEDED with a text of the server's is about a limit of the server. That error passes unchanged.
    """
    try:
        yield
    except grpc.RpcError as error:
        if timeout is None or not is_own_deadline(error):
            raise
        error.__traceback__ = None  # as in wait_before_retry
        raise DeadlineExceededError(no_answer(method, timeout)) from None


def is_own_deadline(error: grpc.RpcError) -> bool:
    """Returns whether a call has failed since its own timeout is over, rather than by the word of a server."""
    return error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and (error.details() or "") in _OWN_DEADLINE


def no_answer(method: str, timeout: float) -> str:
    """Returns the text for a call that has had no answer within its time."""
    return f"{method} has had no answer within {round(timeout, 3):g} s"


@contextlib.contextmanager
def raise_if_late(deadline: float | None, what: str | Callable[[], str]) -> Iterator[None]:
    """Turns the error of a call without an answer into a ``DeadlineExceededError`` if the deadline has passed.

    ``what`` begins the text: what has not happened in time; or returns it then.
    """
    try:
        yield
    except (DeadlineExceededError, UnavailableError) as error:
        if seconds_to(deadline) > 0:
            raise
        raise DeadlineExceededError(f"{what if isinstance(what, str) else what()}: {error}") from error


@contextlib.contextmanager
def naming_round(name: str) -> Iterator[None]:
    """Turns the error for a call that came after the close into a ``RoundClosedError`` that names the round."""
    try:
        yield
    except FailedPreconditionError as error:
        state = error.metadata.get("state", "")
        if error.reason != "WRONG_ROUND_STATE" or not state.isalpha():
            raise
        closed = RoundClosedError(f"{name}: {error}", state.lower())
        closed.reason, closed.metadata = error.reason, error.metadata
        raise closed from error
