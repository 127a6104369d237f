"""The reader of a round's spec in a JSON file."""

from __future__ import annotations

import json
import pathlib
from typing import Any

from google.protobuf import descriptor as descriptors
from google.protobuf import json_format

from sparseagg._internal.base.arguments import did_you_mean, shown
from sparseagg._internal.spec.round_spec import RoundSpec
from sparseagg.errors import InvalidArgumentError
from sparseagg.v1 import aggregation_pb2 as pb

__all__ = ["SPEC_HELP", "read_spec"]

# Help text of the commands that take such a file.
SPEC_HELP = """a file with a sparseagg.v1.RoundSpec in JSON, such as {"tensors": [{"name": "emb", "dtype": "float32",
"shape": [1000, 16]}], "aggregation": {"op": "mean"}}; docs/reference/rounds.md has more"""

_Field = descriptors.FieldDescriptor
_INTEGERS = (_Field.CPPTYPE_INT32, _Field.CPPTYPE_INT64, _Field.CPPTYPE_UINT32, _Field.CPPTYPE_UINT64)
_FIRST_ROUNDED = 2.0**53  # from here on, float64 does not have every integer


def read_spec(path: pathlib.Path) -> RoundSpec:
    """Reads a sparseagg.v1.RoundSpec in the JSON form of Protocol Buffers.

    Values of enums may also have their Python names: "float32" is "DTYPE_FLOAT32". A shape may be a list of sizes. It
    makes num_rows and row_width where the file has neither.

    Raises:
        InvalidArgumentError: the file is no JSON, or no RoundSpec; the message names file and field.
        OSError: the file cannot be read.
    """
    proto = pb.RoundSpec()
    try:
        message = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_object)
        json_format.ParseDict(_message(message, pb.RoundSpec.DESCRIPTOR, ""), proto)
        return RoundSpec.from_proto(proto)
    except (json_format.ParseError, RecursionError, ValueError) as error:
        raise InvalidArgumentError(f"{path}: {error}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object as a dict. Refuses repeated names, of which Python would take the last."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidArgumentError(f"{twice} is given twice")
    return made


def _message(value: Any, descriptor: Any, place: str) -> dict[str, Any]:
    """Returns a JSON message in which all enums have their proto names.

    Args:
        value: the message. Unknown members stay, and the parser refuses them.
        descriptor: of the message type.
        place: of the message in the file, such as "tensors[0].aggregation"; empty for the whole file.

    Raises:
        InvalidArgumentError: the message is no object, or an enum has no such value; the text names the field.
    """
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"{place or descriptor.name} must be an object, got {shown(value)}")
    fields = {name: field for field in descriptor.fields for name in (field.name, field.json_name)}
    made: dict[str, Any] = {}
    given: set[str] = set()
    for name, member in value.items():
        at = f"{place}.{name}" if place else name
        if name in fields and fields[name].name in given:  # in both forms, of which the parser would take the last
            raise InvalidArgumentError(f"{at} is given twice")
        given.add(fields[name].name if name in fields else name)
        if name not in fields:
            made[name] = member
        elif isinstance(member, list) and fields[name].message_type is pb.Shape.DESCRIPTOR:
            made[name] = _message({"sizes": member}, pb.Shape.DESCRIPTOR, at)
        elif isinstance(member, list) and fields[name].default_value != []:
            raise InvalidArgumentError(f"{at} is no list")
        elif isinstance(member, list):
            made[name] = [_member(part, fields[name], f"{at}[{index}]") for index, part in enumerate(member)]
        else:
            made[name] = _member(member, fields[name], at)
    return made


def _member(value: Any, field: Any, place: str) -> Any:
    if value is None:  # like a member that is not there
        return value
    if field.enum_type is not None:
        return _enum_value(value, field.enum_type, place)
    if isinstance(value, float) and field.cpp_type in _INTEGERS and abs(value) >= _FIRST_ROUNDED:
        raise InvalidArgumentError(f"{place} is too large an integer for a fraction or an exponent")
    # Durations are messages in the proto, but strings in JSON.
    if field.message_type is None or field.message_type.file.package == "google.protobuf":
        return value
    return _message(value, field.message_type, place)


def _enum_value(value: Any, enum: Any, place: str) -> Any:
    numbers = {known.name: known.number for known in enum.values}
    if isinstance(value, str) and value in numbers:
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value in numbers.values():
        return value
    prefix = enum.values_by_number[0].name[: -len("UNSPECIFIED")]
    names = {name[len(prefix) :].lower(): name for name, number in numbers.items() if number}
    if not isinstance(value, str) or value not in names:
        meant = did_you_mean(value, names)
        raise InvalidArgumentError(f"{place} must be one of {', '.join(names)}, got {shown(value)}{meant}")
    return names[value]
