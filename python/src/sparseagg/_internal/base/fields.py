"""Messages of the server as values of Python."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from google.protobuf.message import Message

from sparseagg._internal.base.durations import seconds_of, time_of

__all__ = ["enum_name", "read"]

_Class = TypeVar("_Class")


def read(kind: type[_Class], message: Message, **given: Any) -> _Class:
    """Returns an object of a dataclass, with ``given`` and with the message's fields of the names of its attributes.

    Enums become words, timestamps times in UTC (None: not set), durations seconds, and lists tuples. An optional field
    that is not set leaves the attribute at its default. Other messages have to be ``given``.
    """
    names = {attribute.name for attribute in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for field in message.DESCRIPTOR.fields:
        if field.name not in names or field.name in given:
            continue
        if field.containing_oneof is not None and not message.HasField(field.name):
            continue
        given[field.name] = _value(message, field)
    return kind(**given)


def _value(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.message_type is not None:
        is_time = field.message_type.full_name == "google.protobuf.Timestamp"
        return time_of(message, field.name) if is_time else seconds_of(value)
    if not isinstance(value, (str, bytes, int, float)):
        return tuple(value)
    return value if field.enum_type is None else enum_name(field.enum_type, int(value))


def enum_name(enum: Any, number: int) -> str:
    """Returns our name of an enumerator: "done" for ROUND_STATE_DONE, "round_state_9" for an unknown number.

    Args:
        enum: the enum's descriptor.
        number: any number.
    """
    prefix = enum.values[0].name.removesuffix("UNSPECIFIED")
    known = enum.values_by_number.get(number)
    return str(f"{prefix}{number}" if known is None else known.name.removeprefix(prefix)).lower()
