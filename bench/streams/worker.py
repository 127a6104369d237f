"""One run of one contestant in the environment that starts this: worker.py PROBLEM.npz SETTINGS_JSON > RESULT_JSON."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import pathlib
import sys
import time
from typing import Any

import contestants
import numpy as np
import simulation
from problem import Problem


def run(problem: Problem, settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the curve: [simulated time, updates that counted or were offered, held-out loss], and facts."""
    kind, seed = settings["kind"], settings["seed"]
    clients = simulation.Clients(problem, seed, settings["learning_rate"])
    at_a_time, horizon, every = settings["at_a_time"], settings["horizon"], settings["loss_every"]
    curve = [[0.0, 0, problem.loss(problem.initial_model())]]
    facts: dict[str, Any] = {}
    begun, next_loss = time.perf_counter(), every
    model = problem.initial_model()
    if kind == "rounds":
        rounds = simulation.synchronous(
            clients, contestants.merge_round, model, at_a_time, settings["counted"], seed, horizon
        )
        for now, updates, model in rounds:
            curve.append([now, updates, problem.loss(model)])
        versions = len(curve) - 1
    else:
        server = contestants.SERVERS[kind](model, **settings)
        versions = -server.version
        for now, updates, _ in simulation.asynchronous(clients, server, at_a_time, seed, horizon):
            if now >= next_loss:
                curve.append([now, updates, problem.loss(server.download(-1))])
                next_loss = now + every
        versions += server.version
        model = server.download(-1)
        facts = server.facts()
    package = {"rounds": "sparseagg", "stream": "sparseagg"}.get(kind, kind)
    return {
        "curve": [[round(now, 3), updates, round(loss, 5)] for now, updates, loss in curve],
        "versions": versions,
        "model_sha256": hashlib.sha256(np.ascontiguousarray(model).tobytes()).hexdigest(),
        "slowest_to_fastest": round(float(clients.durations.max() / clients.durations.min()), 3),
        "package": f"{package} {importlib.metadata.version(package)}",
        "wall_s": round(time.perf_counter() - begun, 2),
        **facts,
    }


if __name__ == "__main__":
    print(json.dumps(run(Problem.load(pathlib.Path(sys.argv[1])), json.loads(sys.argv[2]))))
