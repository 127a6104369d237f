"""A process with some of the demo's clients, each of which is a worker of its own.

    python -m sparseagg._internal.commands.demo.pull_worker ADDRESS FILE INDEX NUMBER

has the clients INDEX, INDEX + NUMBER, INDEX + 2 · NUMBER, … of those in the file. It ends when it is killed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import pathlib
import pickle
import sys
import threading
import time

import numpy as np

from sparseagg._internal.client.async_client import Client
from sparseagg._internal.client.blocking_client import Client as BlockingClient
from sparseagg._internal.commands.demo.model import ClientData, Model, Submitted, client_gradient
from sparseagg._internal.results.tasks import Outcome, Task

# Short, so that the clients of a killed process need not wait for long.
_LEASE_S = 2.0


@dataclasses.dataclass(frozen=True)
class Site:
    """What a process needs: all clients' texts, and where the model is. The tables are those of version 0.

    Attributes:
        published: name of the model on the server.
    """

    model: Model
    names: list[str]
    data: list[ClientData]
    max_pairs: int
    seed: int
    published: str


def label_of(k: int) -> str:
    """Returns the label of client k's tasks, which it alone has."""
    return f"client:{k}"


def payload_of(number: int) -> bytes:
    """Returns the payload of the tasks of a round."""
    return b"%d" % number


def update_of(model: Model, data: list[ClientData], k: int, max_pairs: int, seed: int, number: int) -> Submitted | None:
    """Returns client k's update in a round, the same on each call; None if its text has no example."""
    gradient = client_gradient(model, data[k], max_pairs, np.random.default_rng([seed, number, k]))
    if gradient is None:
        return None
    tensors = {
        "input": (gradient.input_keys, gradient.input_rows),
        "output": (gradient.output_keys, gradient.output_rows),
    }
    return tensors, float(gradient.num_pairs)


class _Process:
    """The clients of this process, which share the model."""

    def __init__(self, address: str, site: Site) -> None:
        self._address = address
        self._site = site
        self._published = BlockingClient(address).model(site.published)
        self._lock = threading.Lock()
        self._version: int | None = None

    async def run(self, clients: range) -> None:
        """Works for ever."""
        async with Client(self._address) as client:
            await asyncio.gather(
                *(
                    client.work(
                        functools.partial(self._handle, k),
                        self._site.names[k],
                        labels=[label_of(k)],
                        lease_duration=_LEASE_S,
                    )
                    for k in clients
                )
            )

    def _handle(self, k: int, task: Task) -> Outcome:
        number, site = int(task.payload), self._site
        with self._lock:
            # The coordinator publishes a version after each round, and creates the tasks of the next one then.
            if self._version != number - 1:
                self._version = self._published.catch_up(site.model.tables, self._version)
            begin = time.perf_counter()
            update = update_of(site.model, site.data, k, site.max_pairs, site.seed, number)
        if update is None:
            return Outcome()
        return Outcome(*update, result=b"%.6f" % (time.perf_counter() - begin))


if __name__ == "__main__":
    _address, _file, _index, _number = sys.argv[1:]
    _site: Site = pickle.loads(pathlib.Path(_file).read_bytes())
    asyncio.run(_Process(_address, _site).run(range(int(_index), len(_site.data), int(_number))))
