"""The places at which a test build of the server can be killed (service/base/fail_point.h)."""

from __future__ import annotations

import pathlib
import re

FAIL_POINT = re.compile(r"\bFailPoint\(\"(\w+)\"\)")
OF_TASKS = re.compile("task|lease")
OF_STREAMS = re.compile("cut|version|stream")
OF_MODELS = re.compile("model")
OF_BOTH = re.compile("^sync_")
# Those that a cycle passes more than once.
MANY_TIMES = re.compile("chunk|submission|sync|model|answer|acknowledgement|task_state|tasks")


def fail_points(repository: pathlib.Path) -> list[str]:
    """The names of all fail points in the server's sources."""
    texts = (path.read_text(encoding="utf-8") for path in sorted((repository / "service").rglob("*.cc")))
    return sorted({name for text in texts for name in FAIL_POINT.findall(text)})


def points_of_rounds(points: list[str]) -> list[str]:
    """Those that a round passes."""
    return [
        point
        for point in points
        if not OF_TASKS.search(point) and not OF_STREAMS.search(point) and not OF_MODELS.search(point)
    ]


def points_of_streams(points: list[str]) -> list[str]:
    """Those that a stream passes: all of rounds but what only their close and their certificates pass."""
    return [point for point in points if not OF_TASKS.search(point) and not OF_MODELS.search(point)]


def points_of_tasks(points: list[str]) -> list[str]:
    """Those that tasks pass."""
    return [point for point in points if OF_TASKS.search(point) or OF_BOTH.search(point)]


def points_of_models(points: list[str]) -> list[str]:
    """Those that a model passes beside rounds and streams."""
    return [point for point in points if OF_MODELS.search(point) or OF_BOTH.search(point)]


def is_at_restart(point: str) -> bool:
    """Whether the point is hit while a server restores what it has."""
    return point.startswith("restored")
