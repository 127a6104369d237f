"""Requests, and what both clients decide alike."""

from __future__ import annotations

import asyncio
import contextlib
import math
import operator
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
from google.protobuf import duration_pb2

from sparseagg.arguments import checked_seconds, checked_text, shown
from sparseagg.client.progress import ProgressBar
from sparseagg.client.retry import RetryPolicy
from sparseagg.client.upload import Upload
from sparseagg.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, RoundFailed, Unavailable
from sparseagg.info import RoundInfo
from sparseagg.spec import RoundSpec, checked_spec
from sparseagg.v1 import aggregation_pb2 as pb
from sparseagg.wire.formats import check_encoding, check_narrow
from sparseagg.wire.message import ChunkMessage

__all__ = [
    "call_seconds",
    "checked_deadline",
    "commit_request",
    "counted",
    "create_request",
    "named_if_late",
    "naming_round",
    "pause_after",
    "poll_pause",
    "poll_seconds",
    "raise_if_failed",
    "raise_if_going_on",
    "raise_if_late",
    "raise_if_past",
    "raise_if_unheard",
    "result_format",
    "result_request",
    "seconds_to",
    "status_request",
    "streamed",
    "wait_request",
]

# What this client decodes in results, beside the plain encodings.
_KEYS = (pb.KEY_ENCODING_IMPLICIT, pb.KEY_ENCODING_DELTA_BITPACKED, pb.KEY_ENCODING_BITMAP)

_END_OF_KEYS = 1 << 64  # where the range of all keys ends; 0 on the wire

# How long one WaitRound asks to wait; the server may cut it.
_LONG_POLL_S = 30.0

# Between long polls that are answered at once, whatever the policy.
_LEAST_PAUSE_S = 0.01

# What gRPC says of a call whose own time has run out.
_OWN_DEADLINE = ("Deadline Exceeded", "Deadline exceeded", "")

# How long after a deadline an answer is waited for that may be on its way.
_GRACE_S = 5.0


def create_request(spec: RoundSpec, round_id: str | None) -> pb.CreateRoundRequest:
    """Returns the message, with a random id if none is given."""
    if round_id == "":  # for which the server would choose one
        raise InvalidArgument("a round's id is not empty; None is for a random one")
    round_id = checked_text("a round's id", uuid.uuid4().hex if round_id is None else round_id)
    return pb.CreateRoundRequest(round_id=round_id, spec=checked_spec(spec).to_proto())


def checked_deadline(timeout: Any) -> float | None:
    """Returns when a timeout that begins now ends, on the monotonic clock; ``InvalidArgument`` if it is none."""
    length = checked_seconds("timeout", timeout)
    return None if length is None else time.monotonic() + length


def seconds_to(deadline: float | None) -> float:
    """Returns how long it is to ``deadline`` on the monotonic clock; None: for ever."""
    return math.inf if deadline is None else max(0.0, deadline - time.monotonic())


def call_seconds(
    deadline: float | None, timeout: float | None = None, extra_s: float = 0.0, patient: bool = False
) -> float | None:
    """Returns how long a call may take, None for ever.

    Args:
        deadline: on the monotonic clock, up to which it is of use.
        timeout: of its own.
        extra_s: what it may wait for on top of that.
        patient: whether an answer that is on its way at the deadline is waited for.
    """
    most = math.inf if timeout is None else timeout + extra_s
    # The grace is that of the deadline, which calls that follow each other share.
    until = deadline + _GRACE_S if patient and deadline is not None else deadline
    length = min(most, seconds_to(until))
    return None if length == math.inf else length


def pause_after(wait: float | None, deadline: float | None, patient: bool = False) -> tuple[float, bool]:
    """Returns how long to pause after an attempt that has failed, and whether another one follows.

    None is made with no time to succeed in, which would only hide why the last one has failed.

    Args:
        wait: before the next attempt; None: there is none.
        deadline: on the monotonic clock, of all attempts.
        patient: whether one is made at the deadline nevertheless, as in ``call_seconds``.
    """
    if wait is None:
        return 0.0, False
    left = seconds_to(deadline)
    return min(wait, left), wait < left or (patient and left > 0)


