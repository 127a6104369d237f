"""The screen of ``sparseagg top``, drawn with rich. Only ``top`` imports this module, and only when it runs."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import os
import re
import select
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sparseagg._internal.base.plain_text import plain
from sparseagg._internal.base.sizes import binary_size, decimal
from sparseagg._internal.commands.top import Look, Servers
from sparseagg._internal.results.info import RoundInfo
from sparseagg._internal.results.server_info import ServerInfo
from sparseagg._internal.results.streams import StreamInfo
from sparseagg.errors import SparseaggError

__all__ = ["Window", "print_once", "view", "watch"]

_KEY = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O[A-Za-z])|[\s\S]")  # a character, or the escape sequence of a key
_KEY_WAIT_S = 0.1
_FAR = 1 << 62
_STYLES = {"open": "green", "sealed": "yellow", "finalizing": "yellow", "failed": "red", "cancelled": "dim"}
_MIN_NAME_WIDTH = 14
# Title, width, and the order in which a narrow terminal loses the columns: the last number first, and 0 never.
_ROUND_COLUMNS = (("STATE", 10, 0), ("SUBMITTED", 9, 0), ("UPLOADS", 7, 4), ("TUPLES", 7, 3), ("BYTES", 7, 0),
                  ("BYTES/S", 7, 2), ("TUPLES/S", 8, 5), ("LONGEST", 10, 6))  # fmt: skip
_STREAM_COLUMNS = (("VERSION", 7, 0), ("BUFFERED", 12, 0), ("COMMITS", 7, 2), ("COMMITS/S", 9, 1), ("STALENESS", 9, 4),
                   ("MOST", 4, 5), ("LAST CUT", 17, 3))  # fmt: skip


@dataclasses.dataclass
class Window:
    """Which rounds are on the screen: those with each word of ``filter`` in id or state, from the ``first`` one on.

    ``is_typing``: keys go into the filter. ``page``: number of rounds on the screen.
    """

    filter: str = ""
    is_typing: bool = False
    first: int = 0
    page: int = 1

    def press(self, key: str) -> bool:
        """Obeys a character or an escape sequence of a terminal; returns whether it ends the command."""
        if self.is_typing:
            self.is_typing = key not in ("\r", "\n", "\x1b")
            if key == "\x1b":
                self.filter = ""
            elif key in ("\x08", "\x7f"):
                self.filter = self.filter[:-1]
            elif key.isprintable():
                self.filter += key
            self.first = 0
            return False
        steps = {
            "k": -1,
            "\x1b[A": -1,
            "j": 1,
            "\x1b[B": 1,
            "\x1b[5~": -self.page,
            "\x1b[6~": self.page,
            " ": self.page,
        }
        steps |= {**dict.fromkeys(("g", "\x1b[H", "\x1b[1~"), -_FAR), **dict.fromkeys(("G", "\x1b[F", "\x1b[4~"), _FAR)}
        self.first += steps.get(key.replace("\x1bO", "\x1b["), 0)
        self.is_typing = key == "/"
        if key == "\x1b":
            self.filter, self.first = "", 0
        return key == "q"

    def passes(self, *texts: str) -> bool:
        """Returns whether each word of the filter occurs in one of ``texts``."""
        return all(word in " ".join(texts).lower() for word in self.filter.lower().split())


class _Looks:
    """The last two looks at the servers, and what went wrong since."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self.now: Look | None = None
        self.before: Look | None = None
        self.trouble = "connecting"

    def take(self, look: Callable[[], Look]) -> None:
        try:
            self.before, self.now, self.trouble = self.now, look(), ""
        except SparseaggError as error:
            self.before = None
            age = "no answer" if self.now is None else f"no answer for {time.monotonic() - self.now.at:.0f} s"
            self.trouble = f"{age}, asks again every {self._interval_s:g} s; {type(error).__name__}: {error}"


def print_once(servers: Servers, window: Window) -> None:
    """Prints one view without rates; raises ``SparseaggError`` if a server does not answer."""
    on = _console()
    on.print(view(on, servers.address, servers.look(), None, window))


