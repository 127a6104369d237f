"""Attacks below the message layer: memory, an honest client, recovery and the stop of the server under each."""

from __future__ import annotations

import os
import subprocess
import time

import attacks
import numpy as np
import pytest
import sparseagg as sa
from conftest import ServerProcess
from watch import Watch, resident

LIMIT = 256 << 20
# Longer to see whether memory grows on: `FLOOD_SECONDS=20 make test-python PYTEST_ARGS='-n 0 -s tests/python/floods'`.
SECONDS = float(os.environ.get("FLOOD_SECONDS", "2"))
CLIENTS = 20
SPEC = sa.RoundSpec([sa.TensorSpec("t", "float32", 100_000)])
UPDATES = [(np.arange(i, 50_000 + i, 50), np.ones(1000, np.float32)) for i in range(CLIENTS)]
# What one round may take while the attack goes on, and memory to come down after it.
ROUND_SECONDS = 2.0
RECOVERY_SECONDS = 10.0
# Of a server that has served: what the C library keeps of memory in use is different each time.
IDLE_SLACK = 24 << 20


def honest_round(client: sa.Client) -> float:
    """One round; returns its seconds."""
    begun = time.monotonic()
    with client.create_round(SPEC) as opened:
        for number, update in enumerate(UPDATES):
            opened.submit(f"{number}", {"t": update})
        merged = opened.close()["t"]
    assert merged.values.sum() == CLIENTS * 1000
    return time.monotonic() - begun


def round_of_newcomer(address: str, tls: str | None) -> float:
    """One round of a client that has just come; returns its seconds, with those to connect."""
    begun = time.monotonic()
    with sa.Client(address, timeout=60, tls=tls) as client:
        honest_round(client)
    return time.monotonic() - begun


@pytest.mark.parametrize("name", attacks.ATTACKS)
def test_flood_server_goes_on(name: str, start_server) -> None:
    check_flood(name, start_server("--memory-limit", str(LIMIT)))


# Of each kind one: gRPC reads these from TLS by another way (service/transport/frame_inspection.cc).
@pytest.mark.parametrize("name", ["rapid_reset", "unknown_methods", "continuation", "settings", "pings", "no_message"])
def test_flood_over_tls_server_goes_on(name: str, start_server, self_signed) -> None:
    key, certificate = self_signed
    server = start_server("--memory-limit", str(LIMIT), "--tls-certificate", str(certificate), "--tls-key", str(key))
    check_flood(name, server, str(certificate))


def check_flood(name: str, server: ServerProcess, ca: str | None = None) -> None:
    pid = server.process.pid
    address = server.address.replace("127.0.0.1", "localhost") if ca else server.address
    old_client = sa.Client(address, timeout=60, tls=ca)
    honest_round(old_client)
    idle = resident(pid)
    watch = Watch(pid)
    attacker = subprocess.Popen(attacks.command(name, server.address, *([ca] if ca else [])))
    rounds = []
    try:
        begun = time.monotonic()
        while time.monotonic() - begun < SECONDS:
            time.sleep(0.1)
            # Those who cancel calls come from this host, of which new connections are refused for a while.
            from_here = name == "cancelled_calls"
            rounds.append(honest_round(old_client) if from_here else round_of_newcomer(address, ca))
    finally:
        attacker.kill()
        attacker.wait()
    ended = time.monotonic()
    while resident(pid) > idle + IDLE_SLACK and time.monotonic() - ended < 2 * RECOVERY_SECONDS:
        time.sleep(0.05)
    recovered = time.monotonic() - ended
    watch.stop()
    old_client.close()
    begun = time.monotonic()
    code = server.stop()
    kind = "TLS" if ca else ""
    print(
        f"\n{name:18} {kind:3} peak {watch.most >> 20:5} MiB  longest round {max(rounds):6.2f} s of {len(rounds)}  "
        f"idle {idle >> 20} MiB, again after {recovered:5.2f} s  stop {time.monotonic() - begun:.2f} s"
    )
    assert code == 0
    assert watch.most <= LIMIT * 1.1
    assert max(rounds) <= ROUND_SECONDS
    assert recovered <= RECOVERY_SECONDS
