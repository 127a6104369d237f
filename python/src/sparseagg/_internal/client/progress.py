"""A progress bar on standard error."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, TextIO

from sparseagg._internal.base.text import plain

if TYPE_CHECKING:
    from rich.progress import Progress

_INTERVAL_S = 0.1


class ProgressBar:
    """A bar of one line with percentage, numbers, speed and times. A context manager: removes the line at its end.

    It shows nothing on a stream that is no terminal, or on a terminal that cannot rewrite a line. Not thread-safe.

    Args:
        label: text before the bar.
        total: number of units of the whole task.
        unit: text after the numbers; "B" shows bytes as kB, MB or GB.
        stream: where to draw; None: standard error.
    """

    def __init__(self, label: str, total: int, unit: str = "", stream: TextIO | None = None) -> None:
        stream = stream or sys.stderr
        self._total = total
        self._done = 0
        self._drawn = 0.0
        self._progress: Progress | None = None
        if stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown"):
            self._progress = _drawn_by_rich(unit, stream)
            self._task = self._progress.add_task(plain(label), total=total)

    def __enter__(self) -> ProgressBar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def advance(self, units: int = 1) -> None:
        """Counts ``units`` more units as done. Draws at most ten times a second."""
        self.move_to(self._done + units)

    def move_to(self, units: int) -> None:
        """Sets the number of units that are done, which may be lower than before. Draws as ``advance``."""
        self._done = units
        if self._progress is None:
            return
        now = time.monotonic()
        is_due = now - self._drawn >= _INTERVAL_S or self._done >= self._total
        if is_due:
            self._drawn = now
            self._progress.update(self._task, completed=units, refresh=True)


def _drawn_by_rich(unit: str, stream: TextIO) -> Progress:
    """Returns rich's bar. It has no thread, and leaves the standard streams as they are."""
    from rich import progress  # only here: it takes a tenth of a second
    from rich.console import Console

    numbers: list[progress.ProgressColumn] = [progress.DownloadColumn(), progress.TransferSpeedColumn()]
    if unit != "B":
        numbers = [progress.TextColumn(f"{{task.completed:.0f}}/{{task.total:.0f}} {unit}", markup=False)]
    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(24),
        progress.TextColumn("{task.percentage:>3.0f}%"),
        *numbers,
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        console=Console(file=stream),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
