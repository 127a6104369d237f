"""``sparseagg top``: the rounds of a running server or cluster, live in a terminal."""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sparseagg._internal.base.text import binary_size, decimal, plain
from sparseagg._internal.client.blocking_client import Client
from sparseagg._internal.client.channels import addresses_of
from sparseagg._internal.client.retry import RetryPolicy
from sparseagg._internal.commands.parser import client_options
from sparseagg._internal.results.info import RoundInfo, StreamInfo
from sparseagg._internal.results.server_info import ServerInfo
from sparseagg.cluster.published import Listed, read_list
from sparseagg.cluster.server_rounds import cluster_info, cluster_spec
from sparseagg.errors import InvalidArgumentError, SparseaggError, UnimplementedError

_CALL_TIMEOUT_S = 5.0
_MIN_INTERVAL_S = 0.1
_STYLES = {"open": "green", "sealed": "yellow", "finalizing": "yellow", "failed": "red", "cancelled": "dim"}
_MIN_NAME_WIDTH = 14
# Title, width, and the order in which a narrow terminal loses the columns: the last number first, and 0 never.
_ROUND_COLUMNS = (("STATE", 10, 0), ("SUBMITTED", 9, 0), ("UPLOADS", 7, 4), ("TUPLES", 7, 3), ("BYTES", 7, 0),
                  ("BYTES/S", 7, 2), ("TUPLES/S", 8, 5), ("LONGEST", 10, 6))  # fmt: skip
_STREAM_COLUMNS = (("VERSION", 7, 0), ("BUFFERED", 12, 0), ("COMMITS", 7, 2), ("COMMITS/S", 9, 1), ("STALENESS", 9, 4),
                   ("MOST", 4, 5), ("LAST CUT", 17, 3))  # fmt: skip


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


def main(arguments: argparse.Namespace) -> int:
    """Runs the command, and returns the exit status.

    Raises:
        InvalidArgumentError: a flag has a wrong value.
        SparseaggError: with ``--once``, a server does not answer.
    """
    interval_s = arguments.interval
    if not (math.isfinite(interval_s) and interval_s >= _MIN_INTERVAL_S):
        raise InvalidArgumentError(f"--interval must be a time of {_MIN_INTERVAL_S} s or more, got {interval_s:g}")
    options = client_options(arguments)
    options.update(timeout=_CALL_TIMEOUT_S, retry=RetryPolicy(attempts=1))
    with contextlib.closing(Servers(addresses_of(arguments.address), **options)) as servers:
        if arguments.once:
            on = _console()
            on.print(view(on, servers.address, servers.look(), None, arguments.filter))
            return 0
        with contextlib.suppress(KeyboardInterrupt):
            watch(servers, interval_s, arguments.filter)
    return 0


