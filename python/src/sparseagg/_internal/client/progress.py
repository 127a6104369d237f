"""A progress bar on standard error."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from sparseagg._internal.base.plain_text import plain

__all__ = ["ProgressBar"]

_WIDTH = 24
_INTERVAL_S = 0.1


class ProgressBar:
    """A bar of one line, which shows nothing on a stream that is no terminal. A context manager: removes the line.

    Not thread-safe.

    Args:
        label: text before the bar.
        total: number of units of the whole task.
        unit: text after the numbers; "B" shows bytes as MB.
        stream: where to draw; None: standard error.
    """

    def __init__(self, label: str, total: int, unit: str = "", stream: TextIO | None = None) -> None:
        self._label = plain(label)
        self._total = total
        self._unit = unit
        self._stream = stream or sys.stderr
        self._shown = self._stream.isatty()
        self._done = 0
        self._start = time.monotonic()
        self._drawn = 0.0

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def advance(self, units: int = 1) -> None:
        """Counts ``units`` more units as done. Draws at most ten times a second."""
        self.move_to(self._done + units)

    def move_to(self, units: int) -> None:
        """Sets the number of units that are done, which may be lower than before. Draws as ``advance``."""
        self._done = units
        now = time.monotonic()
        if self._shown and (now - self._drawn >= _INTERVAL_S or self._done >= self._total):
            self._drawn = now
            self._stream.write("\r" + self.line() + "\x1b[K")
            self._stream.flush()

    def line(self) -> str:
        """Returns the text of the line."""
        share = min(1.0, self._done / self._total) if self._total else 1.0
        bar = ("█" * round(share * _WIDTH)).ljust(_WIDTH, "·")
        if self._unit == "B":
            numbers = f"{self._done / 1e6:.1f}/{self._total / 1e6:.1f} MB"
        else:
            numbers = f"{self._done}/{self._total} {self._unit}".rstrip()
        return f"{self._label} {bar} {share:4.0%} {numbers} {time.monotonic() - self._start:.1f} s"

    def clear(self) -> None:
        """Removes the line."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
