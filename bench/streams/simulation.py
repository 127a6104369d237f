"""Clients of very different speed on a simulated clock; a server's own time does not count.

All contestants have the same clients, the same durations and the same number of clients that train at any time. The
seed fixes the durations and who trains when; a client's batches depend on the seed and on how often it has trained.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from problem import Problem

SLOWEST_TO_FASTEST = 50.0
JITTER = 0.1  # standard deviation of the logarithm of a training's duration around its client's


class Server(Protocol):
    """What merges the updates."""

    version: int

    def download(self, client: int) -> np.ndarray:
        """Returns the model of the current version for a client, which stays as it is."""

    def submit(self, client: int, keys: np.ndarray, rows: np.ndarray, base_version: int, base: np.ndarray) -> bool:
        """Takes an update that was computed from ``base``; returns whether there is a new version."""


class Clients:
    """How long each client trains, and the number of its trainings so far.

    Durations of clients are log-normal: the logarithms are normal, moved and stretched so that the median is 1 and the
    slowest client takes 50 times as long as the fastest.
    """

    def __init__(self, problem: Problem, seed: int, learning_rate: float) -> None:
        self.problem = problem
        self.number = len(problem.targets)
        self._seed, self._learning_rate = seed, learning_rate
        logarithms = np.random.default_rng([seed, 1]).standard_normal(self.number)
        logarithms *= math.log(SLOWEST_TO_FASTEST) / np.ptp(logarithms)
        self.durations = np.exp(logarithms - np.median(logarithms))
        self._trainings = [0] * self.number

    def train(self, client: int, model: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the update of a client's next training."""
        seed = self._seed * 1_000_003 + self._trainings[client]
        return self.problem.train(model, client, seed, self._learning_rate)

    def duration(self, client: int) -> float:
        """Returns how long the client's next training takes, and counts it."""
        self._trainings[client] += 1
        noise = np.random.default_rng([self._seed, 2, client, self._trainings[client]]).standard_normal()
        return float(self.durations[client] * math.exp(JITTER * noise))


def asynchronous(
    clients: Clients, server: Server, at_a_time: int, seed: int, horizon: float
) -> Iterator[tuple[float, int, int]]:
    """Keeps so many clients busy; yields (time, updates so far, version) after each new version.

    A client that becomes free is followed by one that is drawn from all idle ones.
    """
    rng = np.random.default_rng([seed, 3])
    idle = list(rng.permutation(clients.number))
    running: list[tuple[float, int, int, np.ndarray]] = []  # end, client, base version, and its model

    def begin(now: float) -> None:
        client = int(idle.pop(int(rng.integers(len(idle)))))
        heapq.heappush(running, (now + clients.duration(client), client, server.version, server.download(client)))

    for _ in range(at_a_time):
        begin(0.0)
    updates = 0
    while running[0][0] <= horizon:
        now, client, base_version, base = heapq.heappop(running)
        keys, rows = clients.train(client, base)
        updates += 1
        changed = server.submit(client, keys, rows, base_version, base)
        idle.append(client)
        begin(now)
        if changed:
            yield now, updates, server.version


def synchronous(
    clients: Clients, merge: Any, model: np.ndarray, at_a_time: int, counted: int, seed: int, horizon: float
) -> Iterator[tuple[float, int, np.ndarray]]:
    """Rounds in which ``at_a_time`` clients train and the first ``counted`` replies count; the others are lost.

    Yields (time, updates so far, model) after each round. ``merge`` makes of a model and a list of (client, keys, rows)
    the next one.
    """
    rng = np.random.default_rng([seed, 4])
    now, updates = 0.0, 0
    while True:
        chosen = rng.choice(clients.number, at_a_time, replace=False)
        ends = sorted((clients.duration(int(client)), int(client)) for client in chosen)[:counted]
        now += ends[-1][0]
        if now > horizon:
            return
        model = merge(model, [(client, *clients.train(client, model)) for _, client in ends])
        updates += counted
        yield now, updates, model