def watch(servers: Servers, interval_s: float, words: str) -> None:
    """Looks and draws until an interrupt; where there is no screen, each view below the one before."""
    looks, on = _Looks(interval_s), _console()
    is_screen = _is_screen()
    live = Live(console=on, screen=True, auto_refresh=False, vertical_overflow="crop") if is_screen else None
    with live or contextlib.nullcontext():
        while True:
            due = time.monotonic() + interval_s
            looks.take(servers.look)
            height = shutil.get_terminal_size().lines - (not is_screen) if sys.stdout.isatty() else None
            shown = view(on, servers.address, looks.now, looks.before, words, height, looks.trouble)
            if live is not None:
                live.update(shown, refresh=True)
            else:
                on.print(shown)
                on.print()
                sys.stdout.flush()
            time.sleep(max(0.0, due - time.monotonic()))


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
    words: str,
    height: int | None = None,
    trouble: str = "",
) -> RenderableType:
    """Returns the screen of a look.

    Args:
        before: an earlier look, for rates; None: without rates.
        words: each occurs in the id or state of the rounds and streams to show.
        height: lines of the terminal; None: there is room for all rounds.
        trouble: why there is no later look.
    """
    if now is None:
        return Group(_title(address, ""), Text(plain(trouble), style="red"))
    per_second = _Rates(before, now)
    style = "dim" if trouble else ""
    head: list[RenderableType] = [
        _title(address, f"version {now.servers[0].version}, {now.servers[0].engine_description}"),
        _rounds_line(now, per_second),
        Text("memory   " + "; ".join(_memory(now.servers, i) for i in range(len(now.servers)))),
        *([Text(plain(trouble), style="bold red")] if trouble else []),
    ]
    streams = [info for info in now.streams if _passes(words, _id(info))]
    if streams:
        shown = streams if height is None else streams[: max(1, height // 3)]
        rows = [_stream_cells(info, per_second) for info in shown]
        head.append(_table("STREAM", _STREAM_COLUMNS, rows, on.width, style))
        head.append(Text(f"{len(streams) - len(shown)} more streams" if shown != streams else "", style="dim"))
    matching = [info for info in now.rounds if _passes(words, _id(info), info.state)]
    matching.sort(key=lambda info: _order(info, per_second))
    notes = [Text(plain(now.notes[info.name])) for info in matching if info.name in now.notes]
    while height is not None and notes and _num_lines(on, notes) > height // 4:
        notes.pop()
    room = len(matching)
    if height is not None:  # without the titles of the rounds and the foot
        room = max(1, height - _num_lines(on, head) - _num_lines(on, notes) - 2)
    rows = [_round_cells(info, per_second) for info in matching[:room]]
    foot = [f"1–{room} of {len(matching)} rounds"] if len(matching) > room else []
    foot += [f"filter: {words} ({len(matching)} of {len(now.rounds)} rounds)"] if words else []
    last = [Text(plain("  ".join(foot)), style="dim", no_wrap=True, overflow="ellipsis")] if foot else []
    return Group(*head, _table("ROUND", _ROUND_COLUMNS, rows, on.width, style), *notes, *last)


def _passes(words: str, *texts: str) -> bool:
    """Returns whether each of the words occurs in one of ``texts``."""
    return all(word in " ".join(texts).lower() for word in words.lower().split())


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


@dataclasses.dataclass(frozen=True)
class Look:
    """A server or a cluster at one moment.

    Attributes:
        at: seconds of the monotonic clock.
        servers: those of a cluster in the order of their rounds.
        streams: empty for a cluster, and for a server that is older than streams.
        notes: by the name of a round, a line about it below the rounds.
    """

    at: float
    servers: tuple[ServerInfo, ...]
    rounds: tuple[RoundInfo, ...]
    streams: tuple[StreamInfo, ...]
    notes: dict[str, str] = dataclasses.field(default_factory=dict)


class Servers:
    """The clients of one server, or of all servers of a cluster. ``close`` ends a look that is under way.

    Args:
        addresses: of the servers, in the order of their rounds.
        options: of ``Client``.
    """

    def __init__(self, addresses: Sequence[str], **options: Any) -> None:
        self._clients = [Client(address, **options) for address in addresses]
        self.address = ",".join(client.address for client in self._clients)
        self._lists: dict[tuple[str, Any], Listed] = {}  # of done rounds, whose lists do not change

    def close(self) -> None:
        """Closes the connections."""
        for client in self._clients:
            client.close()

    def look(self) -> Look:
        """Asks all servers; a round of a cluster occurs once.

        Raises:
            SparseaggError: a server does not answer.
        """
        with concurrent.futures.ThreadPoolExecutor(len(self._clients)) as pool:
            try:
                looks = list(pool.map(_look_at, self._clients))
            except KeyboardInterrupt:
                self.close()  # ends the looks that are under way, for which the executor waits
                raise
        return looks[0] if len(looks) == 1 else self._joined(looks)

    def _joined(self, looks: list[Look]) -> Look:
        rounds: list[RoundInfo] = []
        parts: dict[str, dict[int, RoundInfo]] = {}  # by name and server
        for info in (info for look in looks for info in look.rounds):
            if info.spec.cluster is None:
                rounds.append(info)
            else:
                parts.setdefault(info.name, {})[info.spec.cluster.index] = info
        notes = {}
        for name, by_index in parts.items():
            own = [by_index[index] for index in sorted(by_index)]
            key = (name, own[0].create_time)
            if key not in self._lists and own[0].state == "done":
                found = read_list(self._clients[0].get_round(name))
                if found is not None:
                    self._lists[key] = found
            rounds.append(cluster_info(cluster_spec(own[0].spec), {}, own, self._lists.get(key)))
            notes[name] = _note(by_index, self._lists.get(key))
        return dataclasses.replace(
            looks[0], rounds=tuple(rounds), notes=notes, servers=tuple(look.servers[0] for look in looks)
        )


def _look_at(client: Client) -> Look:
    server = client.server_info()
    rounds = tuple(found.info for found in client.list_rounds())
    streams: tuple[StreamInfo, ...] = ()
    with contextlib.suppress(UnimplementedError):
        streams = tuple(found.info for found in client.list_streams())
    return Look(time.monotonic(), (server,), rounds, streams)


def _note(by_index: dict[int, RoundInfo], found: Listed | None) -> str:
    """Returns a line: bytes on each server, seconds of each step, and the slowest range."""
    sizes = ", ".join(f"{index}: {decimal(info.num_bytes, 'B')}" for index, info in sorted(by_index.items()))
    text = f"{next(iter(by_index.values())).name.partition('/')[2]}  on server {sizes}"
    if found is None:
        return text
    parts, about = found
    text += "; " + ", ".join(f"{step} {seconds:.2f} s" for step, seconds in about["times"].items())
    if parts:
        slowest = max(parts, key=lambda part: part.seconds)
        end = "" if slowest.end is None else slowest.end
        text += f"; slowest of {len(parts)} ranges {slowest.tensor} {slowest.begin}–{end}: {slowest.seconds:.2f} s"
    return text
