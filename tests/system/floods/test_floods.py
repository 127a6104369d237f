"""Attacks below the message layer: memory, an honest client, recovery and the stop of the server under each."""

from __future__ import annotations

import time

import attacks
import numpy as np
import pytest
import sparseagg as sa
from real_server import ServerProcess
from siege import LIMIT, check_siege

CLIENTS = 20
SPEC = sa.RoundSpec([sa.TensorSpec("t", "float32", num_rows=100_000)])
UPDATES = [(np.arange(i, 50_000 + i, 50), np.ones(1000, np.float32)) for i in range(CLIENTS)]
# Times as long as without an attack.
ROUND_TIMES = 20


def honest_round(client: sa.Client) -> float:
    """One round; returns its seconds."""
    begun = time.monotonic()
    with client.create_round(SPEC) as opened:
        for number, update in enumerate(UPDATES):
            opened.submit(f"{number}", {"t": update})
        merged = opened.finish()["t"]
    assert merged.values.sum() == CLIENTS * 1000
    return time.monotonic() - begun


def round_of_newcomer(address: str, tls: str | bool) -> float:
    """One round of a client that has just come; returns its seconds, with those to connect."""
    begun = time.monotonic()
    with sa.Client(address, timeout=60, tls=tls) as client:
        honest_round(client)
    return time.monotonic() - begun


# Of each kind one: gRPC reads these from TLS by another way (service/net/frame_inspection.cc).
OVER_TLS = ["rapid_reset", "unknown_methods", "continuation", "settings", "pings", "no_message"]


@pytest.mark.parametrize("name", attacks.ATTACKS)
def test_flood_server_goes_on(name: str, start_server) -> None:
    check_flood(name, start_server("--memory-limit", str(LIMIT)))


@pytest.mark.parametrize("name", OVER_TLS)
def test_flood_over_tls_server_goes_on(name: str, start_server, self_signed) -> None:
    key, certificate = self_signed
    server = start_server("--memory-limit", str(LIMIT), "--tls-certificate", str(certificate), "--tls-key", str(key))
    check_flood(name, server, str(certificate))


def check_flood(name: str, server: ServerProcess, ca: str | None = None) -> None:
    address = server.address
    with sa.Client(address, timeout=60, tls=ca or False) as old_client:
        honest_round(old_client)
        # Those who cancel calls come from this host, of which new connections are refused for a while.
        from_here = name == "cancelled_calls"
        check_siege(
            f"{name} TLS" if ca else name,
            server,
            attacks.command(name, server.address, *([ca] if ca else [])),
            lambda: honest_round(old_client) if from_here else round_of_newcomer(address, ca or False),
            ROUND_TIMES,
        )
