"""Why a call has not reached its server: nobody listens there, or somebody who speaks another protocol.

gRPC's own text names only the last of a host's addresses, and says "Socket closed" of a server with TLS, "wrong version
number" of every port without it. So this module looks itself: it opens a connection of its own, once the call has
failed, sends nothing but a greeting, and tells what to do about the answer.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import time
from typing import NamedTuple

import grpc

from sparseagg._internal.base.credentials import is_local
from sparseagg._internal.client.endpoint import host_and_port

# How gRPC begins the text of an UNAVAILABLE for which it had no connection.
_NOT_CONNECTED = re.compile(
    "failed to connect to all addresses|connections to all backends failing|DNS resolution failed|errors resolving"
)
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")  # where gRPC looks for one

# What gRPC says of a certificate that it refuses, and what to do.
_UNTRUSTED = (
    (
        re.compile("CERTIFICATE_VERIFY_FAILED"),
        "the certificate is of no authority that this client trusts: tls=FILE names the PEM file of its authorities "
        "(--tls-ca FILE for commands)",
    ),
    (
        re.compile("not in peer certificate|Hostname Verification"),
        "the certificate is for other names than this address: use a name that it has",
    ),
)


class Obstacle(NamedTuple):
    """Why a call has not reached its server."""

    text: str  # what is wrong, and what to do
    # nobody listens there, which changes when a server starts; otherwise the client, or its address, is not for what
    # listens there
    is_absence: bool


def has_not_connected(error: grpc.RpcError) -> bool:
    """Returns whether a call failed since gRPC could not connect, rather than by the word of a server."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and bool(_NOT_CONNECTED.match(error.details() or ""))


def may_look(address: str, uses_proxy: bool) -> bool:
    """Returns whether this process reaches the address as gRPC does: not where gRPC goes through a proxy."""
    by_proxy = uses_proxy and not is_local(address) and any(os.environ.get(name) for name in _PROXIES)
    return _target(address) is not None and not by_proxy


def find_obstacle(address: str, has_tls: bool, details: str, timeout_s: float) -> Obstacle | None:
    """Returns why a client does not reach what listens at an address; None if that cannot be told.

    Blocks: for ``timeout_s`` at most where the address is silent, far shorter otherwise; looks up the host's name.
    ``details`` is gRPC's text for the failure.
    """
    until = time.monotonic() + timeout_s
    try:
        with _connected(address, until) as connection:
            greeting = _tls_greeting(connection, address)
    except (ConnectionRefusedError, FileNotFoundError):
        return Obstacle(
            f"nothing listens at {address}: is a server running? (`sparseagg server` starts one)", is_absence=True
        )
    except socket.gaierror:
        return Obstacle(f"there is no host of the name in {address}: is the address right?", is_absence=True)
    except OSError:  # silent, or not to be reached from here
        return None
    if greeting is not None:
        return _obstacle_of_tls(address, has_tls, greeting, details)
    try:
        with _connected(address, until) as connection:
            # How HTTP/2 begins. A server of HTTP/1 refuses it as a whole request. One of HTTP/2 waits for more: it does
            # not hang up, which could take its own first words back.
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\n")
            answer = connection.recv(16)
    except OSError:
        return None
    if answer.startswith(b"HTTP/"):
        return _http(address)
    if has_tls and _is_http2(answer):
        return Obstacle(
            f"the server at {address} has no TLS, and this client uses it: leave out tls (--tls… for commands, "
            "SPARSEAGG_TLS_CA of the environment), or give the address of a server with TLS",
            is_absence=False,
        )
    return None


def _obstacle_of_tls(address: str, has_tls: bool, greeting: _Greeting, details: str) -> Obstacle | None:
    """Returns what keeps a client from a server with TLS."""
    if not greeting.is_http2:
        return _http(address)
    if not has_tls:
        return Obstacle(
            f"the server at {address} uses TLS, and this client does not: give it tls=FILE, the PEM file of the "
            "server's authorities, or tls=True (--tls-ca FILE or --tls for commands)",
            is_absence=False,
        )
    for pattern, text in _UNTRUSTED:
        if pattern.search(details):
            return Obstacle(f"the server at {address} is not trusted: {text}", is_absence=False)
    if greeting.wants_certificate:
        return Obstacle(
            f"the server at {address} lets no client in without a certificate that it trusts, it seems: tls=TLS(…) "
            "has one (--tls-certificate FILE and --tls-key FILE for commands)",
            is_absence=False,
        )
    return None


def _http(address: str) -> Obstacle:
    return Obstacle(
        f"{address} is a port for HTTP, as of the status page (8003) or the metrics (8002): this client needs the "
        "server's port for gRPC (8001, unless --grpc-address says otherwise)",
        is_absence=False,
    )


def _target(address: str) -> tuple[str, int] | str | None:
    """Returns host and port, or the path of a Unix socket; None for gRPC's other ways to name a server."""
    if address.startswith("unix:"):
        return re.sub("^unix:(//)?", "", address)
    return host_and_port(re.sub("^(dns:///?|ipv4:|ipv6:)", "", address))


def _connected(address: str, until: float) -> socket.socket:
    """Returns a connection, whose operations wait until the time is over; ``OSError`` if there is none."""
    target = _target(address)
    timeout_s = max(0.01, until - time.monotonic())
    if not isinstance(target, str):
        assert target is not None
        try:
            connection = socket.create_connection(target, timeout_s)
        except socket.gaierror:
            if target[0] != "localhost":
                raise
            # Without /etc/hosts the system may not know the name, which gRPC does (RFC 6761, section 6.3).
            connection = socket.create_connection(("127.0.0.1", target[1]), timeout_s)
    else:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(timeout_s)
            connection.connect(target)
        except BaseException:
            connection.close()
            raise
    connection.settimeout(max(0.01, until - time.monotonic()))
    return connection


class _Greeting(NamedTuple):
    """What the other side of a connection with TLS says: whether it speaks HTTP/2, as gRPC does, and lets us in."""

    is_http2: bool
    wants_certificate: bool = False


def _tls_greeting(connection: socket.socket, address: str) -> _Greeting | None:
    """Returns how the other side answers a greeting of TLS; None if it does not use TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # whoever it is: nothing is sent
    context.set_alpn_protocols(["h2"])
    target = _target(address)
    try:
        host = target[0] if isinstance(target, tuple) else None
        with context.wrap_socket(connection, server_hostname=host) as greeted:
            if greeted.selected_alpn_protocol() != "h2":
                return _Greeting(is_http2=False)
            # TLS 1.3 refuses a client after the greeting only: with an alert, or, as gRPC's servers do, without a word.
            return _Greeting(is_http2=True, wants_certificate=greeted.recv(1) == b"")
    except ssl.SSLError as error:
        reason = error.reason or ""
        if "ALERT" not in reason:  # which is a word of TLS
            return None
        return _Greeting(True, wants_certificate="CERTIFICATE" in reason or "HANDSHAKE_FAILURE" in reason)
    except socket.timeout:  # which is TimeoutError from Python 3.10 on
        raise
    except (OSError, ValueError):  # it has hung up; or the host has no name that a greeting may carry
        return None


def _is_http2(answer: bytes) -> bool:
    """Returns whether these bytes begin with a frame of settings or of farewell, as a gRPC server's first ones do."""
    return len(answer) >= 9 and answer[3] in (4, 7)
