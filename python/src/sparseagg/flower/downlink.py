"""The way down: each client is sent the rows that have changed since the copy that it has."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from sparseagg.flower.model import CONFIG, Model, sparse_arrays

# A client that loses its copy so often, as in a container that lives for one message, is sent whole models only.
_MOST_LOSSES = 3


class Downlink:
    """Which version of a model each node has, and what it is sent.

    Args:
        model: its first version.
        sparse: names of the sparse tensors.
        settings: for ``CONFIG``: all that stays the same for all messages.
    """

    def __init__(self, model: Model, sparse: Sequence[str], settings: Mapping[str, Any]) -> None:
        self._model = model
        self._settings = {**settings, "model": uuid.uuid4().hex}
        # The version that changed each row last.
        self._touched = {name: np.full(model.tables[name].num_rows, model.version) for name in sparse}
        self._copies: dict[int, int] = {}  # node: version
        self._losses: dict[int, int] = {}
        self._contents: dict[int, ArrayRecord] = {}  # of the current version, by the version before

    def advance(self, model: Model, changed: Mapping[str, Any]) -> None:
        """Takes the next version; ``changed`` are the keys by sparse tensor, None for all."""
        for name, keys in changed.items():
            self._touched[name][slice(None) if keys is None else keys] = model.version
        self._model = model
        self._contents.clear()

    def note(self, node: int, reply: ConfigRecord | None) -> None:
        """Notes which version a node says that it has."""
        if reply is None or reply.get("model") != self._settings["model"] or self._losses.get(node, 0) >= _MOST_LOSSES:
            return
        self._copies[node] = int(reply.get("version", -1))

    def forget(self, node: int) -> None:
        """Notes that a node has lost its copy."""
        self._copies.pop(node, None)
        self._losses[node] = self._losses.get(node, 0) + 1

    def message(self, message: Message, handle: str | None) -> Message:
        """Returns a message with what its node needs instead of the whole model."""
        node = message.metadata.dst_node_id
        since = self._copies.get(node, -1)
        content = RecordDict(dict(message.content))
        content[self._settings["arrays"]] = self._arrays(since)
        config = {**self._settings, "version": self._model.version, "since": since}
        content[CONFIG] = ConfigRecord(config if handle is None else {**config, "round": handle})
        metadata = message.metadata
        return Message(content, node, metadata.message_type, ttl=metadata.ttl, group_id=metadata.group_id)

    def _arrays(self, since: int) -> ArrayRecord:
        """Returns the model for nodes that have a version; the same object for all of them, so that Flower sends the
        same objects."""
        if since not in self._contents:
            arrays: dict[str, Array] = {}
            for name, table in self._model.tables.items():
                keys = np.flatnonzero(self._touched[name] > since) if since >= 0 and name in self._touched else None
                if keys is None or 2 * len(keys) >= table.num_rows:
                    arrays[name] = table.to_array()
                else:
                    arrays.update(sparse_arrays(name, keys, table.rows_at(keys)))
            self._contents[since] = ArrayRecord(arrays)
        return self._contents[since]
