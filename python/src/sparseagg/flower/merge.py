"""One round of training: updates are merged as they come, and become the next model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

import sparseagg as sa
from sparseagg.flower.model import Table
from sparseagg.flower.records import to_array
from sparseagg.optimizers import RowOptimizer

__all__ = ["Merge", "changed_rows"]

_BLOCK = 1 << 14  # rows that are widened to float64 at a time
_SUMMED = ("float16", "float32", "float64")


class Merge:
    """The merge of one round's updates, in this process or on a server.

    Life cycle: ``add`` each update, in any order; ``finish`` or ``cancel`` once.

    Args:
        tables: of the model that the clients have been sent.
        sparse: names of the tensors whose updates are differences of rows (or elements); the others are whole arrays,
            as FedAvg has them.
        op: of the sparse tensors.
        client: of the server that merges; None: this process does.
        options: of the round, such as numerics.

    Attributes:
        handle: what a client needs to submit to the server; None without one.
    """

    def __init__(
        self, tables: Mapping[str, Table], sparse: Iterable[str], op: str, client: sa.Client | None, options: Any
    ) -> None:
        self._tables = {name: table for name, table in tables.items() if table.dimension}  # an empty array stays
        self._sparse = set(sparse)
        tensors = [self._tensor(name, table, op) for name, table in self._tables.items()]
        spec = sa.RoundSpec(tensors, weighting="by_weight", **options)
        self._aggregator = sa.Aggregator(spec) if client is None else None
        self._round = None if client is None else client.create_round(spec)
        self.handle: str | None = None if self._round is None else self._round.handle

    def _tensor(self, name: str, table: Table, op: str) -> sa.TensorSpec:
        # The mean of integers, such as torch's num_batches_tracked, is no integer: it is rounded when it is known.
        dtype = str(table.dtype) if str(table.dtype) in _SUMMED else "float64"
        if name in self._sparse:
            return sa.TensorSpec(name, dtype, shape=table.shape, width=table.width, op=op, result="sparse")
        return sa.TensorSpec(name, dtype, shape=table.shape, layout="dense", op="mean", result="dense")

    def add(self, client_id: str, update: Mapping[str, Any], weight: float) -> None:
        """Merges an update, completely or not at all.

        Args:
            client_id: sets the order of sums.
            update: by tensor: (keys, rows) of differences, or the whole array, also of a sparse tensor.
            weight: such as the number of examples.

        Raises:
            sa.SparseaggError: the update is refused, and does not count; the message says why.
        """
        prepared: dict[str, Any] = {}
        for name, table in self._tables.items():
            if name not in update:
                if name in self._sparse:
                    continue  # no row has changed
                raise sa.InvalidArgument(f"there is no tensor {name!r}; it has {', '.join(map(repr, update))}")
            value = update[name]
            if isinstance(value, tuple):
                if name not in self._sparse:
                    raise sa.InvalidArgument(f"tensor {name!r} comes as rows, but is not among the sparse tensors")
            elif value.shape != table.shape:
                raise sa.InvalidArgument(f"tensor {name!r} has shape {value.shape}; the model's has {table.shape}")
            elif name in self._sparse:
                value = changed_rows(table.dense(), value, table.width)
            prepared[name] = value
        if self._aggregator is not None:
            self._aggregator.add(client_id, prepared, weight)
        elif self._round is not None:
            self._round.submit(client_id, prepared, weight)

    def finish(self, counted: Iterable[str], optimizer: RowOptimizer | None) -> tuple[dict[str, Table], dict[str, Any]]:
        """Merges, and takes the step.

        Args:
            counted: ids of the clients whose updates count. A server may have others: of clients that died afterwards.
            optimizer: of the server; None adds the merged differences, and takes the merged whole arrays.

        Returns:
            The tables of the next model; and the keys that have changed of sparse tensors, by name; None for all keys.

        Raises:
            sa.SparseaggError: nothing could be merged, as with weights that are all 0.
        """
        if self._aggregator is not None:
            result = self._aggregator.finish()
        else:
            assert self._round is not None
            result = self._round.close(only=list(counted))
        tables, changed = {}, {}
        for name, table in self._tables.items():
            if name in self._sparse:
                tables[name], changed[name] = _step_of_rows(name, table, result[name], optimizer)
            else:
                tables[name] = _step_of_whole(name, table, result[name].dense(), optimizer)
        return tables, changed

    def cancel(self, reason: str) -> None:
        """Discards the updates."""
        if self._round is not None:
            with contextlib.suppress(sa.SparseaggError):
                self._round.cancel(reason)


def changed_rows(before: Any, after: Any, width: int) -> tuple[Any, Any]:
    """Returns (keys, differences) of the rows in which two arrays of one shape differ."""
    before, after = before.reshape(-1, width), after.reshape(-1, width)
    keys = np.flatnonzero((before != after).any(axis=1))
    return keys, after[keys] - before[keys]


def _step_of_rows(
    name: str, table: Table, merged: sa.TensorResult, optimizer: RowOptimizer | None
) -> tuple[Table, Any]:
    keys = merged.indices
    delta = np.asarray(merged.values).reshape(len(keys), table.width)
    if optimizer is not None and optimizer.dense:  # which moves all rows
        values = table.dense().copy()
        optimizer.step(name, values.reshape(-1, table.width), (keys, delta))
        return _rewritten(table, values), None
    rows = table.rows_at(keys)
    if optimizer is None:
        for begin in range(0, len(rows), _BLOCK):
            part = slice(begin, begin + _BLOCK)
            rows[part] = rows[part].astype(np.float64) + delta[part]
    else:
        rows = optimizer.step_rows(name, table.dimension, keys, rows, delta)
    return table.with_rows(keys, rows), keys


def _step_of_whole(name: str, table: Table, merged: Any, optimizer: RowOptimizer | None) -> Table:
    if table.dtype.kind != "f":
        return _rewritten(table, np.asarray(np.rint(merged)).astype(table.dtype))
    if optimizer is None:
        return _rewritten(table, merged.astype(table.dtype, copy=False))
    values = table.dense().copy()
    optimizer.step(name, values.reshape(-1), (merged - values.astype(np.float64)).reshape(-1))
    return _rewritten(table, values)


def _rewritten(table: Table, values: Any) -> Table:
    return Table.of(to_array(values.reshape(table.shape)), table.width)
