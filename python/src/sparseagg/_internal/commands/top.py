"""``sparseagg top``: the rounds of a running server or cluster, live in a terminal."""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import math
import time
from collections.abc import Sequence
from typing import Any

from sparseagg._internal.base.sizes import decimal
from sparseagg._internal.client.blocking_client import Client
from sparseagg._internal.client.channel import addresses_of
from sparseagg._internal.client.retry import RetryPolicy
from sparseagg._internal.commands import credentials_flags
from sparseagg._internal.results.info import RoundInfo
from sparseagg._internal.results.server_info import ServerInfo
from sparseagg._internal.results.streams import StreamInfo
from sparseagg.cluster.published import Listed, read_list
from sparseagg.cluster.server_rounds import cluster_info, cluster_spec
from sparseagg.errors import InvalidArgumentError, UnimplementedError

__all__ = ["DESCRIPTION", "Look", "Servers", "add_arguments", "main"]

DESCRIPTION = (
    "Shows the rounds of a running server, live: state, submissions, rates and memory. The key q ends it, / filters, "
    "the arrow keys scroll. Through a pipe, and on a terminal of TERM=dumb, it prints a plain table at each refresh, "
    "until it is interrupted. With the addresses of a cluster's servers, with commas: rounds over all of them, bytes "
    "on each, and seconds of each step."
)

_CALL_TIMEOUT_S = 5.0
_MIN_INTERVAL_S = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    text = "time between two refreshes (default: %(default)s)"
    parser.add_argument("--interval", type=float, default=2.0, metavar="SECONDS", help=text)
    text = "show only rounds and streams whose id or state has each word of TEXT"
    parser.add_argument("--filter", default="", metavar="TEXT", help=text)
    parser.add_argument("--once", action="store_true", help="print one view, without rates, and end")


def main(arguments: argparse.Namespace) -> int:
    """Runs the command, and returns the exit status.

    Raises:
        InvalidArgumentError: a flag has a wrong value.
        SparseaggError: with ``--once``, a server does not answer.
    """
    if not (math.isfinite(arguments.interval) and arguments.interval >= _MIN_INTERVAL_S):
        raise InvalidArgumentError(
            f"--interval must be a time of {_MIN_INTERVAL_S} s or more, got {arguments.interval:g}"
        )
    from sparseagg._internal.commands import top_view  # rich takes a tenth of a second

    options = credentials_flags.client_options(arguments)
    options.update(timeout=_CALL_TIMEOUT_S, retry=RetryPolicy(attempts=1))
    window = top_view.Window(arguments.filter)
    with contextlib.closing(Servers(addresses_of(arguments.address), **options)) as servers:
        if arguments.once:
            top_view.print_once(servers, window)
            return 0
        with contextlib.suppress(KeyboardInterrupt):
            top_view.watch(servers, arguments.interval, window)
    return 0


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
            looks = list(pool.map(_look_at, self._clients))
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
