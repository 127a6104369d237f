"""The view of ``sparseagg top``, drawn with rich. Only ``top`` imports this module, and only when it runs."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from sparseagg._internal.base.plain_text import plain
from sparseagg._internal.base.sizes import binary_size, decimal
from sparseagg._internal.commands.top_look import Look, Rate, commit_rates, rates, received_bytes
from sparseagg._internal.commands.top_table import Column, fitted_table
from sparseagg._internal.commands.top_window import Window
from sparseagg._internal.results.info import RoundInfo, Timeline
from sparseagg._internal.results.server_info import ServerInfo
from sparseagg._internal.results.streams import StreamInfo

__all__ = ["console", "is_screen", "live", "message", "view"]

_ACTIVE = ("open", "sealed", "finalizing")
_STYLES = {"open": "green", "sealed": "yellow", "finalizing": "yellow", "done": "", "failed": "red", "cancelled": "dim"}
_WIDE = 400  # where the output is no terminal: no line is cut
# Of the round's and the stream's table. A narrow terminal loses the columns of the highest number first.
_ROUND_COLUMNS = (
    Column("ROUND"),
    Column("STATE", is_right=False),
    Column("SUBMITTED"),
    Column("UPLOADS", 4),
    Column("TUPLES", 3),
    Column("BYTES", 1),
    Column("BYTES/S", 2),
    Column("TUPLES/S", 5),
    Column("LONGEST", 6, is_right=False),
)
_STREAM_COLUMNS = (
    Column("STREAM"),
    Column("VERSION"),
    Column("BUFFERED"),
    Column("COMMITS", 2),
    Column("COMMITS/S", 1),
    Column("STALENESS", 4),
    Column("MOST", 5),
    Column("LAST CUT", 3, is_right=False),
)
# Of "memory", with --metrics: label, metric in use, metric of the limit.
_MEMORY = (
    ("process", "process_resident_memory_bytes", "sparseagg_process_memory_limit_bytes"),
    ("rounds", "sparseagg_kept_bytes", "sparseagg_memory_limit_bytes"),
    ("in flight", "sparseagg_in_flight_bytes", "sparseagg_in_flight_limit_bytes"),
)
_KEYS = "q ends  / filters  ↑ ↓ PgUp PgDn scroll"


def is_screen() -> bool:
    """Returns whether standard output is a terminal that can place its cursor."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def console() -> Console:
    """Returns the console on standard output: plain text of the terminal's width where it is no screen."""
    if is_screen():
        return Console()
    size = shutil.get_terminal_size()
    width = size.columns if sys.stdout.isatty() else _WIDE
    # With a height, too: otherwise rich takes 80 columns for a dumb terminal, whatever its width.
    return Console(highlight=False, width=width, height=size.lines, color_system=None)


def live(on: Console, first: RenderableType) -> Live:
    """Returns a context that shows ``first``, then what ``update`` is given, on a screen of its own."""
    return Live(first, console=on, screen=True, auto_refresh=False, vertical_overflow="crop")


def message(address: str, text: str, *, has_keys: bool) -> RenderableType:
    """Returns a screen without a look; ``has_keys``: it says which key ends the command."""
    return Group(_title(address, "q ends" if has_keys else ""), Text(plain(text), style="red"))


