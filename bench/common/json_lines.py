"""The JSON of a benchmark, with one line for each measurement."""

from __future__ import annotations

import json
from typing import Any


def dumps(value: Any, levels: int = 2) -> str:
    """JSON text in which each member of the outer objects, and each object of a list there, has a line of its own."""
    if levels and isinstance(value, dict) and value:
        members = (f"{json.dumps(name)}: {dumps(member, levels - 1)}" for name, member in value.items())
        return "{\n" + ",\n".join(members) + "\n}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
    return json.dumps(value)
