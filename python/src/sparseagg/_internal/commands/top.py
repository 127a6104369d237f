"""``sparseagg top``: the rounds of a running server or cluster, live in a terminal."""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import math
import operator
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sparseagg._internal.base.text import binary_size, decimal, plain
from sparseagg._internal.client.blocking_client import Client
from sparseagg._internal.client.endpoint import addresses_of
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


def main(arguments: argparse.Namespace) -> int:
    """Runs the command; returns the exit status. ``SparseaggError``: a wrong flag, or no answer to ``--once``."""
    interval_s = arguments.interval
    if not (math.isfinite(interval_s) and interval_s >= _MIN_INTERVAL_S):
        raise InvalidArgumentError(f"--interval must be a time of {_MIN_INTERVAL_S} s or more, got {interval_s:g}")
    options = {**client_options(arguments), "timeout": _CALL_TIMEOUT_S, "retry": RetryPolicy(attempts=1)}
    with contextlib.closing(Servers(addresses_of(arguments.address), **options)) as servers:
        if arguments.once:
            on, _ = _console()
            on.print(view(on, servers.address, servers.look(), None, arguments.filter))
        else:
            with contextlib.suppress(KeyboardInterrupt):
                watch(servers, interval_s, arguments.filter)
    return 0


def watch(servers: Servers, interval_s: float, words: str) -> None:
    """Looks and draws until an interrupt; where there is no screen, each view below the one before."""
    on, is_screen = _console()
    now: Look | None = None
    live = Live(console=on, screen=True, auto_refresh=False, vertical_overflow="crop") if is_screen else None
    with live or contextlib.nullcontext():
        while True:
            due = time.monotonic() + interval_s
            before, trouble = now, ""
            try:
                now = servers.look()
            except SparseaggError as error:
                before = None
                trouble = "no answer" if now is None else f"no answer for {time.monotonic() - now.at:.0f} s"
                trouble += f", asks again every {interval_s:g} s; {type(error).__name__}: {error}"
            height = shutil.get_terminal_size().lines - (not is_screen) if sys.stdout.isatty() else None
            shown = view(on, servers.address, now, before, words, height, trouble)
            if live is not None:
                live.update(shown, refresh=True)
            else:
                on.print(shown, end="\n\n")
                sys.stdout.flush()
            time.sleep(max(0.0, due - time.monotonic()))


def _console() -> tuple[Console, bool]:
    """Returns the console on standard output, and whether it can place its cursor: if not, it gets plain text."""
    is_terminal = sys.stdout.isatty()
    if is_terminal and os.environ.get("TERM", "") not in ("", "dumb", "unknown"):
        return Console(), True
    width, height = shutil.get_terminal_size()
    # With a height, too: otherwise rich takes 80 columns for a dumb terminal, whatever its width.
    return Console(highlight=False, width=width if is_terminal else 400, height=height, color_system=None), False


@dataclasses.dataclass(frozen=True)
class Look:
    """A server or a cluster at one moment."""

    at: float  # of the monotonic clock
    servers: tuple[ServerInfo, ...]  # of a cluster, in the order of their rounds
    rounds: tuple[RoundInfo, ...]
    streams: tuple[StreamInfo, ...]  # none of a cluster, nor of a server that is older than streams
    notes: dict[str, str] = dataclasses.field(default_factory=dict)  # below the rounds, by their names


class Servers:
    """The clients of one server, or of all servers of a cluster, in the order of their rounds."""

    def __init__(self, addresses: Sequence[str], **options: Any) -> None:
        self._clients = [Client(address, **options) for address in addresses]
        self.address = ",".join(client.address for client in self._clients)
        self._lists: dict[tuple[str, Any], Listed] = {}  # of done rounds, whose lists do not change

    def close(self) -> None:
        """Closes the connections, which ends a look that is under way."""
        for client in self._clients:
            client.close()

    def look(self) -> Look:
        """Asks all servers; a round of a cluster occurs once. ``SparseaggError``: a server does not answer."""
        with concurrent.futures.ThreadPoolExecutor(len(self._clients)) as pool:
            try:
                looks = list(pool.map(_look_at, self._clients))
            except KeyboardInterrupt:
                self.close()  # ends the looks that are under way, for which the executor waits
                raise
        return looks[0] if len(looks) == 1 else self._joined(looks)

    def _joined(self, looks: list[Look]) -> Look:
        infos = [info for look in looks for info in look.rounds]
        rounds = [info for info in infos if info.spec.cluster is None]
        parts: dict[str, dict[int, RoundInfo]] = {}  # by name and server
        for info in infos:
            if info.spec.cluster is not None:
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
            sizes = ", ".join(f"{index}: {decimal(by_index[index].num_bytes, 'B')}" for index in sorted(by_index))
            notes[name] = f"{_id(own[0])}  on server {sizes}" + _steps(self._lists.get(key))
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


