"""A grid whose clients run in this process, one by one and in any order, with every fault on request."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable
from typing import Any

import jobs
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

_IDS = itertools.count()  # of messages, of all grids: as in Flower, those of two runs differ


class LocalGrid(Grid):
    """Runs one waiting client each time that replies are asked for.

    Args:
        app: of the clients.
        nodes: how many.
        seed: of the node ids, and of the order in which clients reply.
        silent: partitions that never reply.

    Attributes:
        contexts: by node id.
        sent, received: bytes of the messages to and from each partition, one number a message.
        replies: of all clients, in order of arrival.
    """

    def __init__(self, app: ClientApp, nodes: int, *, seed: int = 0, silent: Iterable[int] = ()) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1  # which Flower sets for an app
        self._rng = np.random.default_rng([seed, nodes])
        self.app = app
        self.silent = set(silent)
        self.sent: dict[int, list[int]] = {partition: [] for partition in range(nodes)}
        self.received: dict[int, list[int]] = {partition: [] for partition in range(nodes)}
        self.replies: list[Message] = []
        self._waiting: dict[str, Message] = {}
        ids = self._rng.choice(1 << 40, nodes, replace=False)
        self.contexts = {
            int(node): Context(1, int(node), {"partition-id": partition, "num-partitions": nodes}, RecordDict(), {})
            for partition, node in enumerate(ids)
        }

    def set_run(self, run: Any) -> None:
        """Not needed."""

    @property
    def run(self) -> Any:
        """Not needed."""
        return None

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Not needed: deprecated."""
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        """The nodes."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Keeps the messages."""
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"{next(_IDS):08d}"
            ids.append(message.metadata.message_id)
            self._waiting[message.metadata.message_id] = message
            self.sent[self._partition(message.metadata.dst_node_id)].append(_num_bytes(message))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Runs one of the clients."""
        waiting = [
            message_id
            for message_id in sorted(set(message_ids) & set(self._waiting))
            if self._partition(self._waiting[message_id].metadata.dst_node_id) not in self.silent
        ]
        if not waiting:
            return []
        message = self._waiting.pop(waiting[self._rng.integers(len(waiting))])
        node = message.metadata.dst_node_id
        try:
            reply = self.app(message, self.contexts[node])
        except Exception as error:  # Flower reports any
            reply = Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)
        reply.metadata.__dict__["_message_id"] = f"{next(_IDS):08d}"
        self.received[self._partition(node)].append(_num_bytes(reply))
        self.replies.append(reply)
        return [reply]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """As Flower's own."""
        waiting, replies = set(self.push_messages(messages)), []
        while pulled := list(self.pull_messages(waiting)):
            replies += pulled
        return replies

    def _partition(self, node: int) -> int:
        return int(self.contexts[node].node_config["partition-id"])


def start(strategy: Any, grid: Any, rounds: int = 2, timeout: float = 60, **config: Any) -> tuple[jobs.Arrays, Any]:
    """Runs a strategy on the job's model; returns the last model and Flower's result."""
    record = ArrayRecord({name: Array(array) for name, array in jobs.initial_model().items()})
    random.seed(jobs.SEED)  # allow(randomness): Flower samples nodes with it
    result = strategy.start(grid, record, num_rounds=rounds, timeout=timeout, train_config=ConfigRecord(config))
    return {name: array.numpy() for name, array in result.arrays.items()}, result


def changing(change: Callable[[jobs.Arrays, int], None]) -> Any:
    """A mod that changes the arrays of each training reply: ``change(arrays, partition)``. Comes behind sparse_mod."""

    def mod(message: Message, context: Context, call_next: Any) -> Message:
        reply = call_next(message, context)
        if message.metadata.message_type == "train" and not reply.has_error():
            arrays = {name: array.numpy() for name, array in reply.content["arrays"].items()}
            change(arrays, int(context.node_config["partition-id"]))
            reply.content["arrays"] = ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})
        return reply

    return mod


def _num_bytes(message: Message) -> int:
    return sum(record.count_bytes() for record in message.content.values()) if message.has_content() else 0
