"""How a channel to the server is made; shared by the sync and the asyncio client."""

from __future__ import annotations

import os
import pathlib
from typing import Any, Union

import grpc

from sparseagg.arguments import checked_text, shown
from sparseagg.errors import InvalidArgument

__all__ = ["TLS", "channel_options", "checked_connections", "credentials", "metadata", "round_name"]

# False: plain; True: the system's certificate authorities; a path: those in this PEM file; or credentials of one's own.
TLS = Union[bool, str, "os.PathLike[str]", grpc.ChannelCredentials]


def channel_options(extra: list[tuple[str, Any]] | None) -> list[tuple[str, Any]]:
    """Returns our defaults, then the caller's."""
    return [
        ("grpc.max_receive_message_length", -1),  # the server bounds its pages
        ("grpc.max_send_message_length", -1),
        ("grpc.use_local_subchannel_pool", 1),  # one connection for each channel
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2000),
        # Asks a server that is silent during a call whether it is there: one that hangs, or is behind a network that
        # drops everything, would be waited for for ever. Servers take a ping every ten seconds.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.max_pings_without_data", 0),  # as many as it takes
        *(extra or []),
    ]


def credentials(tls: TLS) -> grpc.ChannelCredentials | None:
    """Returns what to secure the channel with, or None for a plain one."""
    if tls is False:
        return None
    if tls is True:
        return grpc.ssl_channel_credentials()
    if isinstance(tls, (str, os.PathLike)):
        return grpc.ssl_channel_credentials(pathlib.Path(tls).read_bytes())
    return tls


def checked_connections(connections: Any) -> int:
    """Returns how many connections a client may make at most."""
    if isinstance(connections, bool) or not isinstance(connections, int) or connections < 1:
        raise InvalidArgument(f"connections is a number from 1 on, not {shown(connections)}")
    return connections


def metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    """Returns what every call carries."""
    return () if token is None else (("authorization", f"Bearer {checked_text('a token', token)}"),)


def round_name(name: str) -> str:
    """Returns "rounds/{id}" of a name or an id."""
    name = checked_text("a round's name", name)
    return name if name.startswith("rounds/") else f"rounds/{name}"