def _steps(found: Listed | None) -> str:
    """Returns the seconds of each step of a cluster's close, and the slowest range."""
    if found is None:
        return ""
    text = "; " + ", ".join(f"{step} {seconds:.2f} s" for step, seconds in found[1]["times"].items())
    if found[0]:
        part = max(found[0], key=lambda part: part.seconds)
        end = "" if part.end is None else part.end
        text += f"; slowest of {len(found[0])} ranges {part.tensor} {part.begin}–{end}: {part.seconds:.2f} s"
    return text


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


def _id(info: RoundInfo | StreamInfo) -> str:
    return info.name.partition("/")[2]


def _received(info: RoundInfo) -> float:
    return next((stage.bytes for stage in info.timeline.stages if stage.stage == "receive"), info.num_bytes)


_tuples = operator.attrgetter("num_tuples")


def _longest(info: RoundInfo) -> str:
    return info.timeline.longest if any(stage.busy or stage.wait for stage in info.timeline.stages) else "–"


def _last_cut(info: StreamInfo) -> str:
    return f"{info.last_cut_cause} {info.last_cut_time.astimezone():%H:%M:%S}" if info.last_cut_time else "–"


def _staleness(info: StreamInfo) -> tuple[str, str]:
    """Returns the mean and the largest staleness of the commits."""
    counts = info.staleness_counts
    if sum(counts) == 0:
        return "–", "–"
    mean = sum(t * count for t, count in enumerate(counts)) / sum(counts)
    return f"{mean:.1f}", str(max(t for t, count in enumerate(counts) if count))


class _Column(NamedTuple):
    title: str
    width: int
    rank: int  # a narrow terminal loses the column of the highest rank first, and 0 never
    cell: Callable[[Any, _Rates], str]


