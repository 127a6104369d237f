"""The demo's clients as workers that fetch their tasks: ``sparseagg demo --pull``."""

from __future__ import annotations

import pathlib
import pickle
import random
import signal
import subprocess
import sys
import time
from typing import Any

from sparseagg._internal.client.blocking_client import Client, Round
from sparseagg._internal.client.progress import ProgressBar
from sparseagg._internal.commands.demo.coordinator import ClientFigures, Coordinator
from sparseagg._internal.commands.demo.model import Submitted
from sparseagg._internal.commands.demo.pull_worker import Site, label_of, payload_of
from sparseagg._internal.results.result import Result
from sparseagg._internal.results.tasks import NewTask
from sparseagg.cluster import ClusterRound

_POLL_S = 0.1


class PullCoordinator(Coordinator):
    """A coordinator that calls nobody: it publishes the model, creates a task for each client, and waits.

    The clients live in processes of ``pull_worker``, some clients in each. In every round, one process is killed when a
    part of the tasks is done, and started again. Its leases expire, and its clients get their tasks again.

    A context manager that ends the processes. The arguments are those of ``Coordinator``, and

    Args:
        client: of the server.
        folder: for the file from which the processes read the clients' texts.
    """

    def __init__(self, client: Client, folder: pathlib.Path, **options: Any) -> None:
        super().__init__(client, **options)
        self._server = client
        self._random = random.Random(self._seed)
        self._file = folder / "clients.pickle"
        self._published = client.model(f"demo-{time.time_ns()}")
        site = Site(self._model, self._names, self._data, self._max_pairs, self._seed, self._published.name)
        self._file.write_bytes(pickle.dumps(site))
        self._published.publish(0, self._model.tables, whole=True)
        self._processes = [self._start(index) for index in range(self._concurrency)]
        self.num_kills = 0

    def __enter__(self) -> PullCoordinator:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._published.delete()
        self._file.unlink()

    def _start(self, index: int) -> subprocess.Popen[bytes]:
        words = [self._server.address, str(self._file), str(index), str(self._concurrency)]
        return subprocess.Popen([sys.executable, "-m", "sparseagg._internal.commands.demo.pull_worker", *words])

    def _collect(
        self, opened: Round | ClusterRound, number: int, bar: ProgressBar, keep: bool
    ) -> tuple[list[ClientFigures], dict[str, Submitted]]:
        names = self._server.create_tasks(
            [
                NewTask(payload_of(number), labels=[label_of(k)], round=opened.name, max_attempts=100)
                for k in range(len(self._data))
            ],
            owner="demo",
        )
        kill_at = self._random.uniform(0.1, 0.9) * len(names)
        num_ended = 0
        while num_ended < len(names):
            time.sleep(_POLL_S)
            tasks = list(self._server.list_tasks(in_round=opened.name))
            ended = sum(task.ended for task in tasks)
            bar.advance(ended - num_ended)
            num_ended = ended
            if num_ended >= kill_at:
                kill_at = len(names) + 1
                self._kill_one()
        # A client without an example fails its task for good.
        figures = [ClientFigures(float(task.result), 0.0) for task in tasks if task.state == "completed"]
        if not keep:
            return figures, {}
        updates = (self._update(number, k) for k in range(len(self._data)))
        return figures, {name: update for name, update in zip(self._names, updates) if update is not None}

    def _kill_one(self) -> None:
        index = self._random.randrange(self._concurrency)
        killed = self._processes[index]
        killed.kill()
        status = killed.wait()
        if status != -signal.SIGKILL:
            raise RuntimeError(f"worker process {index} had ended by itself, with status {status}")
        self._processes[index] = self._start(index)
        self.num_kills += 1

    def _applied(self, number: int, result: Result) -> None:
        tables = self._model.tables
        self._published.publish(number, {name: (t.keys, tables[name][t.keys]) for name, t in result.items()})
