"""What a channel to a server is opened with: address, options and number of connections."""

from __future__ import annotations

import re
import sys
from typing import Any

from sparseagg._internal.base.arguments import checked_integer, checked_text, shown
from sparseagg._internal.base.credentials import is_local
from sparseagg.errors import InvalidArgumentError

__all__ = ["addresses_of", "channel_options", "checked_address", "checked_connections", "host_and_port"]

_HOST_AND_PORT = re.compile(r"(\[[^]\s]+\]|[^][:/\s]+):(\d{1,5})")
# gRPC's other ways to name a server. gRPC asks the name service for a host with the name of any other scheme.
_SCHEMES = re.compile(r"(dns|ipv4|ipv6|unix|vsock|xds):")


def checked_address(address: Any, what: str = "an address") -> str:
    """Returns a server's address; ``what`` is the argument's name, for the error.

    Raises:
        InvalidArgumentError: no address. gRPC would look for it, or for a port of gRPC's choice, until the last retry.
    """
    text = checked_text(what, address)
    if all(_SCHEMES.match(each) or host_and_port(each) for each in addresses_of(text)):
        return text
    raise InvalidArgumentError(f'{what} must be "host:port", such as "localhost:8001", got {shown(address)}')


def addresses_of(address: str) -> list[str]:
    """Returns the addresses of several servers, which commas divide; gRPC's own schemes have their own commas."""
    return [address] if _SCHEMES.match(address) else address.split(",")


def host_and_port(address: str) -> tuple[str, int] | None:
    """Returns the parts of "host:port", the host without brackets; None for an address of another form."""
    match = _HOST_AND_PORT.fullmatch(address)
    if match is None or not 0 < int(match[2]) < 1 << 16:
        return None
    return match[1].strip("[]"), int(match[2])


def channel_options(address: str, extra: list[tuple[str, Any]] | None) -> list[tuple[str, Any]]:
    """Returns the options of a channel to ``address``: our defaults, replaced by the caller's where both have one.

    Raises:
        InvalidArgumentError: ``extra`` is no list of pairs (name, value).
    """
    if not isinstance(extra, (list, tuple, type(None))) or not all(map(_is_option, extra or ())):
        raise InvalidArgumentError(
            f"options must be a list of pairs (name, value), got {shown(extra)}; a value is an integer or a string"
        )
    options = {
        "grpc.max_receive_message_length": -1,  # the server bounds its pages
        "grpc.max_send_message_length": -1,
        "grpc.use_local_subchannel_pool": 1,  # one connection for each channel
        "grpc.initial_reconnect_backoff_ms": 100,
        "grpc.min_reconnect_backoff_ms": 100,
        "grpc.max_reconnect_backoff_ms": 2000,
        # Pings a server that is silent during a call. Without pings, a call would wait for ever for a server that hangs
        # or that a broken network hides. Our servers take a ping every ten seconds.
        "grpc.keepalive_time_ms": 20_000,
        "grpc.keepalive_timeout_ms": 20_000,
        "grpc.http2.max_pings_without_data": 0,  # no limit
        # A proxy cannot reach this machine's loopback.
        "grpc.enable_http_proxy": 0 if is_local(address) else 1,
    }
    return list({**options, **dict(extra or ())}.items())  # each once: gRPC takes the first of two


def _is_option(pair: Any) -> bool:
    """Returns whether gRPC takes this option; otherwise gRPC would raise at the first call only."""
    if not isinstance(pair, tuple) or len(pair) != 2:
        return False
    return isinstance(pair[0], str) and isinstance(pair[1], (int, str, bytes))


def checked_connections(connections: Any) -> int:
    """Returns the number of connections that a client may make; ``InvalidArgumentError`` if it is not 1 or more."""
    return checked_integer("connections must be a number from 1 on", connections, 1, sys.maxsize)
