"""Messages of the server as values of Python, and back."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, TypeVar

from google.protobuf.message import Message

from sparseagg._internal.base.arguments import did_you_mean, shown
from sparseagg._internal.base.durations import duration, seconds_of, time_of
from sparseagg.errors import InvalidArgumentError

__all__ = ["enum_name", "read", "words", "write"]

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
    """Returns our name of an enumerator: "done" for ROUND_STATE_DONE, "round_state_9" for an unknown number.

    Args:
        enum: the enum's descriptor.
        number: any number.
    """
    prefix = enum.values[0].name.removesuffix("UNSPECIFIED")
    known = enum.values_by_number.get(number)
    return str(f"{prefix}{number}" if known is None else known.name.removeprefix(prefix)).lower()


@functools.cache
def words(enum: Any) -> dict[str, int]:
    """Returns the numbers of our names of an enum's values, without that of 0: 1 for "sum", which is OP_SUM.

    Args:
        enum: the enum's descriptor.
    """
    prefix = enum.values[0].name.removesuffix("UNSPECIFIED")
    return {each.name[len(prefix) :].lower(): each.number for each in enum.values if each.number}


def write(message: Message, values: Mapping[str, Any], where: str = "") -> None:
    """Sets fields of a message to values of Python: numbers, texts, words for enums, and lengths of time.

    Args:
        message: to change.
        values: by the names of fields; a field of None stays unset.
        where: goes before names of fields in errors.

    Raises:
        InvalidArgumentError: a value does not fit its field, or a word is unknown. The message names the field.
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
