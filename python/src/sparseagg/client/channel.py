"""What a channel to a server is opened with: address, options, credentials and metadata."""

from __future__ import annotations

import os
import pathlib
import re
import sys
from typing import Any, Union

import grpc

from sparseagg.arguments import checked_integer, checked_text, shown
from sparseagg.errors import InvalidArgument

__all__ = [
    "TLS",
    "channel_options",
    "checked_address",
    "checked_connections",
    "credentials",
    "metadata",
]

# False: plain. True: TLS, with the system's certificate authorities. A path: TLS, with those in that PEM file.
TLS = Union[bool, str, "os.PathLike[str]", grpc.ChannelCredentials]

_HOST_AND_PORT = re.compile(r"(\[[^]\s]+\]|[^][:/\s]+):(\d{1,5})")
# gRPC's other ways to name a server. gRPC asks the name service for a host with the name of any other scheme.
_SCHEMES = re.compile(r"(dns|ipv4|ipv6|unix|unix-abstract|vsock|xds):")
_LOOPBACK = re.compile(
    r"(.*[:/])?(localhost\.?|127\.\d+\.\d+\.\d+|\[::1\]|\[::ffff:127\.\d+\.\d+\.\d+\]):\d+", re.IGNORECASE
)


def checked_address(address: Any, what: str = "an address") -> str:
    """Returns a server's address; ``what`` is the argument's name, for the error.

    Raises:
        InvalidArgument: no address. gRPC would look for it, or for a port of gRPC's choice, until the last retry.
    """
    text = checked_text(what, address)
    match = _HOST_AND_PORT.fullmatch(text)
    if _SCHEMES.match(text) or (match and 0 < int(match[2]) < 1 << 16):
        return text
    raise InvalidArgument(f'{what} is "host:port", such as "localhost:8001", not {shown(address)}')


def channel_options(address: str, extra: list[tuple[str, Any]] | None) -> list[tuple[str, Any]]:
    """Returns the options of a channel to ``address``: our defaults, replaced by the caller's where both have one.

    Raises:
        InvalidArgument: ``extra`` is no list of pairs (name, value).
    """
    if not isinstance(extra, (list, tuple, type(None))) or not all(map(_is_option, extra or ())):
        raise InvalidArgument(
            f"options is a list of pairs (name, value), not {shown(extra)}; a value is an integer or a string"
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
        "grpc.enable_http_proxy": 0 if _LOOPBACK.fullmatch(address) else 1,
    }
    return list({**options, **dict(extra or ())}.items())  # each once: gRPC takes the first of two


def _is_option(pair: Any) -> bool:
    """Returns whether gRPC takes this option; otherwise gRPC would raise at the first call only."""
    if not isinstance(pair, tuple) or len(pair) != 2:
        return False
    return isinstance(pair[0], str) and isinstance(pair[1], (int, str, bytes))


def credentials(tls: TLS) -> grpc.ChannelCredentials | None:
    """Returns the credentials of a channel; None for a plain one.

    Raises:
        InvalidArgument: ``tls`` is none of what ``TLS`` lists, or a file without a certificate.
        OSError: the file cannot be read.
    """
    if tls is False:
        return None
    if tls is True:
        return grpc.ssl_channel_credentials()
    if isinstance(tls, os.PathLike) or (isinstance(tls, str) and tls):
        pem = pathlib.Path(tls).read_bytes()
        if b"-----BEGIN" not in pem:  # gRPC would look for it at every attempt to connect
            raise InvalidArgument(f"tls: {os.fspath(tls)} has no certificate in PEM")
        return grpc.ssl_channel_credentials(pem)
    if isinstance(tls, grpc.ChannelCredentials):
        return tls
    raise InvalidArgument(f"tls is False, True, the path of a PEM file, or credentials of gRPC, not {shown(tls)}")


def checked_connections(connections: Any) -> int:
    """Returns the number of connections that a client may make; ``InvalidArgument`` if it is not 1 or more."""
    return checked_integer("connections is a number from 1 on", connections, 1, sys.maxsize)


def metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    """Returns the metadata of every call: the bearer token, if there is one.

    Raises:
        InvalidArgument: ``token`` is no printable ASCII. The error does not show the token.
    """
    if token is None:
        return ()
    if not isinstance(token, str) or re.fullmatch("[ -~]*", token) is None:
        raise InvalidArgument("a token is a string of printable ASCII, without the end of a line; this one is not")
    return (("authorization", f"Bearer {token}"),)