@contextlib.contextmanager
def named_if_late(method: str, timeout: float | None) -> Iterator[None]:
    """Raises ``DeadlineExceeded``, which says of which call it was, when that has had no answer in its time.

    Where the answer is that some time of the server's has run out, its text stands.
    """
    try:
        yield
    except grpc.RpcError as error:
        is_own = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and (error.details() or "") in _OWN_DEADLINE
        if timeout is None or not is_own:
            raise
        error.__traceback__ = None  # as in wait_before_retry
        raise DeadlineExceeded(f"{method} has had no answer within {round(timeout, 3):g} s") from error


def poll_seconds(deadline: float | None) -> float:
    """Returns how long the next long poll may take, up to ``deadline`` on the monotonic clock."""
    return min(_LONG_POLL_S, seconds_to(deadline))


def wait_request(name: str, seconds: float) -> pb.WaitRoundRequest:
    """Returns the message of one long poll."""
    # At least a millisecond: nothing, or zero, would mean the server's default.
    nanos = max(1_000_000, int(seconds * 1e9))
    timeout = duration_pb2.Duration(seconds=nanos // 10**9, nanos=nanos % 10**9)
    return pb.WaitRoundRequest(name=name, timeout=timeout)


def poll_pause(policy: RetryPolicy, seconds: float, begun: float) -> float:
    """Returns how long to wait before the next long poll, when the last one has told of no end.

    A server whose --max-wait is nothing, or little, answers at once; it is not asked as fast as it answers.

    Args:
        policy: whose first wait this is at most, or a hundredth of a second where that is shorter.
        seconds: that the poll was to take.
        begun: when it was sent, on the monotonic clock.
    """
    pause = max(_LEAST_PAUSE_S, min(policy.initial, policy.maximum))
    return max(0.0, min(pause, begun + seconds - time.monotonic()))


def raise_if_past(deadline: float | None, info: RoundInfo) -> None:
    """Raises ``DeadlineExceeded`` when the time to wait for the round's end has run out."""
    if seconds_to(deadline) == 0:
        raise DeadlineExceeded(f"{info.name} is still {info.state}")


@contextlib.contextmanager
def raise_if_late(deadline: float | None, what: str) -> Iterator[None]:
    """Raises ``DeadlineExceeded``, which says what it was, for calls without an answer when that time has run out."""
    try:
        yield
    except (DeadlineExceeded, Unavailable) as error:
        if seconds_to(deadline) > 0:
            raise
        raise DeadlineExceeded(f"{what}: {error}") from error


def raise_if_unheard(deadline: float | None, info: RoundInfo) -> contextlib.AbstractContextManager[None]:
    """The same for calls that ask for a round."""
    return raise_if_late(deadline, f"{info.name} was {info.state} when last heard of")


def raise_if_failed(info: RoundInfo, cause: Exception | None = None) -> None:
    """Raises ``RoundFailed`` when the round has ended without a result."""
    if info.state in ("failed", "cancelled"):
        reason = f": {info.state_reason}" if info.state_reason else ""
        raise RoundFailed(f"{info.name} {info.state}{reason}", info.state) from cause


def raise_if_going_on(info: RoundInfo, cause: Exception) -> None:
    """Raises ``FailedPrecondition``, which names the round, when its result was asked for before its end."""
    if not info.ended:
        raise FailedPrecondition(f"{info.name} is {info.state}, and has a result only when it has ended") from cause


@contextlib.contextmanager
def naming_round(name: str) -> Iterator[None]:
    """Says which round it is that is in another state than the call needs, and the state as ``RoundInfo`` has it."""
    try:
        yield
    except FailedPrecondition as error:
        before, begin, rest = str(error).partition("the round is ")
        if before or not begin:
            raise
        state, colon, reason = rest.partition(":")
        raise FailedPrecondition(f"{name} is {state.lower()}{colon}{reason}") from error


def result_format(encoding: str, values: str | None) -> pb.ResultFormat:
    """Returns how a result is to come: ``encoding`` and ``values`` as in ``Round.result``.

    Raises:
        InvalidArgument: one of them is unknown.
    """
    check_encoding(encoding)
    if values is not None:
        check_narrow(values)
    return pb.ResultFormat(
        key_encodings=_KEYS if encoding == "auto" else (),
        value_encoding=None if values is None else f"VALUE_ENCODING_{values.upper()}",
    )


def result_request(
    name: str,
    tensors: Sequence[str] | None,
    keys: tuple[int, int | None] | None,
    result_format: pb.ResultFormat | None = None,
) -> pb.StreamResultRequest:
    """Returns the message; ``keys`` is (begin, end), an end of None: to the last key.

    Raises:
        InvalidArgument: these are no names, or this is no range; the message says what was given.
    """
    if isinstance(tensors, str):
        raise InvalidArgument(f"tensors is a list of names, not {shown(tensors)}")
    names = None if tensors is None else [checked_text("a tensor's name", tensor) for tensor in tensors]
    if names == []:  # which on the wire would be all of them
        raise InvalidArgument("tensors has no name; None is for all tensors")
    if names is not None and len(set(names)) < len(names):
        raise InvalidArgument(f"tensors names one of them twice: {shown(names)}")
    request = pb.StreamResultRequest(name=name, tensors=names, format=result_format)
    if keys is not None:
        begin, end = _key_range(keys)
        if begin == end:
            begin = end = 1  # any empty range will do, but 0 and 2^64 are no ends of one on the wire
        request.range.begin = begin
        request.range.end = end % _END_OF_KEYS
    return request


def _key_range(keys: Any) -> tuple[int, int]:
    """Returns begin and end, 2^64 at most, of what is given for a range."""
    try:
        begin, end = keys
        if isinstance(begin, bool) or isinstance(end, bool):
            raise TypeError
        begin = operator.index(begin)
        end = _END_OF_KEYS if end is None else operator.index(end)
    except (TypeError, ValueError):
        raise InvalidArgument(f"keys is a pair of integers (begin, end), end may be None, not {shown(keys)}") from None
    if not (0 <= begin <= _END_OF_KEYS and 0 <= end <= _END_OF_KEYS):
        raise InvalidArgument(f"keys is a range within [0, 2^64), not {shown(keys)}")
    if end < begin:
        raise InvalidArgument(f"the key range ends at {end}, before it begins at {begin}")
    return begin, end


def status_request(upload: Upload) -> pb.GetUploadStatusRequest:
    """Returns the message."""
    return pb.GetUploadStatusRequest(
        round=upload.round_name,
        client_id=upload.client_id,
        submission_id=upload.submission_id,
        upload_tag=upload.tag,
    )


def commit_request(upload: Upload) -> pb.CommitSubmissionRequest:
    """Returns the message."""
    return pb.CommitSubmissionRequest(
        round=upload.round_name,
        client_id=upload.client_id,
        submission_id=upload.submission_id,
        upload_tag=upload.tag,
    )


@contextlib.contextmanager
def streamed(requests: Any) -> Iterator[Any]:
    """Lends a call its message or messages, and raises what making one of them raises: gRPC just ends the call."""
    failed: list[Exception] = []

    def watched() -> Iterator[Any]:
        try:
            yield from requests
        except Exception as error:
            failed.append(error)
            raise

    try:
        yield watched() if isinstance(requests, Iterator) else requests
    except (grpc.RpcError, asyncio.CancelledError):
        if not failed:
            raise
    if failed:
        raise failed.pop()  # which this frame no longer holds, so that it is gone as soon as its handler is


def counted(chunks: Iterator[ChunkMessage], bar: ProgressBar | None) -> Iterator[ChunkMessage]:
    """Yields the chunks, and moves the bar, if there is one, to the end of those that have been taken."""
    for chunk in chunks:
        yield chunk
        if bar is not None:
            bar.move_to(chunk.end_bytes)
