"""What ``sparseagg top`` knows of a server: looks at it, and rates between two looks."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import http.client
import re
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Optional

from sparseagg._internal.client.blocking_client import Client
from sparseagg._internal.results.info import RoundInfo
from sparseagg._internal.results.server_info import ServerInfo
from sparseagg._internal.results.streams import StreamInfo
from sparseagg.errors import InvalidArgumentError, UnimplementedError

__all__ = ["Look", "Rate", "check_metrics_url", "commit_rates", "look_at", "rates", "received_bytes"]

_METRICS_TIMEOUT_S = 2.0
_MAX_METRICS_BYTES = 4 << 20
# A sample without labels: name and value.
_SAMPLE = re.compile(r"^([a-z_]+) (\S+)$", re.MULTILINE)
# Metrics answer in the cluster or on this machine, where no proxy helps.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))

# A round's identity. A restarted server, or a deleted round, can give a name to another round.
_Key = tuple[str, Optional[datetime.datetime]]


@dataclasses.dataclass(frozen=True)
class Look:
    """A server at one moment.

    Attributes:
        at: seconds of the monotonic clock.
        metrics: values of metrics without labels, by name; empty if nobody asked, or if ``metrics_error`` says why not.
        notes: by the name of a round, a line about it below the rounds.
        other_servers: the further servers of a cluster.
        streams: none of a server that is older than streams.
    """

    at: float
    server: ServerInfo
    rounds: tuple[RoundInfo, ...]
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    metrics_error: str = ""
    notes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    streams: tuple[StreamInfo, ...] = ()
    other_servers: tuple[ServerInfo, ...] = ()


@dataclasses.dataclass(frozen=True)
class Rate:
    """What came in each second: bytes of messages, and tuples of committed submissions."""

    bytes: float = 0.0
    tuples: float = 0.0


def check_metrics_url(url: str) -> None:
    """Raises ``InvalidArgumentError`` if ``url`` is no address that HTTP reads."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidArgumentError(f"--metrics must be a URL such as http://127.0.0.1:8002/metrics, got {url!r}")


def look_at(client: Client, metrics_url: str | None) -> Look:
    """Asks the server for itself and all its rounds and streams, and reads its metrics if there is a URL.

    Raises:
        SparseaggError: the server does not answer. Metrics that do not answer are no error.
    """
    server = client.server_info()
    rounds = tuple(found.info for found in client.list_rounds())
    streams: tuple[StreamInfo, ...] = ()
    with contextlib.suppress(UnimplementedError):
        streams = tuple(found.info for found in client.list_streams())
    look = Look(time.monotonic(), server, rounds, streams=streams)
    if metrics_url is None:
        return look
    try:
        return dataclasses.replace(look, metrics=_read_metrics(metrics_url))
    except (OSError, ValueError, http.client.HTTPException) as error:
        return dataclasses.replace(look, metrics_error=f"{metrics_url}: {error}")


def received_bytes(info: RoundInfo) -> int:
    """Returns the bytes that the round's uploads have received, committed or not."""
    return next((stage.bytes for stage in info.timeline.stages if stage.stage == "receive"), info.num_bytes)


def rates(before: Look | None, now: Look) -> dict[str, Rate]:
    """Returns the rates of the rounds of ``now``, by name; nothing without an earlier look.

    A round that is new since ``before`` began at zero.
    """
    if before is None or now.at <= before.at:
        return {}
    seconds = now.at - before.at
    earlier: dict[_Key, RoundInfo] = {(info.name, info.create_time): info for info in before.rounds}
    found = {}
    for info in now.rounds:
        old = earlier.get((info.name, info.create_time))
        num_bytes = received_bytes(info) - (received_bytes(old) if old else 0)
        num_tuples = info.num_tuples - (old.num_tuples if old else 0)
        found[info.name] = Rate(num_bytes / seconds, num_tuples / seconds)
    return found


def commit_rates(before: Look | None, now: Look) -> dict[str, float]:
    """Returns the commits a second of the streams of ``now``, by name; nothing without an earlier look."""
    if before is None or now.at <= before.at:
        return {}
    earlier: dict[_Key, int] = {(info.name, info.create_time): info.num_commits for info in before.streams}
    seconds = now.at - before.at
    return {  # a server that was started again counts from 0
        info.name: max(0, info.num_commits - earlier.get((info.name, info.create_time), 0)) / seconds
        for info in now.streams
    }


def _read_metrics(url: str) -> dict[str, float]:
    with _OPENER.open(url, timeout=_METRICS_TIMEOUT_S) as answer:
        text = answer.read(_MAX_METRICS_BYTES).decode("utf-8", errors="replace")
    found = {name: float(value) for name, value in _SAMPLE.findall(text)}
    if not found:
        raise ValueError("no metrics in Prometheus's text format")
    return found