def watch(servers: Servers, interval_s: float, window: Window) -> None:
    """Looks and draws until the key q. Without a screen: prints a view again and again, until an interrupt."""
    looks, on = _Looks(interval_s), _console()
    if not _is_screen():
        while True:
            due = time.monotonic() + interval_s
            looks.take(servers.look)
            height = shutil.get_terminal_size().lines - 1 if sys.stdout.isatty() else None
            on.print(view(on, servers.address, looks.now, looks.before, window, height=height, trouble=looks.trouble))
            on.print()
            sys.stdout.flush()
            time.sleep(max(0.0, due - time.monotonic()))
    screen = Live(console=on, screen=True, auto_refresh=False, vertical_overflow="crop")
    # Looks run in another thread, so that a server that does not answer delays no key.
    with screen, _keys() as next_keys, concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked: concurrent.futures.Future[Look] | None = None
        due, is_new = 0.0, True
        try:
            while True:
                if asked is None and time.monotonic() >= due:
                    asked, due = pool.submit(servers.look), time.monotonic() + interval_s
                if asked is not None and asked.done():
                    looks.take(asked.result)
                    asked, is_new = None, True
                if is_new:
                    height = on.size.height
                    shown = view(on, servers.address, looks.now, looks.before, window, height, True, looks.trouble)
                    screen.update(shown, refresh=True)
                pressed = next_keys()
                if any([window.press(key) for key in pressed]):
                    return
                is_new = bool(pressed)
        finally:
            servers.close()  # ends the look that is under way, for which the executor waits


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[], list[str]]]:
    """Yields a function that returns the next keys, or [] after a moment without one. Then restores the terminal."""
    if not sys.stdin.isatty():

        def no_keys() -> list[str]:
            time.sleep(_KEY_WAIT_S)
            return []

        yield no_keys
        return
    import termios  # where there are such terminals
    import tty

    terminal = sys.stdin.fileno()

    def next_keys() -> list[str]:
        if not select.select([terminal], [], [], _KEY_WAIT_S)[0]:
            return []
        data = os.read(terminal, 1024)
        return _KEY.findall(data.decode("utf-8", "replace")) if data else ["q"]  # the terminal has gone

    modes = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield next_keys
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, modes)


def _is_screen() -> bool:
    """Returns whether standard output is a terminal that can place its cursor."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def _console() -> Console:
    """Returns the console on standard output: plain text where it is no screen, of 400 columns where no terminal."""
    if _is_screen():
        return Console()
    size = shutil.get_terminal_size()
    # With a height, too: otherwise rich takes 80 columns for a dumb terminal, whatever its width.
    return Console(
        highlight=False, width=size.columns if sys.stdout.isatty() else 400, height=size.lines, color_system=None
    )


def view(
    on: Console,
    address: str,
    now: Look | None,
    before: Look | None,
    window: Window,
    height: int | None = None,
    has_keys: bool = False,
    trouble: str = "",
) -> RenderableType:
    """Returns the screen of a look.

    Args:
        before: an earlier look, for rates; None: without rates.
        height: lines of the terminal; None: there is room for all rounds.
        trouble: why there is no later look.
    """
    if now is None:
        return Group(_title(address, "q ends" if has_keys else ""), Text(plain(trouble), style="red"))
    per_second = _Rates(before, now)
    style = "dim" if trouble else ""
    head: list[RenderableType] = [
        _title(address, f"version {now.servers[0].version}, {now.servers[0].engine_description}"),
        _rounds_line(now, per_second),
        Text("memory   " + "; ".join(_memory(now.servers, i) for i in range(len(now.servers)))),
        *([Text(plain(trouble), style="bold red")] if trouble else []),
    ]
    streams = [info for info in now.streams if window.passes(_id(info))]
    if streams:
        shown = streams if height is None else streams[: max(1, height // 3)]
        rows = [_stream_cells(info, per_second) for info in shown]
        head.append(_table("STREAM", _STREAM_COLUMNS, rows, on.width, style))
        head.append(Text(f"{len(streams) - len(shown)} more streams" if shown != streams else "", style="dim"))
    matching = [info for info in now.rounds if window.passes(_id(info), info.state)]
    matching.sort(key=lambda info: _order(info, per_second))
    notes = [Text(plain(now.notes[info.name])) for info in matching if info.name in now.notes]
    while height is not None and notes and _num_lines(on, notes) > height // 4:
        notes.pop()
    if height is None:
        window.page = max(1, len(matching))
    else:  # without the titles of the rounds and the foot
        window.page = max(1, height - _num_lines(on, head) - _num_lines(on, notes) - 2)
    window.first = max(0, min(window.first, len(matching) - window.page))
    rows = [_round_cells(info, per_second) for info in matching[window.first : window.first + window.page]]
    foot = _foot(window, len(now.rounds), len(matching), has_keys)
    return Group(*head, _table("ROUND", _ROUND_COLUMNS, rows, on.width, style), *notes, *foot)


class _Rates:
    """What grew by how much a second between two looks. A round that is new since ``before`` began at zero."""

    def __init__(self, before: Look | None, now: Look) -> None:
        self.seconds = 0.0 if before is None else now.at - before.at
        infos: list[Any] = [] if before is None else [*before.rounds, *before.streams]
        # By name and time: a restarted server, or a deleted round, can give a name to another round.
        self._earlier = {(info.name, info.create_time): info for info in infos}

    def __call__(self, info: Any, value: Callable[[Any], float]) -> float:
        """Returns the growth of ``value(info)`` a second; 0 without an earlier look."""
        old = self._earlier.get((info.name, info.create_time))
        return max(0.0, value(info) - (0 if old is None else value(old))) / self.seconds if self.seconds > 0 else 0.0

    def text(self, info: Any, value: Callable[[Any], float], unit: str = "") -> str:
        """Returns it for a table."""
        return decimal(self(info, value), unit) if self.seconds > 0 else "–"


def _received(info: RoundInfo) -> float:
    return next((stage.bytes for stage in info.timeline.stages if stage.stage == "receive"), info.num_bytes)


def _tuples(info: RoundInfo) -> float:
    return info.num_tuples


def _id(info: RoundInfo | StreamInfo) -> str:
    return info.name.partition("/")[2]


def _order(info: RoundInfo, per_second: _Rates) -> tuple[bool, float, float]:
    """Orders rounds: active ones first, then by rate, then the newest first."""
    created = info.create_time.timestamp() if info.create_time else 0.0
    return info.state not in ("open", "sealed", "finalizing"), -per_second(info, _received), -created


def _num_lines(on: Console, parts: Sequence[RenderableType]) -> int:
    return len(on.render_lines(Group(*parts), pad=False)) if parts else 0


def _title(address: str, text: str) -> Text:
    return Text.assemble(("sparseagg top", "bold"), f"  {plain(address)}  {plain(text)}")


def _rounds_line(now: Look, per_second: _Rates) -> Text:
    states = [info.state for info in now.rounds]
    text = "rounds   " + (", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)) or "none")
    text += f"; {sum(info.num_uploads for info in now.rounds)} open uploads"
    if per_second.seconds > 0:
        num_bytes, num_tuples = (sum(per_second(info, each) for info in now.rounds) for each in (_received, _tuples))
        text += f"; {decimal(num_bytes, 'B')}/s, {decimal(num_tuples)} tuples/s"
    return Text(plain(text))


def _memory(servers: Sequence[ServerInfo], i: int) -> str:
    """Returns the memory of a server's process and its limit, as far as the server tells the caller."""
    resident, limit = servers[i].activity, servers[i].limits.memory_limit_bytes
    text = f"process {binary_size(resident.resident_bytes)}, " if resident and resident.resident_bytes else ""
    return (f"{i}: " if len(servers) > 1 else "") + text + f"limit {binary_size(limit) if limit else 'none'}"


