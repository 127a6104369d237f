"""One contestant of flower_side_by_side.py: a round of a Flower strategy, with clients that are files.

    flower_contestant.py stock|sparse [--clients N] [--rounds N] [--rows uniform|zipf] …

The server's process has nothing but the server: the strategy runs its own ``start`` on a grid that reads a client's
reply from disk when Flower would receive it. For stock, that is one array of the whole table each, 256 MB; all of them
are there when ``aggregate_train`` begins, as Flower's own grids have it. For sparse, it is 5000 rows each.

Prints JSON: seconds of the aggregation (without the reading of replies), peak memory of the process, bytes both ways
as Flower serializes them. What is merged is compared with a mean in float64 at 1000 rows.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import pathlib
import resource
import sys
import tempfile
import time
import uuid
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.task_identity import TaskIdentity
from sparseagg.flower import SparseFedAvg
from sparseagg.flower.records import CONFIG, sparse_arrays, to_array, view

NAME = "embedding.weight"
HEADER = len(to_array(np.zeros((2, 2), np.float32)).data) - 16


def touched_rows(rows: str, vocabulary: int, count: int, client: int) -> Any:
    """The rows that a client changes, in every round: its own words."""
    rng = np.random.default_rng([26, client])
    if rows == "uniform":
        return np.sort(rng.choice(vocabulary, count, replace=False))
    # Distinct words of a text in which the r-th most frequent one has the frequency 1/r: Gumbel's trick.
    weights = rng.gumbel(size=vocabulary) - np.log(np.arange(1, vocabulary + 1))
    return np.sort(np.argpartition(weights, -count)[-count:])


def difference(keys: Any, width: int, client: int) -> Any:
    """What a client adds to its rows."""
    return np.random.default_rng([7, client]).standard_normal((len(keys), width)).astype(np.float32)


class FileGrid(Grid):
    """A grid of clients that are files. ``pull_messages`` has one reply at a time."""

    def __init__(self, options: argparse.Namespace, folder: pathlib.Path, model: Any) -> None:
        self._options, self._folder, self._model = options, folder, model
        self._waiting: dict[str, tuple[Message, RecordDict]] = {}
        self.sent: list[list[int]] = []
        self.received: list[list[int]] = []
        self._sizes: dict[Any, int] = {}

    def set_run(self, run: Any) -> None:
        """Not needed."""

    @property
    def run(self) -> Any:
        """Not needed."""
        return None

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Not needed: deprecated."""
        raise NotImplementedError

    def get_node_ids(self) -> Any:
        """Nodes 0, 1, …."""
        return range(self._options.clients)

    def push_messages(self, messages: Any) -> Any:
        """Counts the bytes of messages."""
        self.sent.append([])
        self.received.append([])
        for message in messages:
            message.metadata.__dict__["_message_id"] = uuid.uuid4().hex
            self._waiting[message.metadata.message_id] = message, message.content
            self.sent[-1].append(self._size_of(message))
        return list(self._waiting)

    def pull_messages(self, message_ids: Any) -> Any:
        """One client's reply."""
        if not self._waiting:
            return []
        message, content = self._waiting.pop(next(iter(self._waiting)))
        reply = Message(self._reply(message.metadata.dst_node_id, content), reply_to=message)
        self.received[-1].append(num_bytes(reply) if len(self.received[-1]) == 0 or CONFIG in content else 0)
        return [reply]

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
        """All replies at once, as Flower's own grids return them."""
        waiting, replies = self.push_messages(messages), []
        while pulled := self.pull_messages(waiting):
            replies += pulled
        return replies

    def _size_of(self, message: Message) -> int:
        """Bytes of a message; those of one version to nodes of one version have the same size, but for some digits."""
        config = message.content.get(CONFIG, {})
        key = tuple(config.get(name) for name in ("version", "since", "partial"))
        if config.get("partial") or key not in self._sizes:
            self._sizes[key] = num_bytes(message)
        return self._sizes[key]

    def _reply(self, client: int, content: RecordDict) -> RecordDict:
        keys = np.load(self._folder / f"{client}-keys.npy")
        rows = np.load(self._folder / f"{client}-rows.npy")
        metrics = MetricRecord({"num-examples": client + 1, "loss": 0.5})
        if CONFIG not in content:
            data = (self._folder / "model.npy").read_bytes()  # what a transport would have received
            # In place, though bytes do not change: a copy would count as the server's memory.
            address = id(data) + bytes.__basicsize__ - 1 + HEADER
            table = np.ctypeslib.as_array((ctypes.c_float * self._model.size).from_address(address))
            table.reshape(self._model.shape)[keys] += rows
            array = Array("float32", self._model.shape, "numpy.ndarray", data)
            record = ArrayRecord()
            record[NAME] = array
            return RecordDict({"arrays": record, "metrics": metrics})
        config = content[CONFIG]
        same = {name: config[name] for name in ("model", "version", "partial")}
        reply = ConfigRecord({"client": f"{client:010d}:1", **same})
        record = ArrayRecord(sparse_arrays(NAME, keys, rows))
        return RecordDict({"arrays": record, "metrics": metrics, CONFIG: reply})


