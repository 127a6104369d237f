"""Messages of the server as values of Python, and back: words, numbers, lengths and points of time."""

from __future__ import annotations

import dataclasses
import datetime
import functools
from collections.abc import Mapping
from typing import Any, TypeVar, Union

from google.protobuf import duration_pb2
from google.protobuf.message import Message

from sparseagg._internal.base.arguments import checked_number, did_you_mean, shown
from sparseagg.errors import InvalidArgumentError

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


_Class = TypeVar("_Class")


def read(kind: type[_Class], message: Message, **given: Any) -> _Class:
    """Returns an object of a dataclass, with ``given`` and with the message's fields of the names of its attributes.

    Enums become words, timestamps times in UTC (None: not set), durations seconds, and lists tuples. An optional field
    that is not set leaves the attribute at its default. Other messages have to be ``given``.
    """
    # Any: mypy holds a class for no Hashable where it has a `__hash__` of its own.
    classes: tuple[Any, Any] = (kind, type(message))
    for name, is_optional, type_name, enum in _fields(*classes):
        if name in given or (is_optional and not message.HasField(name)):
            continue
        value = getattr(message, name)
        if enum is not None:
            value = enum_name(enum, int(value))
        elif type_name is not None:
            value = time_of(message, name) if type_name == "google.protobuf.Timestamp" else seconds_of(value)
        elif not isinstance(value, (str, bytes, int, float)):
            value = tuple(value)
        given[name] = value
    return kind(**given)


@functools.cache
def _fields(kind: Any, message: type[Message]) -> list[tuple[str, bool, str | None, Any]]:
    """Returns of each field that the class has: name, whether it may be unset, type of a message, enum."""
    names = {attribute.name for attribute in dataclasses.fields(kind)}
    return [
        (
            field.name,
            field.containing_oneof is not None,
            None if field.message_type is None else field.message_type.full_name,
            field.enum_type,
        )
        for field in message.DESCRIPTOR.fields
        if field.name in names
    ]


def enum_name(enum: Any, number: int) -> str:
    """Returns our name of an enumerator: "done" for ROUND_STATE_DONE, "round_state_9" for an unknown number."""
    prefix = enum.values[0].name.removesuffix("UNSPECIFIED")
    known = enum.values_by_number.get(number)
    return str(f"{prefix}{number}" if known is None else known.name.removeprefix(prefix)).lower()


@functools.cache
def words(enum: Any) -> dict[str, int]:
    """Returns the numbers of our names of an enum's values, without that of 0: 1 for "sum", which is OP_SUM."""
    prefix = enum.values[0].name.removesuffix("UNSPECIFIED")
    return {each.name[len(prefix) :].lower(): each.number for each in enum.values if each.number}


def write(message: Message, values: Mapping[str, Any], where: str = "") -> None:
    """Sets fields of a message to values of Python: numbers, texts, words for enums, and lengths of time; not those of
    None.

    Raises ``InvalidArgumentError`` for a value that does not fit; the message names ``where`` and the field.
    """
    kind: Any = type(message)
    special = _special(kind)
    for name, value in values.items():
        if value is None:
            continue
        if name in special:
            known = special[name]
            if known is None:
                getattr(message, name).CopyFrom(duration(where + name, value))
                continue
            if not isinstance(value, str) or value not in known:
                meant = did_you_mean(value, known)
                raise InvalidArgumentError(f"unknown {where}{name} {shown(value)}; known: {', '.join(known)}{meant}")
            value = known[value]
        try:
            setattr(message, name, value)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidArgumentError(f"{where}{name} cannot be {shown(value)}: {error}") from error


@functools.cache
def _special(message: Any) -> dict[str, dict[str, int] | None]:
    """Returns the fields that take words, with these and their numbers, and those that are messages, with None."""
    fields = message.DESCRIPTOR.fields
    return {
        field.name: None if field.enum_type is None else words(field.enum_type)
        for field in fields
        if field.enum_type is not None or field.message_type is not None
    }