def _round_cells(info: RoundInfo, per_second: _Rates) -> list[str]:
    is_timed = any(stage.busy or stage.wait for stage in info.timeline.stages)
    return [
        *(_id(info), info.state, str(info.num_submissions), str(info.num_uploads)),
        *(decimal(info.num_tuples), decimal(_received(info), "B")),
        *(per_second.text(info, _received, "B"), per_second.text(info, _tuples)),
        info.timeline.longest if is_timed else "–",
    ]


def _stream_cells(info: StreamInfo, per_second: _Rates) -> list[str]:
    counts = info.staleness_counts
    total = sum(counts)
    return [
        *(_id(info), str(info.version), f"{info.num_buffered} of {info.buffer}", decimal(info.num_commits)),
        per_second.text(info, lambda each: each.num_commits),
        "–" if total == 0 else f"{sum(t * count for t, count in enumerate(counts)) / total:.1f}",
        "–" if total == 0 else str(max(t for t, count in enumerate(counts) if count)),
        f"{info.last_cut_cause} {info.last_cut_time.astimezone():%H:%M:%S}" if info.last_cut_time else "–",
    ]


def _table(
    title: str, columns: Sequence[tuple[str, int, int]], rows: Sequence[list[str]], width: int, style: str
) -> Table:
    """Returns a table of at most ``width`` characters: a narrow one has fewer columns, and shorter names."""
    kept = list(columns)

    def room() -> int:
        return width - sum(width + 1 for _, width, _ in kept) - 1

    while room() < _MIN_NAME_WIDTH and max(rank for _, _, rank in kept) > 0:
        kept.remove(max(kept, key=lambda column: column[2]))
    name_width = max([len(title), *(min(len(row[0]), room()) for row in rows)])
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), style=style, header_style="bold")
    table.add_column(title, no_wrap=True, width=name_width)
    for name, column_width, _ in kept:
        is_left = name in ("STATE", "LONGEST", "LAST CUT")
        table.add_column(name, no_wrap=True, width=column_width, justify="left" if is_left else "right")
    for row in rows:
        name = plain(row[0])
        if len(name) > name_width:  # without its middle: ends tell names apart
            name = f"{name[: (name_width - 1) // 2]}…{name[-(name_width // 2) :]}"
        cells = [Text(name), *(Text(plain(row[1 + columns.index(column)])) for column in kept)]
        cells[1].stylize(_STYLES.get(cells[1].plain, ""))
        table.add_row(*cells)
    return table


def _foot(window: Window, num_rounds: int, num_matching: int, has_keys: bool) -> list[Text]:
    """Returns the last line: which rounds these are, the filter, and the keys."""
    parts = []
    if num_matching > window.page or window.first:
        last = min(window.first + window.page, num_matching)
        parts.append(f"{window.first + 1}–{last} of {num_matching} rounds")
    if window.filter or window.is_typing:
        cursor = "_" if window.is_typing else ""
        parts.append(f"filter: {window.filter}{cursor} ({num_matching} of {num_rounds} rounds)")
    if has_keys:
        keys = "Enter keeps it  Esc clears it" if window.is_typing else "q ends  / filters  ↑ ↓ PgUp PgDn scroll"
        parts.append(keys)
    return [Text(plain("  ".join(parts)), style="dim", no_wrap=True, overflow="ellipsis")] if parts else []
