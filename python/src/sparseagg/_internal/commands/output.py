"""What commands print."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import json
import sys
from typing import Any, TextIO

from google.protobuf import json_format

from sparseagg._internal.base.plain_text import plain
from sparseagg._internal.spec.round_spec import RoundSpec

__all__ = ["put", "put_json"]


def put(*lines: str, to: TextIO | None = None, end: str = "\n", flush: bool = False) -> None:
    """Prints lines. Names and texts in them, of servers, clients and files, reach the terminal as ``plain`` text only.

    Args:
        lines: without their ends.
        to: where to print; None: standard output.
        end: of each line.
        flush: whether readers have the lines when this returns.
    """
    stream = sys.stdout if to is None else to
    for line in lines:
        print(plain(line), file=stream, end=end, flush=flush)


def put_json(value: Any) -> None:
    """Prints a value as JSON: dataclasses as objects, ISO 8601, base64, a spec as ``rounds create`` reads it."""
    put(*json.dumps(_jsonable(value), indent=1).split("\n"))


def _jsonable(value: Any) -> Any:
    if isinstance(value, RoundSpec):
        return json_format.MessageToDict(value.to_proto(), preserving_proto_field_name=True)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (each for each in dataclasses.fields(value) if each.compare)  # without the time of the look
        return {field.name: _jsonable(getattr(value, field.name)) for field in fields}
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {name: _jsonable(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(each) for each in value]
    return value
