"""Filters that make the updates of an NVFlare job sparse on both ways."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable

import sparseagg as sa
from sparseagg.nvflare.arrays import (
    KEYS,
    ROWS,
    bits_of,
    changed_rows,
    checked_names,
    copy_of,
    pair_of,
    rows_that_differ,
    to_array,
)

# Properties of a task's meta: the version of its model, and the version that its rows are changes of. The first is also
# a public property of a client's context.
VERSION, SINCE = "sparseagg.version", "sparseagg.since"


def add_sparse_filters(
    recipe: Any,
    sparse: list[str],
    top_k: float | None = None,
    tasks: Sequence[str] = ("train",),
    elements: list[str] | None = None,
) -> None:
    """Makes a recipe's updates sparse on both ways, without a change of the client's script.

    The recipe needs ``aggregator=SparseAggregator(sparse=sparse)``, with the same ``elements``, and
    ``params_transfer_type=TransferType.DIFF``.

    Args:
        recipe: of NVFlare.
        sparse: names of the tensors of which only rows that changed are sent.
        top_k: as of ``SendSparseDiff``.
        tasks: the names of the tasks that train.
        elements: names of the tensors of which only single elements that changed are sent.
    """
    recipe.add_server_output_filter(SendChangedRows(sparse, elements), list(tasks))
    recipe.add_client_input_filter(ReceiveChangedRows(sparse, elements), list(tasks))
    recipe.add_client_output_filter(SendSparseDiff(sparse, top_k, elements), list(tasks))


class SendSparseDiff(DXOFilter):
    """Client, results: sends the rows of sparse tensors that changed, where the script has sent all rows.

    Args:
        sparse: names of the tensors.
        top_k: the fraction of a tensor's rows that is sent, those of the largest norms. What is not sent is added to
            the next round's difference (``sparseagg.TopK``). None: every row that changed.
        elements: names of the tensors of which single elements are sent.
    """

    def __init__(self, sparse: list[str], top_k: float | None = None, elements: list[str] | None = None) -> None:
        super().__init__([DataKind.WEIGHTS, DataKind.WEIGHT_DIFF], None)
        self.sparse, self.elements = checked_names(sparse, elements)
        self.top_k = top_k
        self._selectors = {} if top_k is None else {by: sa.TopK(fraction=top_k, by=by) for by in ("row", "element")}

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO | None:
        """Returns the result with keys and rows in the place of sparse tensors."""
        names = [name for name in [*self.sparse, *self.elements] if name in dxo.data]
        if not names:
            return None
        if dxo.data_kind != DataKind.WEIGHT_DIFF:
            raise sa.InvalidArgumentError(
                f"tensor {names[0]!r} came as weights, not as a difference: use params_transfer_type=TransferType.DIFF "
                "in the recipe, or params_type DIFF in the script"
            )
        data = dict(dxo.data)
        for name in names:
            delta, by_element = to_array(data.pop(name)), name in self.elements
            if not self._selectors:
                data.update(changed_rows(name, delta, by_element))
            else:
                selector = self._selectors["element" if by_element else "row"]
                data.update(pair_of(name, *selector.select(name, delta), like=delta))
        return DXO(dxo.data_kind, data, _meta_of(dxo))


class SendChangedRows(DXOFilter):
    """Server, tasks: sends a client the rows of sparse tensors that changed since the client's last task.

    A client that has no model yet, that has restarted, or whose model is of another server process, is sent the whole
    model; so is every client while half of the rows have changed. The filter compares each round's model with the one
    before, so any aggregator and any server optimiser may have made it. It keeps a copy of the sparse tensors, and for
    each row the version in which the row changed. Thread-safe.

    Args:
        sparse: names of the tensors.
        elements: names of the tensors of which single elements are sent.
    """

    def __init__(self, sparse: list[str], elements: list[str] | None = None) -> None:
        super().__init__([DataKind.WEIGHTS], None)
        self.sparse, self.elements = checked_names(sparse, elements)
        self._process = uuid.uuid4().hex  # versions of another server process say nothing
        self._lock = threading.Lock()
        self._version = 0
        self._bits: dict[str, Any] = {}  # of the last model
        self._changed_in: dict[str, Any] = {}  # version, by row
        self._task: Any = None

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO | None:
        """Returns the task with keys and rows in the place of sparse tensors, for a client that has a model."""
        names = [name for name in [*self.sparse, *self.elements] if name in dxo.data]
        if not names:
            return None
        peer = fl_ctx.get_peer_context()
        client_has = (peer.get_prop(VERSION) if peer else None) or ""
        process, _, since = client_has.partition(":")
        data = dict(dxo.data)
        with self._lock:
            self._look_at(data, names, shareable.get_header(ReservedHeaderKey.MSG_ROOT_ID))
            version = f"{self._process}:{self._version}"
            if process == self._process and since.isdigit():
                for name in names:
                    keys = np.flatnonzero(self._changed_in[name] > int(since))
                    if 2 * len(keys) < len(self._changed_in[name]):
                        array = data.pop(name)
                        rows = array.reshape(-1)[keys] if name in self.elements else array[keys]
                        data.update(pair_of(name, keys, rows, like=array))
        return DXO(dxo.data_kind, data, {**_meta_of(dxo), VERSION: version, SINCE: client_has})

    def _look_at(self, data: Mapping[str, Any], names: list[str], root_id: Any) -> None:
        """Makes a new version, unless this is the same broadcast as in the last call, to another client."""
        task = root_id, [id(data[name]) for name in names]
        if root_id is not None and task == self._task:
            return
        self._task = task
        self._version += 1
        for name in names:
            bits, last = bits_of(data[name], name in self.elements), self._bits.get(name)
            if last is None or (last.shape, last.dtype) != (bits.shape, bits.dtype):
                self._bits[name] = bits.copy()
                self._changed_in[name] = np.full(len(bits), self._version, np.int64)
            else:
                keys = rows_that_differ(bits, last)
                last[keys] = bits[keys]
                self._changed_in[name][keys] = self._version


class ReceiveChangedRows(DXOFilter):
    """Client, tasks: makes whole models of what ``SendChangedRows`` sends. Keeps a copy of the sparse tensors.

    The version of the copy is a public property of the client's context, which goes with each request for a task.

    Args:
        sparse: names of the tensors.
        elements: names of the tensors of which single elements are sent.
    """

    def __init__(self, sparse: list[str], elements: list[str] | None = None) -> None:
        super().__init__([DataKind.WEIGHTS], None)
        self.sparse, self.elements = checked_names(sparse, elements)
        self._model: dict[str, Any] = {}
        self._version = ""

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO | None:
        """Returns the task with the whole model."""
        meta = _meta_of(dxo)
        version, since = meta.pop(VERSION, None), meta.pop(SINCE, None)
        if version is None:
            return None
        data = dict(dxo.data)
        mine, self._version = self._version, ""  # after an error, the next task has the whole model
        fl_ctx.set_prop(VERSION, "", private=False, sticky=True)
        for name in [*self.sparse, *self.elements]:
            if name in data:
                self._model[name] = copy_of(data[name])
            elif name + KEYS in data:
                if since != mine:
                    raise sa.errors.FailedPreconditionError(
                        f"the task has rows since version {since!r}, but this client has {mine!r}"
                    )
                keys, rows = data.pop(name + KEYS), data.pop(name + ROWS)
                model = self._model[name]
                (model.reshape(-1) if name in self.elements else model)[keys] = rows
                data[name] = copy_of(self._model[name])  # which training may change
        self._version = version
        fl_ctx.set_prop(VERSION, version, private=False, sticky=True)
        return DXO(dxo.data_kind, data, meta)


def _meta_of(dxo: DXO) -> dict[str, Any]:
    """Returns a copy of the meta without the history of filters, which DXOFilter adds itself."""
    return {key: value for key, value in dxo.meta.items() if key != MetaKey.FILTER_HISTORY}
