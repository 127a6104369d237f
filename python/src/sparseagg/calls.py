"""Requests, and what both clients decide alike."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from google.protobuf import duration_pb2

from sparseagg.errors import DeadlineExceeded, RoundFailed
from sparseagg.info import RoundInfo
from sparseagg.message import ChunkMessage
from sparseagg.progress import ProgressBar
from sparseagg.upload import Upload
from sparseagg.v1 import aggregation_pb2 as pb
from sparseagg.wire import check_encoding, check_narrow

__all__ = [
    "commit_request",
    "counted",
    "poll_seconds",
    "raise_if_failed",
    "raise_if_past",
    "result_format",
    "result_request",
    "status_request",
    "wait_request",
]

# What this client decodes in results, beside the plain encodings.
_KEYS = (pb.KEY_ENCODING_IMPLICIT, pb.KEY_ENCODING_DELTA_BITPACKED, pb.KEY_ENCODING_BITMAP)
_VALUES = {
    "float32": pb.VALUE_ENCODING_FLOAT32,
    "float16": pb.VALUE_ENCODING_FLOAT16,
    "bfloat16": pb.VALUE_ENCODING_BFLOAT16,
    "int8_scaled": pb.VALUE_ENCODING_INT8_SCALED,
}

# How long one WaitRound asks to wait; the server may cut it.
_LONG_POLL_S = 30.0


def poll_seconds(deadline: float | None) -> float:
    """Returns how long the next long poll may take, up to ``deadline`` on the monotonic clock."""
    return _LONG_POLL_S if deadline is None else max(0.0, min(_LONG_POLL_S, deadline - time.monotonic()))


def wait_request(name: str, seconds: float) -> pb.WaitRoundRequest:
    """Returns the message of one long poll."""
    # At least a millisecond: nothing, or zero, would mean the server's default.
    nanos = max(1_000_000, int(seconds * 1e9))
    timeout = duration_pb2.Duration(seconds=nanos // 10**9, nanos=nanos % 10**9)
    return pb.WaitRoundRequest(name=name, timeout=timeout)


def raise_if_past(deadline: float | None, info: RoundInfo) -> None:
    """Raises ``DeadlineExceeded`` when the time to wait for the round's end has run out."""
    if deadline is not None and time.monotonic() >= deadline:
        raise DeadlineExceeded(f"{info.name} is still {info.state}")


def raise_if_failed(info: RoundInfo, cause: Exception) -> None:
    """Raises ``RoundFailed`` when the round has ended without a result."""
    if info.state in ("failed", "cancelled"):
        reason = f": {info.state_reason}" if info.state_reason else ""
        raise RoundFailed(f"{info.name} {info.state}{reason}", info.state) from cause


def result_format(encoding: str, values: str | None) -> pb.ResultFormat:
    """Returns how a result is to come: ``encoding`` and ``values`` as in ``Round.result``.

    Raises:
        InvalidArgument: one of them is unknown.
    """
    check_encoding(encoding)
    message = pb.ResultFormat(key_encodings=_KEYS if encoding == "auto" else ())
    if values is not None:
        check_narrow(values)
        message.value_encoding = _VALUES[values]
    return message


def result_request(
    name: str,
    tensors: Sequence[str] | None,
    keys: tuple[int, int | None] | None,
    result_format: pb.ResultFormat | None = None,
) -> pb.StreamResultRequest:
    """Returns the message; ``keys`` is (begin, end), an end of None: to the last key."""
    request = pb.StreamResultRequest(name=name, tensors=tensors, format=result_format)
    if keys is not None:
        request.range.begin = keys[0]
        request.range.end = keys[1] or 0
    return request


def status_request(upload: Upload) -> pb.GetUploadStatusRequest:
    """Returns the message."""
    return pb.GetUploadStatusRequest(
        round=upload.round_name, client_id=upload.client_id, submission_id=upload.submission_id
    )


def commit_request(upload: Upload) -> pb.CommitSubmissionRequest:
    """Returns the message."""
    return pb.CommitSubmissionRequest(
        round=upload.round_name, client_id=upload.client_id, submission_id=upload.submission_id
    )


def counted(chunks: Iterator[ChunkMessage], bar: ProgressBar | None) -> Iterator[ChunkMessage]:
    """Yields the chunks, and advances the bar, if there is one, by those that have been taken."""
    for chunk in chunks:
        yield chunk
        if bar is not None:
            bar.advance(chunk.num_bytes)