_ROUND_COLUMNS = (
    _Column("STATE", 10, 0, lambda info, _: info.state),
    _Column("SUBMITTED", 9, 0, lambda info, _: str(info.num_submissions)),
    _Column("REFUSED", 7, 1, lambda info, _: str(info.num_refused)),
    _Column("UPLOADS", 7, 4, lambda info, _: str(info.num_uploads)),
    _Column("TUPLES", 7, 3, lambda info, _: decimal(info.num_tuples)),
    _Column("BYTES", 7, 0, lambda info, _: decimal(_received(info), "B")),
    _Column("BYTES/S", 7, 2, lambda info, per_second: per_second.text(info, _received, "B")),
    _Column("TUPLES/S", 8, 5, lambda info, per_second: per_second.text(info, _tuples)),
    _Column("LONGEST", 10, 6, lambda info, _: _longest(info)),
)
_STREAM_COLUMNS = (
    _Column("VERSION", 7, 0, lambda info, _: str(info.version)),
    _Column("BUFFERED", 12, 0, lambda info, _: f"{info.num_buffered} of {info.buffer}"),
    _Column("COMMITS", 7, 2, lambda info, _: decimal(info.num_commits)),
    _Column("REFUSED", 7, 1, lambda info, _: str(info.num_refused)),
    _Column("COMMITS/S", 9, 1, lambda info, per_second: per_second.text(info, operator.attrgetter("num_commits"))),
    _Column("STALENESS", 9, 4, lambda info, _: _staleness(info)[0]),
    _Column("MOST", 4, 5, lambda info, _: _staleness(info)[1]),
    _Column("LAST CUT", 17, 3, lambda info, _: _last_cut(info)),
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
    """Returns the screen of a look, with rates since ``before``, and with ``trouble``, why there is no later one.

    ``words``: each occurs in the id or state of what is shown. ``height``: lines of the terminal; None: any number.
    """
    title = Text.assemble(("sparseagg top", "bold"), f"  {plain(address)}  ")
    if now is None:
        return Group(title, Text(plain(trouble), style="red"))
    per_second, style = _Rates(before, now), "dim" if trouble else ""
    title.append(plain(f"version {now.servers[0].version}, {now.servers[0].engine_description}"))
    states = [info.state for info in now.rounds]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)) or "none"
    counts += f"; {sum(info.num_uploads for info in now.rounds)} open uploads"
    if per_second.seconds > 0:
        num_bytes, num_tuples = (sum(per_second(info, each) for info in now.rounds) for each in (_received, _tuples))
        counts += f"; {decimal(num_bytes, 'B')}/s, {decimal(num_tuples)} tuples/s"
    memory = "; ".join(f"{i}: " * (len(now.servers) > 1) + _memory(each) for i, each in enumerate(now.servers))
    head: list[RenderableType] = [title, Text(plain(f"rounds   {counts}")), Text(f"memory   {memory}")]
    head += [Text(plain(trouble), style="bold red")] if trouble else []
    streams = [info for info in now.streams if _passes(words, _id(info))]
    if streams:
        shown = streams if height is None else streams[: max(1, height // 3)]
        head.append(_table("STREAM", _STREAM_COLUMNS, shown, per_second, on.width, style))
        head.append(Text(f"{len(streams) - len(shown)} more streams" if shown != streams else "", style="dim"))
    matching = [info for info in now.rounds if _passes(words, _id(info), info.state)]
    matching.sort(key=lambda info: _order(info, per_second))
    notes = [Text(plain(now.notes[info.name])) for info in matching if info.name in now.notes]
    while height is not None and notes and _num_lines(on, notes) > height // 4:
        notes.pop()
    room = len(matching)
    if height is not None:  # without the titles of the rounds and the foot
        room = max(1, height - _num_lines(on, head) - _num_lines(on, notes) - 2)
    foot = [f"1–{room} of {len(matching)} rounds"] if len(matching) > room else []
    foot += [f"filter: {words} ({len(matching)} of {len(now.rounds)} rounds)"] if words else []
    last = [Text(plain("  ".join(foot)), style="dim", no_wrap=True, overflow="ellipsis")] if foot else []
    return Group(*head, _table("ROUND", _ROUND_COLUMNS, matching[:room], per_second, on.width, style), *notes, *last)


def _passes(words: str, *texts: str) -> bool:
    """Returns whether each of the words occurs in one of ``texts``."""
    return all(word in " ".join(texts).lower() for word in words.lower().split())


def _order(info: RoundInfo, per_second: _Rates) -> tuple[bool, float, float]:
    """Orders rounds: active ones first, then by rate, then the newest first."""
    created = info.create_time.timestamp() if info.create_time else 0.0
    return info.state not in ("open", "sealed", "finalizing"), -per_second(info, _received), -created


def _num_lines(on: Console, parts: Sequence[RenderableType]) -> int:
    return len(on.render_lines(Group(*parts), pad=False)) if parts else 0


def _memory(server: ServerInfo) -> str:
    """Returns the memory of a server's process and its limit, as far as the server tells the caller."""
    used, limit = server.activity, server.limits.memory_limit_bytes
    text = f"process {binary_size(used.resident_bytes)}, " if used and used.resident_bytes else ""
    return text + f"limit {binary_size(limit) if limit else 'none'}"


def _table(
    title: str, columns: Sequence[_Column], infos: Sequence[Any], per_second: _Rates, width: int, style: str
) -> Table:
    """Returns a table of at most ``width`` characters: a narrow one has fewer columns, and shorter names."""
    kept = list(columns)
    while (room := width - sum(column.width + 1 for column in kept) - 1) < _MIN_NAME_WIDTH and any(
        c.rank for c in kept
    ):
        kept.remove(max(kept, key=lambda column: column.rank))
    name_width = max([len(title), *(min(len(_id(info)), room) for info in infos)])
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), style=style, header_style="bold")
    table.add_column(title, no_wrap=True, width=name_width)
    for column in kept:
        is_left = column.title in ("STATE", "LONGEST", "LAST CUT")
        table.add_column(column.title, no_wrap=True, width=column.width, justify="left" if is_left else "right")
    for info in infos:
        name = plain(_id(info))
        if len(name) > name_width:  # without its middle: ends tell names apart
            name = f"{name[: (name_width - 1) // 2]}…{name[-(name_width // 2) :]}"
        cells = [Text(plain(column.cell(info, per_second))) for column in kept]
        cells[0].stylize(_STYLES.get(cells[0].plain, ""))
        table.add_row(Text(name), *cells)
    return table