def view(
    on: Console,
    address: str,
    now: Look,
    before: Look | None,
    window: Window,
    *,
    height: int | None,
    has_keys: bool = False,
    trouble: str = "",
) -> RenderableType:
    """Returns a screen.

    Args:
        on: where the view will be drawn, for its width.
        address: of the server.
        now: the last look.
        before: the look before it, for the rates; None: no rates are shown.
        window: which rounds to show; moved to rounds that there are.
        height: of the terminal, in lines; None: there is room for all rounds.
        has_keys: whether the last line tells the keys.
        trouble: why there is no later look; "" if there is no trouble.
    """
    found = rates(before, now)
    style = "dim" if trouble else ""
    server = f"version {now.server.version}, {now.server.engine_description}"
    head: list[RenderableType] = [_title(address, server), _rounds_line(now, found), _memory_line(now)]
    if trouble:
        head.append(Text(plain(trouble), style="bold red"))
    streams = [info for info in now.streams if window.passes(info.name.partition("/")[2])]
    if streams:
        shown = streams if height is None else streams[: max(1, height // 3)]
        head.append(fitted_table(_STREAM_COLUMNS, _stream_rows(shown, commit_rates(before, now)), on.width, style))
        left_out = len(streams) - len(shown)
        head.append(Text(f"{left_out} more streams" if left_out else "", style="dim"))
    matching = [info for info in now.rounds if window.passes(info.name.partition("/")[2], info.state)]
    matching.sort(key=lambda info: _order(info, found))
    notes = _notes(now.notes, matching)
    if height is None:
        window.fit(len(matching), len(matching))
    else:
        while notes and _num_lines(on, notes) > height // 4:
            notes.pop()
        below = _num_lines(on, notes) + 2  # the titles of the rounds, and the foot
        window.fit(len(matching), height - _num_lines(on, head) - below)
    rows = _round_rows(matching[window.first : window.first + window.page], found)
    return Group(
        *head,
        fitted_table(_ROUND_COLUMNS, rows, on.width, style),
        *notes,
        *_foot(window, len(now.rounds), len(matching), has_keys=has_keys),
    )


def _num_lines(on: Console, parts: Sequence[RenderableType]) -> int:
    return len(on.render_lines(Group(*parts), pad=False)) if parts else 0


def _title(address: str, text: str) -> Text:
    return Text.assemble(("sparseagg top", "bold"), f"  {plain(address)}  {plain(text)}")


def _rounds_line(now: Look, found: dict[str, Rate]) -> Text:
    by_state: dict[str, int] = {}
    for info in now.rounds:
        by_state[info.state] = by_state.get(info.state, 0) + 1
    text = "rounds   " + (", ".join(f"{number} {state}" for state, number in by_state.items()) or "none")
    text += f"; {sum(info.num_uploads for info in now.rounds)} open uploads"
    if found:
        total = Rate(sum(rate.bytes for rate in found.values()), sum(rate.tuples for rate in found.values()))
        text += f"; {decimal(total.bytes, 'B')}/s, {decimal(total.tuples)} tuples/s"
    return Text(plain(text))


def _memory_line(now: Look) -> Text:
    if now.metrics_error:
        return Text("memory   " + plain(now.metrics_error), style="red")
    parts = [
        f"{label} {binary_size(now.metrics[used])} of {binary_size(now.metrics[limit])}"
        for label, used, limit in _MEMORY
        if used in now.metrics and limit in now.metrics
    ]
    if not parts:
        servers = (now.server, *now.other_servers)
        parts = [(f"{i}: " if len(servers) > 1 else "") + _process_memory(server) for i, server in enumerate(servers)]
    return Text("memory   " + "; ".join(parts))


def _process_memory(server: ServerInfo) -> str:
    """Returns the memory of a server's process and its limit, as far as the server tells the caller."""
    limit_bytes = server.limits.memory_limit_bytes
    limit = binary_size(limit_bytes) if limit_bytes else "none"
    if server.activity is None or server.activity.resident_bytes == 0:
        return f"limit {limit}"
    return f"process {binary_size(server.activity.resident_bytes)}, limit {limit}"


def _notes(notes: Mapping[str, str], matching: Sequence[RoundInfo]) -> list[Text]:
    return [Text(plain(notes[info.name])) for info in matching if info.name in notes]


def _foot(window: Window, num_rounds: int, num_matching: int, *, has_keys: bool) -> list[Text]:
    """Returns the last line: which rounds these are, the filter, and the keys."""
    parts = []
    if num_matching > window.page or window.first:
        last = min(window.first + window.page, num_matching)
        parts.append(f"{window.first + 1}–{last} of {num_matching} rounds")
    if window.filter or window.is_typing:
        cursor = "_" if window.is_typing else ""
        parts.append(f"filter: {window.filter}{cursor} ({num_matching} of {num_rounds} rounds)")
    if has_keys:
        parts.append("Enter keeps it  Esc clears it" if window.is_typing else _KEYS)
    return [Text(plain("  ".join(parts)), style="dim", no_wrap=True, overflow="ellipsis")] if parts else []


def _round_rows(infos: Sequence[RoundInfo], found: Mapping[str, Rate]) -> list[list[Text]]:
    rows = []
    for info in infos:
        rate = found.get(info.name)
        cells = [
            info.name.partition("/")[2],
            info.state,
            str(info.num_submissions),
            str(info.num_uploads),
            decimal(info.num_tuples),
            decimal(received_bytes(info), "B"),
            "–" if rate is None else decimal(rate.bytes, "B"),
            "–" if rate is None else decimal(rate.tuples),
            _longest(info.timeline),
        ]
        rows.append([Text(plain(cell)) for cell in cells])
        rows[-1][1].stylize(_STYLES.get(info.state, ""))
    return rows


def _stream_rows(streams: Sequence[StreamInfo], found: Mapping[str, float]) -> list[list[Text]]:
    rows = []
    for info in streams:
        counts = info.staleness_counts
        total = sum(counts)
        cut_time = "" if info.last_cut_time is None else f" {info.last_cut_time.astimezone():%H:%M:%S}"
        cells = [
            info.name.partition("/")[2],
            str(info.version),
            f"{info.num_buffered} of {info.buffer}",
            decimal(info.num_commits),
            "–" if info.name not in found else decimal(found[info.name]),
            "–" if total == 0 else f"{sum(t * count for t, count in enumerate(counts)) / total:.1f}",
            "–" if total == 0 else str(max(t for t, count in enumerate(counts) if count)),
            "–" if not cut_time else info.last_cut_cause + cut_time,
        ]
        rows.append([Text(plain(cell)) for cell in cells])
    return rows


def _longest(timeline: Timeline) -> str:
    """Returns the stage with the longest time, waits included; nothing before there was any."""
    return plain(timeline.longest) if any(stage.busy or stage.wait for stage in timeline.stages) else "–"


def _order(info: RoundInfo, found: Mapping[str, Rate]) -> tuple[bool, float, float]:
    """Orders rounds: active ones first, then by rate, then the newest first."""
    created = info.create_time.timestamp() if info.create_time else 0.0
    return info.state not in _ACTIVE, -found.get(info.name, Rate()).bytes, -created
