"""Lengths of time, as callers give them and as the wire has them."""

from __future__ import annotations

import datetime
from typing import Union

from google.protobuf import duration_pb2

from sparseagg.arguments import shown
from sparseagg.errors import InvalidArgument

__all__ = ["Seconds", "duration", "seconds"]

Seconds = Union[float, datetime.timedelta]


def duration(field: str, value: Seconds | None) -> duration_pb2.Duration | None:
    """Returns seconds or a timedelta as a message; ``InvalidArgument``, which names the field, if it is neither."""
    if value is None:
        return None
    message = duration_pb2.Duration()
    try:
        delta = value if isinstance(value, datetime.timedelta) else datetime.timedelta(seconds=float(value / 1))
        message.FromTimedelta(delta)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"{field} is a number of seconds or a timedelta, not {shown(value)}: {error}") from error
    return message


def seconds(duration: duration_pb2.Duration) -> float:
    """Returns a duration in seconds."""
    return duration.seconds + duration.nanos * 1e-9
