"""The way down: each client is sent the rows that have changed since the copy that it has."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from sparseagg.flower.model import Model
from sparseagg.flower.records import CONFIG, sparse_arrays
from sparseagg.history import RowHistory

__all__ = ["Downlink"]

# A client that loses its copy so often, as in a container that lives for one message, is sent whole models only.
_MOST_LOSSES = 3


class Downlink:
    """Which version of a model each node has, and what it is sent.

    Args:
        model: its first version.
        sparse: names of the sparse tensors.
        settings: for ``CONFIG``: all that stays the same for all messages.
        budget_bytes: of the history of changed keys.
    """

    def __init__(self, model: Model, sparse: Sequence[str], settings: Mapping[str, Any], budget_bytes: int) -> None:
        self._id = uuid.uuid4().hex
        self._model = model
        self._settings = dict(settings)
        self._sparse = list(sparse)
        rows = {name: model.tables[name].dimension for name in sparse}
        self._history = RowHistory(rows, since=model.version, budget_bytes=budget_bytes)
        self._copies: dict[int, int] = {}  # node: version
        self._losses: dict[int, int] = {}
        self._contents: dict[int, ArrayRecord] = {}  # of the current version, by the version before

    def advance(self, model: Model, changed: Mapping[str, Any]) -> None:
        """Takes the next version; ``changed`` are the keys by sparse tensor, None for all."""
        self._history.record(model.version, changed)
        self._model = model
        self._contents.clear()

    def note(self, node: int, reply: ConfigRecord | None) -> None:
        """Notes which version a node says that it has."""
        if reply is not None and reply.get("model") == self._id and self._losses.get(node, 0) < _MOST_LOSSES:
            self._copies[node] = int(reply["version"])

    def forget(self, node: int) -> None:
        """Notes that a node has lost its copy."""
        self._copies.pop(node, None)
        self._losses[node] = self._losses.get(node, 0) + 1

    def message(self, message: Message, handle: str | None) -> Message:
        """Returns a message with what its node needs instead of the whole model."""
        since = self._copies.get(message.metadata.dst_node_id, -1)
        content = RecordDict(dict(message.content))
        content[self._settings["arrays"]] = self._arrays(since)
        config = {**self._settings, "model": self._id, "version": self._model.version, "since": since}
        content[CONFIG] = ConfigRecord(config if handle is None else {**config, "round": handle})
        metadata = message.metadata
        return Message(
            content,
            metadata.dst_node_id,
            metadata.message_type,
            ttl=metadata.ttl,
            group_id=metadata.group_id,
        )

    def _arrays(self, since: int) -> ArrayRecord:
        """Returns the model for nodes that have a version; the same object for all of them, so that Flower sends the
        same objects."""
        if since not in self._contents:
            arrays: dict[str, Array] = {}
            for name, table in self._model.tables.items():
                keys = None
                if since >= 0 and name in self._sparse:
                    keys = self._history.changed_since(name, since)
                if keys is None:
                    arrays[name] = table.to_array()
                else:
                    arrays.update(sparse_arrays(name, keys, table.rows_at(keys)))
            self._contents[since] = ArrayRecord(arrays)
        return self._contents[since]
