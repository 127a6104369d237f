"""What a cycle of the crash test does to the server, whatever its clients do meanwhile."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator

import sparseagg as sa

from crash.fail_points import MANY_TIMES
from crash.server import Server

RETRY = sa.RetryPolicy(attempts=200, initial=0.02, maximum=0.2)


class Cycle:
    """A server that is killed and started again while clients work.

    ``point``: the fail point of the cycle; empty: the server is killed at a random time. ``at_restarts``: the point is
    armed at the restarts only, until it is hit.
    """

    def __init__(self, server: Server, rng: random.Random, point: str, at_restarts: bool) -> None:
        self.server = server
        self.rng = rng
        self.num_kills = 0
        self.points: list[str] = []  # that were hit
        self._restart_point = point if at_restarts else ""
        self._armed = "" if at_restarts else point

    def start(self) -> None:
        """Starts the server, with the fail point armed."""
        many = MANY_TIMES.search(self._armed)
        self._start(self._armed, self.rng.choice([1, 1, 2, 3, 5]) if many else 1)

    def disturb(self, threads: list[threading.Thread]) -> None:
        """Waits until the fail point is hit or all threads are done, or kills at a random time; starts again."""
        until = time.monotonic() + self.rng.random() * 0.3 if not self._armed else float("inf")
        while any(thread.is_alive() for thread in threads):
            if self.server.wait_killed(0.005):
                self._hit(self._armed)
            elif time.monotonic() >= until:
                self.server.kill()
                until = float("inf")
            else:
                continue
            self.restart()

    @contextlib.contextmanager
    def disturbed(self, at_random: bool = True) -> Iterator[threading.Event]:
        """Does the same to what the caller does; in addition, kills the server when the event is set, and clears it.

        ``at_random`` False: without a kill at a random time.
        """
        stop = threading.Event()
        kill_now = threading.Event()

        def watch() -> None:
            killed_at = time.monotonic() + self.rng.random() * 0.05 if at_random else float("inf")
            while not stop.wait(0.002):
                if self.server.wait_killed(0):
                    self._hit(self._armed)
                elif kill_now.is_set() or (not self._armed and time.monotonic() >= killed_at):
                    self.server.kill()
                    kill_now.clear()
                    killed_at = float("inf")
                else:
                    continue
                self.restart()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield kill_now
        finally:
            stop.set()
            watcher.join()

    def restart(self) -> None:
        """Starts the server after a kill. A fail point that is armed at restarts stays so until it is hit."""
        self.num_kills += 1
        self._start(self._restart_point)

    @contextlib.contextmanager
    def connected(self, chunk_bytes: int = 1 << 20) -> Iterator[sa.Client]:
        """A client that goes on after restarts."""
        with sa.Client(self.server.address, retry=RETRY, timeout=60, chunk_bytes=chunk_bytes) as client:
            yield client

    def _start(self, point: str, hit: int = 1) -> None:
        while not self.server.start(point, hit):
            self.num_kills += 1
            self._hit(point)
            point = ""

    def _hit(self, point: str) -> None:
        self.points.append(self._restart_point or point)
        self._restart_point = ""