def num_bytes(message: Message) -> int:
    """Bytes of all objects of a message, as Flower pushes them."""
    message.__dict__.pop("_object_id", None)
    objects = get_all_nested_objects(message)
    return sum(len(each.deflate()) for each in objects.values())


def timed(strategy: Any, method: str, seconds: list[float]) -> None:
    """Adds the time of every call of a method to the last entry."""
    inner = getattr(strategy, method)

    def call(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        try:
            return inner(*args, **kwargs)
        finally:
            seconds[-1] += time.perf_counter() - begin

    setattr(strategy, method, call)


def peak_bytes() -> int:
    """Of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> int:
    """Runs the rounds, and prints what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contestant", choices=["stock", "sparse"])
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--vocabulary", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--count", type=int, default=5000, help="rows that a client changes")
    parser.add_argument("--rows", choices=["uniform", "zipf"], default="uniform")
    parser.add_argument("--rows-down", choices=["changed", "used"], default="changed")
    options = parser.parse_args()
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if pid := os.fork():  # the clients' side: its memory is not the server's
            if os.waitpid(pid, 0)[1]:
                raise RuntimeError("the clients could not be made")
        else:
            write_clients(options, folder)
            os._exit(0)
        base = peak_bytes()
        data = (folder / "model.npy").read_bytes()
        shape = (options.vocabulary, options.width)
        initial = ArrayRecord()
        initial[NAME] = Array("float32", shape, "numpy.ndarray", data)
        model = view(initial[NAME])
        grid = FileGrid(options, folder, model)
        own = {"min_train_nodes": options.clients, "min_available_nodes": options.clients, "fraction_evaluate": 0.0}
        if options.contestant == "stock":
            strategy = FedAvg(**own)
        else:
            strategy = SparseFedAvg(sparse=[NAME], rows_down=options.rows_down, **own)
        seconds: list[float] = []
        configure = strategy.configure_train
        strategy.configure_train = lambda *args: (seconds.append(0.0), configure(*args))[1]
        for method in ("aggregate_train", *(["incoming"] if options.contestant == "sparse" else [])):
            timed(strategy, method, seconds)
        result = strategy.start(grid, initial, num_rounds=options.rounds, timeout=3600)
        peak = peak_bytes()
        worst = check(options, folder, model, result.arrays[NAME].numpy())
    found = {
        "contestant": options.contestant,
        "clients": options.clients,
        "rows": options.rows,
        "rows_down": options.rows_down,
        "seconds": seconds,
        "peak_bytes": peak,
        "imports_bytes": base,
        "model_bytes": len(data),
        "sent_bytes": [sum(sizes) for sizes in grid.sent],
        "received_bytes": [sum(s or sizes[0] for s in sizes) for sizes in grid.received],
        "worst_error": worst,
    }
    print(json.dumps(found))
    return 0


def write_clients(options: argparse.Namespace, folder: pathlib.Path) -> None:
    """Writes the model and what each client sends."""
    model = np.random.default_rng(1).standard_normal((options.vocabulary, options.width), dtype=np.float32)
    (folder / "model.npy").write_bytes(to_array(model).data)
    for client in range(options.clients):
        keys = touched_rows(options.rows, options.vocabulary, options.count, client)
        np.save(folder / f"{client}-keys.npy", keys.astype(np.uint32))
        np.save(folder / f"{client}-rows.npy", difference(keys, options.width, client))


def check(options: argparse.Namespace, folder: pathlib.Path, model: Any, got: Any) -> float:
    """The largest difference from FedAvg in float64, at rows of one client and at rows of nobody."""
    some = np.load(folder / "0-keys.npy")[:500].astype(np.int64)
    sample = np.concatenate([some, np.arange(500)])
    change = np.zeros((len(sample), options.width))
    weights = np.arange(1, options.clients + 1, dtype=np.float64)
    for client, weight in enumerate(weights):
        keys = np.load(folder / f"{client}-keys.npy").astype(np.int64)
        rows = np.load(folder / f"{client}-rows.npy").astype(np.float64)
        position = np.searchsorted(keys, sample)
        position[position == len(keys)] = 0
        found = keys[position] == sample
        change[found] += weight / weights.sum() * rows[position[found]]
    # Stock's clients send the first model with their rows in every round; ours send the same difference again.
    times = options.rounds if options.contestant == "sparse" else 1
    return float(np.abs(got[sample] - (model[sample].astype(np.float64) + times * change)).max())


if __name__ == "__main__":
    sys.exit(main())
