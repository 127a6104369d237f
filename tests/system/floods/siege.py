"""A server under attack: its memory, an honest client meanwhile, recovery and the stop."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import subprocess
import threading
import time
from collections.abc import Callable

from real_server import START_TIMEOUT_S, ServerProcess

LIMIT = 256 << 20
# Longer to see whether memory grows on: `FLOOD_SECONDS=20 .venv/bin/python -m pytest -s tests/system/floods`.
SECONDS = float(os.environ.get("FLOOD_SECONDS", "2"))
# Of a server that has served: what the C library keeps of memory in use is different each time.
IDLE_SLACK = LIMIT // 8
# Six times the delay that the server suggests where its memory is full (service/base/refusals.cc): a fast machine's
# rounds are shorter than one such delay.
DELAYS_S = 3.0


def resident(pid: int) -> int:
    """The resident memory in bytes."""
    text = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(re.search(r"^VmRSS:\s+(\d+) kB", text, re.MULTILINE).group(1)) * 1024


class Watch(threading.Thread):
    """Looks at a process's resident memory until it is stopped; `most` is the highest that it has seen."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.most = 0
        self._pid = pid
        self._stopped = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._stopped.wait(0.01):
            with contextlib.suppress(FileNotFoundError, AttributeError):
                self.most = max(self.most, resident(self._pid))

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def slowest_in_peace(honest_round: Callable[[], float]) -> float:
    """Returns the seconds of the slowest of some rounds without an attack, on a machine as busy as under one."""
    busy = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(os.cpu_count() or 1)]
    try:
        return max(honest_round() for _ in range(3))
    finally:
        for process in busy:
            process.kill()
            process.wait()


def check_siege(
    name: str, server: ServerProcess, attack: list[str], honest_round: Callable[[], float], most_times: float
) -> None:
    """Runs the command ``attack`` while rounds go on, and checks all that the server promises.

    ``server``: has the limit LIMIT and has served a round. ``honest_round``: one round; returns its seconds, which may
    be ``most_times`` those of a round without an attack, or DELAYS_S.
    """
    pid = server.process.pid
    before = slowest_in_peace(honest_round)
    idle = resident(pid)
    watch = Watch(pid)
    attacker = subprocess.Popen(attack)
    rounds = []
    try:
        begun = time.monotonic()
        while time.monotonic() - begun < SECONDS:
            time.sleep(0.1)
            rounds.append(honest_round())
        assert attacker.poll() is None, "the attack has ended by itself"
    finally:
        attacker.kill()
        attacker.wait()
    ended = time.monotonic()
    while resident(pid) > idle + IDLE_SLACK:
        assert time.monotonic() - ended < START_TIMEOUT_S, "the memory does not come down"
        time.sleep(0.05)
    recovered = time.monotonic() - ended
    watch.stop()
    peace = max(before, slowest_in_peace(honest_round))
    begun = time.monotonic()
    code = server.stop()
    print(
        f"\n{name:22} peak {watch.most >> 20:5} MiB  longest round {max(rounds):6.2f} s of {len(rounds)}, "
        f"in peace {peace:5.2f} s  "
        f"idle {idle >> 20} MiB, again after {recovered:5.2f} s  stop {time.monotonic() - begun:.2f} s"
    )
    assert code == 0
    assert watch.most <= LIMIT * 1.1
    assert max(rounds) <= max(most_times * peace, DELAYS_S)
