"""The client's side: a mod of ``ClientApp``, which leaves the training function as it is."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import pathlib
import pickle
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict

import sparseagg as sa
from sparseagg._internal.base.credentials import TLSArgument
from sparseagg._internal.base.foreign import to_numpy
from sparseagg._internal.spec.round_spec import is_weighted
from sparseagg._internal.updates.nonfinite import KEPT, Nonfinite
from sparseagg.flower.merge import changed_rows, check_shape
from sparseagg.flower.model import (
    CONFIG,
    KEYS,
    NEEDS_WHOLE,
    PRECONDITION,
    ROWS,
    sparse_arrays,
    to_array,
    update_of,
    view,
)
from sparseagg.flower.replies import only_arrays, weight_of

CallNext = Callable[[Message, Context], Message]

_KEPT_VERSIONS = 2  # of a model; a slow client's message may be one version behind the newest
_KEPT_S = 7 * 24 * 3600  # models without a new version for so long are removed
_ATTEMPTS = 5


def sparse_mod(
    message: Message | None = None,
    context: Context | None = None,
    call_next: CallNext | None = None,
    *,
    top_k: float | int | None = None,
    client_id: Callable[[Context], str | int] | None = None,
    rows_for: Callable[[Context], Mapping[str, Any]] | None = None,
    copies: str | os.PathLike[str] | None = None,
    tls: TLSArgument = None,
    token: str | Callable[[Context], str] | None = None,
) -> Any:
    """A mod for clients of a sparse strategy: ``ClientApp(mods=[sparse_mod])``, or ``mods=[sparse_mod(top_k=0.01)]``.

    The training function gets the whole model and returns it, as always. The mod makes the model from the rows that it
    is sent, and sends the rows that the function has changed. The strategy says which tensors are sparse. With another
    strategy, the mod does nothing.

    Args:
        message: given by Flower, like the two arguments after it.
        context: see ``message``.
        call_next: see ``message``.
        top_k: send only the largest differences of each sparse tensor: a fraction of all its rows (elements), or an
            integer number of them. What is left out is added to the next differences; it is kept in the node's state.
        client_id: makes the id that sets the order of sums, and so the last bits, from the node's context. By default
            the id is the ``partition-id`` of the node's configuration, and the node's id where there is none, which is
            another one in each run.
        rows_for: with ``rows_down="used"``: the keys that this node's data uses, by tensor. The function gets the rows
            of these in the place of the tensor ``name``, in ascending order of the distinct keys, which are in the
            record as ``name:keys``. Other tensors are whole.
        copies: folder for copies of the model; by default among the temporary files. Nodes of one machine share it.
        tls: of the connection to a sparseagg server, as of ``sparseagg.Client``; by default the environment's
            (SPARSEAGG_TLS_CA and its kind).
        token: this node's token for the server, or a function that makes it from the node's context; by default that of
            the environment (SPARSEAGG_TOKEN). If the token, or the certificate, is of a client with a name, that is the
            id of the client's submissions, and sets the order of sums.
    """
    mod = _SparseMod(top_k, client_id, rows_for, Copies(copies), tls, token)
    if message is None or context is None or call_next is None:
        return mod
    return mod(message, context, call_next)


class _SparseMod:
    def __init__(
        self,
        top_k: float | int | None,
        client_id: Callable[[Context], str | int] | None,
        rows_for: Callable[[Context], Mapping[str, Any]] | None,
        copies: Copies,
        tls: TLSArgument,
        token: str | Callable[[Context], str] | None,
    ) -> None:
        self._tls = tls
        self._token = token
        self._top_k = top_k
        self._client_id = client_id or _partition
        self._rows_for = rows_for
        self._copies = copies
        self._new_top_k("row")  # refuses a wrong top_k where it is written

    def __call__(self, message: Message, context: Context, call_next: CallNext) -> Message:
        if not message.has_content() or CONFIG not in message.content.config_records:
            return call_next(message, context)
        config = message.content.config_records[CONFIG]
        client = f"{_ordered(self._client_id(context))}:{context.node_id}"
        keys: Mapping[str, Any] = {}  # of the rows that this node uses, by tensor
        version = config["version"]
        try:
            if "handle" in config:
                with sa.Model.from_handle(config["handle"], **self._credentials(context)) as served:
                    model, version, keys = self._read(served, config, context)
                is_kept = True
            else:
                kept = self._rebuild(config, message.content[config["arrays"]])
                if kept is None:
                    reason = f"{NEEDS_WHOLE}: this node has no copy of version {config['since']} or later"
                    return Message(Error(PRECONDITION, reason), reply_to=message)
                model, is_kept = kept
        except (sa.SparseaggError, OSError) as error:
            return Message(Error(PRECONDITION, f"sparseagg: client {client!r}: {error}"), reply_to=message)
        content = {name: record for name, record in message.content.items() if name != CONFIG}
        extra = {name + KEYS: to_array(each) for name, each in keys.items()}
        message.content = RecordDict({**content, config["arrays"]: ArrayRecord({**model, **extra})})
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        try:
            if message.metadata.message_type.partition(".")[0] == "train":
                self._make_sparse(config, model, keys, reply, context)
                if "round" in config:
                    client = _upload(config, client, model, reply, self._credentials(context))
        except (sa.SparseaggError, OSError) as error:  # such as a round that is closed already, or a file of TLS
            return Message(Error(PRECONDITION, f"sparseagg: client {client!r}: {error}"), reply_to=message)
        answer = {"client": client, "model": config["model"], "version": version if is_kept else -1}
        reply.content[CONFIG] = ConfigRecord(answer)
        return reply

    def _credentials(self, context: Context) -> dict[str, Any]:
        return {"tls": self._tls, "token": self._token(context) if callable(self._token) else self._token}

    def _rebuild(self, config: ConfigRecord, sent: ArrayRecord) -> tuple[ArrayRecord, bool] | None:
        """Returns the whole model, and whether it is kept; None if the copy that it is based on is lost."""
        model, version = config["model"], config["version"]
        sparse = [*config.get("rows", ()), *config.get("elements", ())]
        whole: dict[str, Array] = {name: sent[name] for name in config.get("names", ()) if name in sent}
        if config["since"] >= 0:
            copy = self._copies.load(model, config["since"], version)
            if copy is None:
                return None
            found, arrays = copy
            for name, values in zip(sparse, arrays):
                if name in whole:
                    continue
                if found < version:
                    rows = view(sent[name + ROWS])
                    values.reshape(-1, rows.shape[1])[view(sent[name + KEYS])] = rows
                whole[name] = to_array(values)
        kept = self._copies.save(model, version, {i: whole[name].data for i, name in enumerate(sparse)})
        record = ArrayRecord()
        for name in config.get("names", ()):
            record[name] = whole[name]
        return record, kept

    def _read(
        self, served: sa.Model, config: ConfigRecord, context: Context
    ) -> tuple[ArrayRecord, int, dict[str, Any]]:
        """Returns what the node reads of a model on a server, its version, and the keys of the rows that it uses."""
        names, version = list(config["names"]), int(config["version"])
        if config["rows_down"] == "used":
            if self._rows_for is None or self._top_k is not None:
                raise sa.InvalidArgumentError('rows_down="used" needs sparse_mod(rows_for=…), and no top_k')
            keys = {name: np.unique(to_numpy(each)) for name, each in self._rows_for(context).items()}
            rows = served.read({**dict.fromkeys(names, ...), **keys}, version=version)
            return ArrayRecord(dict(zip(names, map(to_array, rows)))), version, keys
        # A model of this name may have been deleted, and made again.
        own = hashlib.sha256(f"{config['handle']} {served.info.create_time}".encode()).hexdigest()[:32]
        copy = self._copies.load(own, 0, served.info.version)
        tensors = [served.info.tensors[name] for name in names]
        since, arrays = copy or (None, [np.empty(tensor.shape, tensor.dtype) for tensor in tensors])
        version = served.catch_up(dict(zip(names, arrays)), since)
        record = ArrayRecord(dict(zip(names, map(to_array, arrays))))
        self._copies.save(own, version, {at: record[name].data for at, name in enumerate(names)})
        return record, version, {}

    def _make_sparse(
        self, config: ConfigRecord, before: ArrayRecord, used: Mapping[str, Any], reply: Message, context: Context
    ) -> None:
        """Puts keys and rows in the place of the sparse tensors of a reply; ``used``: the keys of ``before``, where it
        has some rows only.
        """
        only_arrays(reply.content)
        ((key, arrays),) = reply.content.array_records.items()
        rows = config.get("rows", ())
        record = ArrayRecord()
        for name, array in arrays.items():
            if name in rows or name in config.get("elements", ()):
                by = "row" if name in rows else "element"
                keys, changed = self._select(name, by, view(before[name]), view(array), context)
                keys = used[name][keys] if name in used else keys
                for part, values in sparse_arrays(name, keys, changed).items():
                    record[part] = values
            elif not (name.endswith(KEYS) and name[: -len(KEYS)] in used):
                record[name] = array
        reply.content[key] = record

    def _select(self, name: str, by: str, before: Any, after: Any, context: Context) -> tuple[Any, Any]:
        check_shape(name, after.shape, before.shape)
        width = math.prod(before.shape[1:]) if by == "row" else 1
        keys, rows = changed_rows(before, after, width)
        top_k = self._new_top_k(by)
        if top_k is None:
            return keys, rows
        delta = np.zeros(before.shape, rows.dtype)
        delta.reshape(-1, width)[keys] = rows
        state = f"{CONFIG}:{name}"
        if state in context.state.config_records:
            top_k = pickle.loads(context.state.config_records[state]["top_k"])
        keys, rows = top_k.select(name, delta)
        context.state[state] = ConfigRecord({"top_k": pickle.dumps(top_k)})
        return keys, np.asarray(rows).reshape(len(keys), width)

    def _new_top_k(self, by: str) -> sa.TopK | None:
        if self._top_k is None:
            return None
        return sa.TopK(k=self._top_k, by=by) if isinstance(self._top_k, int) else sa.TopK(fraction=self._top_k, by=by)


def _upload(
    config: ConfigRecord, client: str, before: ArrayRecord, reply: Message, credentials: Mapping[str, Any]
) -> str:
    """Submits the arrays of a reply to the server, and leaves the metrics alone in it. Returns the id of the
    submission: ``client``, or the name of the credentials.
    """
    ((key, arrays),) = reply.content.array_records.items()
    weight: float | None = weight_of(reply.content, config["weight"])
    update = dict(update_of(arrays, config.get("names", ())))
    with sa.Round.from_handle(config["round"], **credentials) as round_:
        tracked = {tensor.name for tensor in round_.spec.tensors if tensor.name.endswith(KEPT)}
        for name, value in list(update.items()):
            if isinstance(value, tuple):
                continue
            values = view(before[name])
            check_shape(name, value.shape, values.shape)
            if name + KEPT in tracked and (nonfinite := Nonfinite.of(values)) is not None:
                update.update(nonfinite.update(name, value))
        update = {name: value for name, value in update.items() if _size(value)}
        weight = weight if is_weighted(round_.spec) else None
        try:
            client = round_.submit(client, update, weight).client_id
        except sa.errors.PermissionDeniedError:  # the credential has a name, and submits under that alone
            client = round_.submit("", update, weight).client_id
    del reply.content[key]
    return client


def _size(value: Any) -> int:
    return 1 if isinstance(value, tuple) else int(value.size)


def _partition(context: Context) -> str | int:
    partition = context.node_config.get("partition-id")
    return partition if isinstance(partition, (str, int)) else "~node"


def _ordered(client_id: str | int) -> str:
    """Returns an id whose order as text is that of numbers."""
    return f"{client_id:010d}" if isinstance(client_id, int) else client_id


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

    def save(self, model: str, version: int, arrays: Mapping[int, bytes]) -> bool:
        """Keeps a copy, given as npy files by position; all copies of a version are equal. Returns whether it is
        there.
        """
        try:
            self._make_folder(model)
            target = self._folder / model / str(version)
            if not target.is_dir():
                written = pathlib.Path(tempfile.mkdtemp(prefix="new-", dir=self._folder / model))
                try:
                    for position, data in arrays.items():
                        (written / f"{position}.npy").write_bytes(data)
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
