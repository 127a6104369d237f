"""The way down: each client is sent the rows that have changed since the copy that it has."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from sparseagg.flower.model import CONFIG, Model, sparse_arrays
from sparseagg.history import RowHistory

_KEPT_VERSIONS = 2  # of a model; a slow client's message may be one version behind the newest
_KEPT_S = 7 * 24 * 3600  # models without a new version for so long are removed
_ATTEMPTS = 5


class Copies:
    """A folder of models: FOLDER/MODEL/VERSION/TENSOR.npy; by default of this user's temporary files. Safe for
    processes.
    """

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        # Not made by mkdtemp: the next process has to find it.
        own = pathlib.Path(tempfile.gettempdir(), f"sparseagg-flower-{os.getuid()}")
        self._folder = own if folder is None else pathlib.Path(folder)

    def load(self, model: str, since: int, version: int) -> tuple[int, list[Any]] | None:
        """Returns the newest copy from ``since`` to ``version``: its version, and its arrays; None if there is none."""
        for _ in range(_ATTEMPTS):  # a copy may go while it is read, for a newer one has come
            versions = [found for found in self._versions(model) if since <= found <= version]
            if not versions:
                return None
            newest = max(versions)
            with contextlib.suppress(OSError, ValueError):
                folder = self._folder / model / str(newest)
                return newest, [np.load(folder / f"{i}.npy") for i in range(len(list(folder.iterdir())))]
        return None

    def save(self, model: str, version: int, arrays: Mapping[int, bytes], *, replace: bool) -> bool:
        """Keeps a copy, given as npy files by position, in the place of another one of this version if ``replace``.

        Returns whether it is there. Then nodes do not share copies, or all copies of a version are equal.
        """
        try:
            self._make_folder(model)
            target = self._folder / model / str(version)
            if replace or not target.is_dir():
                written = pathlib.Path(tempfile.mkdtemp(prefix="new-", dir=self._folder / model))
                try:
                    for position, data in arrays.items():
                        (written / f"{position}.npy").write_bytes(data)
                    if replace:
                        shutil.rmtree(target, ignore_errors=True)
                    with contextlib.suppress(OSError):  # another node of this machine was faster
                        written.rename(target)
                finally:
                    shutil.rmtree(written, ignore_errors=True)
            for old in sorted(self._versions(model))[:-_KEPT_VERSIONS]:
                shutil.rmtree(self._folder / model / str(old), ignore_errors=True)
            return target.is_dir()
        except OSError:  # such as a full disk
            return False

    def _versions(self, model: str) -> list[int]:
        with contextlib.suppress(OSError):
            return [int(path.name) for path in (self._folder / model).iterdir() if path.name.isdigit()]
        return []

    def _make_folder(self, model: str) -> None:
        if (self._folder / model).is_dir():
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._folder.stat().st_uid != os.getuid():
            raise PermissionError(f"{self._folder} is another user's")
        for other in self._folder.iterdir():
            with contextlib.suppress(OSError):
                if time.time() - other.stat().st_mtime > _KEPT_S:
                    shutil.rmtree(other, ignore_errors=True)
        (self._folder / model).mkdir(exist_ok=True)


# A client that loses its copy so often, as in a container that lives for one message, is sent whole models only.
_MOST_LOSSES = 3


class Downlink:
    """Which version of a model each node has, and what it is sent.

    Args:
        model: its first version.
        sparse: names of the sparse tensors.
        settings: for ``CONFIG``: all that stays the same for all messages.
        used_only: send for training only those of the changed rows that the node itself has changed before.
        budget_bytes: of the history of changed keys.
    """

    def __init__(
        self, model: Model, sparse: Sequence[str], settings: Mapping[str, Any], used_only: bool, budget_bytes: int
    ) -> None:
        self._model = model
        self._sparse = list(sparse)
        self._used_only = used_only
        self._settings = {**settings, "model": uuid.uuid4().hex, "own": used_only}
        rows = {name: model.tables[name].num_rows for name in sparse}
        self._history = RowHistory(rows, since=model.version, budget_bytes=budget_bytes)
        self._copies: dict[int, int] = {}  # node: version of the rows that it uses
        self._full: dict[int, int] = {}  # node: version since which no row was left out
        self._used: dict[int, dict[str, Any]] = {}  # node: keys by tensor
        self._losses: dict[int, int] = {}
        self._contents: dict[int, ArrayRecord] = {}  # of the current version, by the version before

    def advance(self, model: Model, changed: Mapping[str, Any]) -> None:
        """Takes the next version; ``changed`` are the keys by sparse tensor, None for all."""
        self._history.record(model.version, changed)
        self._model = model
        self._contents.clear()

    def note(self, node: int, reply: ConfigRecord | None) -> None:
        """Notes which version a node says that it has."""
        if reply is None or reply.get("model") != self._settings["model"] or self._losses.get(node, 0) >= _MOST_LOSSES:
            return
        self._copies[node] = int(reply.get("version", -1))
        if not reply.get("partial", True):
            self._full[node] = self._copies[node]

    def note_used(self, node: int, update: Mapping[str, Any]) -> None:
        """Notes which rows a node has changed."""
        if self._used_only:
            used = self._used.setdefault(node, {})
            for name in set(self._sparse) & set(update):
                if isinstance(update[name], tuple):
                    used[name] = np.union1d(used.get(name, np.empty(0, np.uint32)), update[name][0])

    def forget(self, node: int) -> None:
        """Notes that a node has lost its copy."""
        self._copies.pop(node, None)
        self._losses[node] = self._losses.get(node, 0) + 1

    def message(self, message: Message, is_train: bool, handle: str | None) -> Message:
        """Returns a message with what its node needs instead of the whole model."""
        node = message.metadata.dst_node_id
        since = self._copies.get(node, -1)
        partial = self._used_only and is_train and since >= 0
        if since >= 0 and not partial:
            since = self._full.get(node, -1)
        content = RecordDict(dict(message.content))
        content[self._settings["arrays"]] = self._rows_of(node, since) if partial else self._arrays(since)
        config = {**self._settings, "version": self._model.version, "since": since, "partial": partial}
        content[CONFIG] = ConfigRecord(config if handle is None else {**config, "round": handle})
        metadata = message.metadata
        return Message(content, node, metadata.message_type, ttl=metadata.ttl, group_id=metadata.group_id)

    def _arrays(self, since: int) -> ArrayRecord:
        """Returns the model for nodes that have a version; the same object for all of them, so that Flower sends the
        same objects."""
        if since not in self._contents:
            self._contents[since] = self._record(since, None)
        return self._contents[since]

    def _rows_of(self, node: int, since: int) -> ArrayRecord:
        """Returns the model for one node, with those of the changed rows that it uses."""
        return self._record(since, self._used.get(node, {}))

    def _record(self, since: int, used: Mapping[str, Any] | None) -> ArrayRecord:
        arrays: dict[str, Array] = {}
        for name, table in self._model.tables.items():
            keys = self._history.changed_since(name, since) if since >= 0 and name in self._sparse else None
            if keys is None:
                arrays[name] = table.to_array()
                continue
            if used is not None:
                keys = np.intersect1d(keys, used.get(name, ()), assume_unique=True).astype(np.int64)
            arrays.update(sparse_arrays(name, keys, table.rows_at(keys)))
        return ArrayRecord(arrays)
