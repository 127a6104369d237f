"""Lengths of time as numbers, timedeltas and protobuf messages; and points of time."""

from __future__ import annotations

import datetime
from typing import Union

from google.protobuf import duration_pb2
from google.protobuf.message import Message

from sparseagg._internal.base.arguments import checked_number, shown
from sparseagg.errors import InvalidArgumentError

__all__ = ["Seconds", "as_of", "duration", "now", "seconds_of", "time_of"]

Seconds = Union[float, datetime.timedelta]


def duration(field: str, value: Seconds | None) -> duration_pb2.Duration | None:
    """Returns a number of seconds or a timedelta as a message; ``InvalidArgumentError`` names the field otherwise."""
    if value is None:
        return None
    what = f"{field} must be a number of seconds or a timedelta"
    message = duration_pb2.Duration()
    try:
        if isinstance(value, datetime.timedelta):
            message.FromTimedelta(value)
        else:
            message.FromTimedelta(datetime.timedelta(seconds=checked_number(what, value)))
    except InvalidArgumentError:
        raise
    except (ValueError, OverflowError) as error:  # beyond the range of a timedelta or of the message
        raise InvalidArgumentError(f"{what}, got {shown(value)}: {error}") from error
    return message


def seconds_of(duration: duration_pb2.Duration) -> float:
    """Returns a duration as the nearest float of seconds, so that 0.3 comes back as 0.3."""
    return float((duration.seconds * 10**9 + duration.nanos) / 10**9)


def time_of(message: Message, field: str) -> datetime.datetime | None:
    """Returns the timestamp in a field of a message, in UTC; None if the field is not set."""
    if not message.HasField(field):
        return None
    time: datetime.datetime = getattr(message, field).ToDatetime(datetime.timezone.utc)
    return time


def now() -> datetime.datetime:
    """Returns the time of this machine's clock, in UTC."""
    return datetime.datetime.now(datetime.timezone.utc)


def as_of(time: datetime.datetime | None) -> str:
    """Returns the end of a ``repr`` that says when the server described the object; "" if nobody knows."""
    return "" if time is None else f", as of {time:%Y-%m-%d %H:%M:%S} UTC"
