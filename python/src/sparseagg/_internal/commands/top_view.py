"""The view of ``sparseagg top``, drawn with rich. Only ``top`` imports this module, and only when it runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sparseagg._internal.base.plain_text import plain
from sparseagg._internal.commands.top_look import Look, Rate, commit_rates, rates, received_bytes
from sparseagg._internal.results.info import RoundInfo, Timeline
from sparseagg._internal.results.streams import StreamInfo

__all__ = ["live", "message", "print_once", "view"]

_ACTIVE = ("open", "sealed", "finalizing")
_STYLES = {"open": "green", "sealed": "yellow", "finalizing": "yellow", "done": "", "failed": "red", "cancelled": "dim"}
# Lines of the terminal that are not rounds: three of the head, two of trouble, the titles, the rounds left out.
_OTHER_LINES = 7
_STREAM_LINES = 2  # the titles, and a line below
_WIDE = 400  # where the output is no terminal: no line is cut
# Of "memory", with --metrics: label, metric in use, metric of the limit.
_MEMORY = (
    ("process", "process_resident_memory_bytes", "sparseagg_process_memory_limit_bytes"),
    ("rounds", "sparseagg_kept_bytes", "sparseagg_memory_limit_bytes"),
    ("in flight", "sparseagg_in_flight_bytes", "sparseagg_in_flight_limit_bytes"),
)


def live(first: RenderableType) -> Live:
    """Returns a context that shows ``first``, then what ``update`` is given, on a screen of its own."""
    return Live(first, console=Console(), screen=True, auto_refresh=False)


def print_once(address: str, look: Look) -> None:
    """Prints one view on standard output."""
    console = Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=_WIDE)
    console.print(view(address, look, None, max_rounds=len(look.rounds)))


def message(address: str, text: str) -> RenderableType:
    """Returns a screen without a look."""
    return Group(_title(address, "q ends"), Text(plain(text), style="red"))


def view(
    address: str, now: Look, before: Look | None, *, trouble: str = "", max_rounds: int | None = None
) -> RenderableType:
    """Returns a screen.

    Args:
        address: of the server.
        now: the last look.
        before: the look before it, for the rates; None: no rates are shown.
        trouble: why there is no later look; "" if there is no trouble.
        max_rounds: number of rounds to show, with all streams; None: as many as the terminal has lines for, with a
            hint at the keys.
    """
    found = rates(before, now)
    server = f"version {now.server.version}, {now.server.engine_description}"
    streams = now.streams
    if max_rounds is None:
        height = Console().size.height
        streams = streams[: max(1, height // 3)]
        max_rounds = max(1, height - _OTHER_LINES - (len(streams) + _STREAM_LINES if streams else 0))
        server += "; q ends"
    lines: list[RenderableType] = [_title(address, server), _rounds_line(now, found), _memory_line(now)]
    if trouble:
        lines.append(Text(plain(trouble), style="bold red"))
    if streams:
        left_out = len(now.streams) - len(streams)
        lines.append(_stream_table(streams, commit_rates(before, now), style="dim" if trouble else ""))
        lines.append(Text(f"{left_out} more streams" if left_out else "", style="dim"))
    lines.append(_table(now, found, max_rounds, style="dim" if trouble else ""))
    if len(now.rounds) > max_rounds:
        lines.append(Text(f"{len(now.rounds) - max_rounds} more rounds", style="dim"))
    lines += [Text(plain(note)) for note in now.notes[-max_rounds:]]
    return Group(*lines)


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
        text += f"; {_decimal(total.bytes, 'B')}/s, {_decimal(total.tuples)} tuples/s"
    return Text(plain(text))


def _memory_line(now: Look) -> Text:
    if now.metrics_error:
        return Text("memory   " + plain(now.metrics_error), style="red")
    parts = [
        f"{label} {_binary(now.metrics[used])} of {_binary(now.metrics[limit])}"
        for label, used, limit in _MEMORY
        if used in now.metrics and limit in now.metrics
    ]
    if not parts:
        limit_bytes = now.server.limits.memory_limit_bytes
        parts = [f"limit {_binary(limit_bytes) if limit_bytes else 'none'}; what is in use: --metrics URL"]
    return Text("memory   " + "; ".join(parts))


def _table(now: Look, found: dict[str, Rate], max_rounds: int, style: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), style=style, header_style="bold")
    table.add_column("ROUND", min_width=8)  # the one that gives way where the terminal is narrow
    table.add_column("STATE", no_wrap=True)
    for title in ("SUBMITTED", "UPLOADS", "TUPLES", "BYTES", "BYTES/S", "TUPLES/S"):
        table.add_column(title, no_wrap=True, justify="right")
    table.add_column("LONGEST", no_wrap=True)
    for info in sorted(now.rounds, key=lambda info: _order(info, found))[:max_rounds]:
        rate = found.get(info.name)
        table.add_row(
            Text(plain(info.name.partition("/")[2])),
            Text(plain(info.state), style=_STYLES.get(info.state, "")),
            str(info.num_submissions),
            str(info.num_uploads),
            _decimal(info.num_tuples),
            _decimal(received_bytes(info), "B"),
            "–" if rate is None else _decimal(rate.bytes, "B"),
            "–" if rate is None else _decimal(rate.tuples),
            Text(_longest(info.timeline)),
        )
    return table


def _stream_table(streams: Sequence[StreamInfo], found: dict[str, float], style: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), style=style, header_style="bold")
    table.add_column("STREAM", min_width=8)
    for title in ("VERSION", "BUFFERED", "COMMITS", "COMMITS/S", "STALENESS", "MOST"):
        table.add_column(title, no_wrap=True, justify="right")
    table.add_column("LAST CUT", no_wrap=True)
    for info in streams:
        counts = info.staleness_counts
        total = sum(counts)
        cut_time = "" if info.last_cut_time is None else f" {info.last_cut_time.astimezone():%H:%M:%S}"
        table.add_row(
            Text(plain(info.name.partition("/")[2])),
            str(info.version),
            f"{info.num_buffered} of {info.buffer}",
            _decimal(info.num_commits),
            "–" if info.name not in found else _decimal(found[info.name]),
            "–" if total == 0 else f"{sum(t * count for t, count in enumerate(counts)) / total:.1f}",
            "–" if total == 0 else str(max(t for t, count in enumerate(counts) if count)),
            Text("–" if not cut_time else info.last_cut_cause + cut_time),
        )
    return table


def _longest(timeline: Timeline) -> str:
    """Returns the stage with the longest time, waits included; nothing before there was any."""
    return plain(timeline.longest) if any(stage.busy or stage.wait for stage in timeline.stages) else "–"


def _order(info: RoundInfo, found: dict[str, Rate]) -> tuple[bool, float, float]:
    """Orders rounds: active ones first, then by rate, then the newest first."""
    created = info.create_time.timestamp() if info.create_time else 0.0
    return info.state not in _ACTIVE, -found.get(info.name, Rate()).bytes, -created


def _decimal(number: float, unit: str = "") -> str:
    """Returns a number in three digits or so, with a decimal prefix: 12.3 M."""
    for prefix in ("", "k", "M", "G", "T"):
        if round(number) < 1000 or prefix == "T":
            break
        number /= 1000
    digits = f"{number:.0f}" if not prefix or number >= 100 else f"{number:.1f}"
    return f"{digits} {prefix}{unit}".rstrip()


def _binary(number: float) -> str:
    """Returns a size of memory, as flags write it: 1.5 GiB."""
    for unit in ("MiB", "GiB", "TiB"):
        number /= 1024 if unit != "MiB" else 1 << 20
        if number < 1024:
            break
    return f"{number:.0f} {unit}" if number >= 100 else f"{number:.1f} {unit}"
