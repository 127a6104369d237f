"""Lengths of time, as callers give them and as the wire has them."""

from __future__ import annotations

import datetime
from typing import Union

from google.protobuf import duration_pb2

from sparseagg.arguments import checked_number, shown
from sparseagg.errors import InvalidArgument

__all__ = ["Seconds", "duration", "seconds_of"]

Seconds = Union[float, datetime.timedelta]


def duration(field: str, value: Seconds | None) -> duration_pb2.Duration | None:
    """Returns seconds or a timedelta as a message; ``InvalidArgument``, which names the field, if it is neither."""
    if value is None:
        return None
    what = f"{field} is a number of seconds or a timedelta"
    message = duration_pb2.Duration()
    try:
        if isinstance(value, datetime.timedelta):
            message.FromTimedelta(value)
        else:
            message.FromTimedelta(datetime.timedelta(seconds=checked_number(what, value)))
    except InvalidArgument:
        raise
    except (ValueError, OverflowError) as error:  # beyond what a timedelta, or the message, holds
        raise InvalidArgument(f"{what}, not {shown(value)}: {error}") from error
    return message


def seconds_of(duration: duration_pb2.Duration) -> float:
    """Returns a duration in seconds: the float next to it, so that 0.3 comes back as 0.3."""
    return float((duration.seconds * 10**9 + duration.nanos) / 10**9)
