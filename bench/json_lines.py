"""The JSON of a benchmark, with one line for each measurement, and numbers of five digits."""

from __future__ import annotations

import json
import pathlib
from typing import Any


def rounded(value: Any) -> Any:
    """The value with the numbers in it rounded to five significant digits; whole numbers stay as they are."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if abs(value) < 1e5 else round(value)
    if isinstance(value, dict):
        return {name: rounded(member) for name, member in value.items()}
    return [rounded(member) for member in value] if isinstance(value, list) else value


def dumps(value: Any, levels: int = 2) -> str:
    """JSON text in which each member of the outer objects, and each object of a list there, has a line of its own."""
    value = rounded(value)
    if levels and isinstance(value, dict) and value:
        members = (f"{json.dumps(name)}: {dumps(member, levels - 1)}" for name, member in value.items())
        return "{\n" + ",\n".join(members) + "\n}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
    return json.dumps(value)


def write(path: pathlib.Path, value: Any) -> None:
    """Writes ``value`` to a file, whose folder is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dumps(value) + "\n", encoding="utf-8")
