"""One round of training: updates are merged as they come, and become the next model."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

import sparseagg as sa
from sparseagg._internal.base.foreign import default_float_environment
from sparseagg._internal.base.types import Layout, Numerics, OnNonfinite, Op
from sparseagg._internal.spec.options import is_like
from sparseagg._internal.spec.round_spec import is_weighted
from sparseagg._internal.updates.contributors import naming_client
from sparseagg._internal.updates.nonfinite import KEPT, Nonfinite, difference, split_on_nonfinite, unchanged
from sparseagg.cluster import ClusterClient, ClusterRound
from sparseagg.cluster.cluster import Rule, check_rule, finish_by_rule
from sparseagg.flower.model import Table, to_array
from sparseagg.optimizers import RowOptimizer
from sparseagg.robust import ClientWeights

_BLOCK = 1 << 14  # rows that are widened to float64 at a time
_NOT_BINNED = {"numerics", "return_moments", "privacy"}  # options that choose the numerics, or need other ones
_SUMMED = ("float16", "float32", "float64")
# Names of batch normalization's statistics, of torch and of Keras.
_STATISTIC = re.compile(r"(running_mean|running_var|moving_mean|moving_variance)(:\d+)?$")
_DIFFERENCES = {1: "int16", 2: "int32"}  # dtypes of differences of integers, by bytes of the integers


class Merge:
    """The merge of one round's updates, in this process or on a server.

    Life cycle: ``add`` each update, in any order; ``finish`` or ``cancel`` once.

    Args:
        tables: of the model that the clients have been sent.
        sparse: names of the tensors whose updates are differences of rows (or elements); the others are whole arrays,
            as FedAvg has them.
        op: of the sparse tensors.
        client: of the server, or of the cluster, that merges; None: this process does.
        of_all: the op is of all tensors, and each update has one vote; else the others are means by weight.
        rule: chooses among the updates of all tensors when they are there (``sparseagg.robust``); None: all count.
        noise_key: for options with ``privacy``. Then whole arrays become differences before they are merged, since the
            bound is on what a client changes. Integers and bools, such as positions or counts, stay as they are: noise
            would make other indices of them.
        ledger: pays for the round; None: nobody does.
        keeps: whether updates that have been added may be left out at the end, which needs all of them until then, as
            the rounds of a server do. The result has the same bits.
        options: of the round, such as numerics. ``on_nonfinite`` may also be a mapping from names of tensors, or
            patterns, to words; the first one that fits a tensor counts.

    Attributes:
        handle: what a client needs to submit to the server; None without one.
        choice: of the rule, once ``finish`` has been called.

    Raises:
        sa.InvalidArgumentError: the options make no sense; the message names option and tensor. Or there is
            ``privacy``, and a tensor that noise would make useless: the statistics of batch normalization.
    """

    def __init__(
        self,
        tables: Mapping[str, Table],
        sparse: Iterable[str],
        op: Op,
        client: sa.Client | ClusterClient | None,
        options: Any,
        of_all: bool = False,
        rule: Rule | None = None,
        noise_key: bytes | None = None,
        ledger: sa.PrivacyLedger | None = None,
        keeps: bool = False,
    ) -> None:
        check_rule(client, rule)
        self._tables = {name: table for name, table in tables.items() if table.num_rows}  # an empty array stays
        self._sparse = set(sparse)
        on_nonfinite, options = split_on_nonfinite(options, tables)
        # Bounds are for differences: the norm of a whole array is that of the model.
        self._of_differences = options.get("privacy") is not None
        if self._of_differences:
            self._tables = {name: table for name, table in self._tables.items() if table.dtype.kind == "f"}
            for name in self._tables:
                if _STATISTIC.search(name):
                    raise sa.InvalidArgumentError(
                        f"dp: tensor {name!r} is a statistic of batch normalization, and noise makes a variance "
                        "negative: use GroupNorm or LayerNorm, or BatchNorm without statistics (in torch: "
                        "track_running_stats=False), or send a model without this tensor"
                    )
        is_bounded = options.get("clip") is not None and not self._of_differences
        self._unbounded = sa.ClipSpec(l2=math.inf, linf=math.inf) if is_bounded else None
        # Without bounds, and merged as they come. A rule, the op or an option may need canonical sums.
        is_canonical = rule is not None or of_all or _NOT_BINNED & options.keys()
        self._numerics: Numerics | None = None if is_canonical else "binned"
        self._whole_op = op if of_all or self._of_differences else "mean"
        tensors = [self._tensor(name, table, op, on_nonfinite.get(name)) for name, table in self._tables.items()]
        self._nonfinite = {
            name: nonfinite
            for name, table in self._tables.items()
            if not self._of_differences
            if name not in self._sparse and on_nonfinite.get(name, options.get("on_nonfinite")) != "propagate"
            if (nonfinite := Nonfinite.of(table.dense())) is not None
        }
        tensors += [nonfinite.spec(name) for name, nonfinite in self._nonfinite.items()]
        given: dict[str, Any] = {"weighting": "uniform" if of_all else "by_weight"}
        if self._numerics is not None and (keeps or client is not None):
            given["keep_submissions"] = True
        spec = sa.RoundSpec(tensors, **{**given, **options})
        if ledger is not None:
            ledger.spend(spec)
        self._is_weighted = is_weighted(spec)
        self._rule = rule
        self.choice: ClientWeights | None = None
        self.handle: str | None = None
        self._aggregator, self._round, self._own_client = None, None, None
        self._added: set[str] = set()
        if client is not None:
            self._round = client.create_round(spec)
            self.handle = self._round.handle
        elif rule is not None:  # which looks at a round of this process
            self._own_client = sa.Client(":memory:")
            self._round = self._own_client.create_round(spec)
        else:
            self._aggregator = sa.Aggregator(spec, noise_key=noise_key)

    def _tensor(self, name: str, table: Table, op: Op, on_nonfinite: OnNonfinite | None) -> sa.TensorSpec:
        is_sparse = name in self._sparse
        how: dict[str, Any] = {} if is_sparse else {"numerics": self._numerics, "clip": self._unbounded}
        own = op if is_sparse else self._whole_op
        return tensor_spec(name, table, own, is_sparse, on_nonfinite=on_nonfinite, **how)

    def add(self, client_id: str, update: Mapping[str, Any], weight: float) -> None:
        """Merges an update, completely or not at all; a ``SparseaggError`` says why it is refused.

        ``client_id`` sets the order of sums. ``update``: by tensor, (keys, rows) of differences, or the whole array,
        also of a sparse tensor.
        """
        with naming_client(client_id):
            prepared = self._prepared(update)
        weight = weight if self._is_weighted else 1.0
        if self._aggregator is not None:
            self._aggregator.add(client_id, prepared, weight)
            self._added.add(client_id)
        elif self._round is not None:
            with naming_client(client_id):
                self._round.submit(client_id, prepared, weight)

    def _prepared(self, update: Mapping[str, Any]) -> dict[str, Any]:
        prepared: dict[str, Any] = {}
        for name, table in self._tables.items():
            if name not in update:
                if name in self._sparse:
                    continue  # no row has changed
                raise sa.InvalidArgumentError(f"there is no tensor {name!r}; it has {', '.join(map(repr, update))}")
            value, is_sparse = update[name], name in self._sparse
            if is_sparse or self._of_differences or isinstance(value, tuple):
                prepared[name] = difference_to(table, name, value, is_sparse)
                continue
            check_shape(name, value.shape, table.shape)
            if name in self._nonfinite:
                prepared.update(self._nonfinite[name].update(name, value))
            else:
                prepared[name] = value
        return prepared

    def finish(
        self, counted: Iterable[str], optimizer: RowOptimizer | None
    ) -> tuple[dict[str, Table], dict[str, Any], set[str]]:
        """Merges, and takes the step; a ``SparseaggError`` if nothing could be merged, or an update not be taken out
        any more.

        ``counted``: ids of the clients whose updates count. Others may have been added, or a server may have them: of
        clients that died afterwards. ``optimizer``: of the server; None adds the merged differences, and takes the
        merged whole arrays. Returns the tables of the next model; the keys that have changed of sparse tensors, by
        name, None for all keys; and the ids among ``counted`` of which the server has no submission.
        """
        counted = set(counted)
        missing: set[str] = set()
        if self._aggregator is not None:
            for client_id in self._added - counted:
                self._aggregator.withdraw(client_id)
            result = self._aggregator.finish()
            sa.release_memory()  # that the engine keeps for a next merge, which is a round of training away
        else:
            result, missing = self._close(counted)
            if isinstance(self._round, ClusterRound):  # which would keep the submissions
                self._round.delete()
        tables, changed = {}, {}
        for name, table in self._tables.items():
            if name in self._sparse:
                tables[name], changed[name] = _step_of_rows(name, table, result[name], optimizer)
                continue
            merged, nonfinite = result[name].dense(), self._nonfinite.get(name)
            if self._of_differences:
                merged = table.dense().astype(np.float64) + merged.reshape(table.shape)
            if nonfinite is not None:
                merged = nonfinite.restored(merged, result[name + KEPT].indices)
            tables[name] = _step_of_whole(name, table, merged, nonfinite, optimizer)
        self._close_own_client()
        return tables, changed, missing

    def _close(self, counted: set[str]) -> tuple[sa.Result, set[str]]:
        """Closes the round; returns its result, and the ids that have no submission there."""
        assert self._round is not None
        if self._rule is not None:
            assert isinstance(self._round, sa.Round)
            result, self.choice = finish_by_rule(self._round, self._rule, counted)
            return result, counted.difference(self.choice.clients)
        missing = _closed(self._round, counted)
        return self._round.result(), missing

    def cancel(self, reason: str) -> None:
        """Discards the updates."""
        if self._round is not None:
            with contextlib.suppress(sa.SparseaggError):
                self._round.cancel(reason)
        self._close_own_client()

    def _close_own_client(self) -> None:
        if self._own_client is not None:
            self._own_client.close()


class ServedMerge:
    """The merge of one round's updates of a model on a server, which takes the step itself; used as ``Merge``."""

    choice = None  # no rule chooses among the updates

    def __init__(self, model: sa.Model, version: int, op: Op, options: Mapping[str, Any]) -> None:
        self._model, self._version = model, version
        self._round = model.create_round(op, **{"weighting": "by_weight", "keep_submissions": True, **options})
        self.handle = self._round.handle

    def add(self, client_id: str, update: Mapping[str, Any], weight: float) -> None:
        """Raises ``InvalidArgumentError``: clients upload to the server."""
        raise sa.InvalidArgumentError(
            f"client {client_id!r} sends arrays in its reply; it needs sparse_mod with model="
        )

    def finish(
        self, counted: Iterable[str], optimizer: RowOptimizer | None
    ) -> tuple[dict[str, Table], dict[str, Any], set[str]]:
        """Merges, and makes the model's next version; no tables change here. Errors: as of ``Merge``."""
        missing = _closed(self._round, set(counted))
        self._model.apply(self._round, base_version=self._version)
        self._round.delete()
        return {}, {}, missing

    def cancel(self, reason: str) -> None:
        """Discards the updates."""
        with contextlib.suppress(sa.SparseaggError):
            self._round.cancel(reason)


def _closed(round_: sa.Round | ClusterRound, counted: set[str]) -> set[str]:
    """Merges the submissions of these clients, and waits for the end; returns those that have none in the round."""
    missing: set[str] = set()
    try:
        round_.start_merge(only=sorted(counted))
    except sa.errors.FailedPreconditionError:  # such as a client that claims an upload which the server does not have
        missing = counted - {submission.client_id for submission in round_.submissions()}
        if not missing or missing == counted:
            raise
        round_.start_merge(only=sorted(counted - missing))
    round_.wait()
    return missing


def check_shape(name: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Raises ``InvalidArgumentError`` if a client's array has another shape than the model's, apart from axes of 1."""
    if not is_like(shape, wanted):
        raise sa.InvalidArgumentError(f"tensor {name!r} has shape {shape}; the model's has {wanted}")


@default_float_environment()
def changed_rows(before: Any, after: Any, row_width: int) -> tuple[Any, Any]:
    """Returns (keys, differences) of the rows in which two arrays of one size differ.

    A value that is not finite and has not changed has the difference 0. Differences of integers are wide enough.
    """
    before, after = before.reshape(-1, row_width), after.reshape(-1, row_width)
    keys = np.flatnonzero((before != after).any(axis=1))
    old, new = before[keys], after[keys]
    if old.dtype.kind in "biu" and new.dtype.kind in "biu":
        wide = _DIFFERENCES.get(max(old.dtype.itemsize, new.dtype.itemsize), "int64")
        return keys, new.astype(wide) - old.astype(wide)
    rows = difference(old, new)
    if not np.isnan(new).any():
        return keys, rows
    moved = ~unchanged(old, new).all(axis=1)  # the others are NaN as they were
    return keys[moved], rows[moved]


def tensor_spec(name: str, table: Table, op: Op, is_sparse: bool, **how: Any) -> sa.TensorSpec:
    """Returns the spec of a tensor of which clients send rows, or the whole array unless it ``is_sparse``."""
    layout: Layout = "sparse" if is_sparse else "dense"
    return sa.TensorSpec(
        name,
        # The mean of integers, such as torch's num_batches_tracked, is no integer: it is rounded when it is known.
        str(table.dtype) if str(table.dtype) in _SUMMED else "float64",
        shape=table.shape,
        row_width=table.row_width if is_sparse else None,
        layout=layout,
        result_layout=layout,
        op=op,
        **how,
    )


def difference_to(base: Table, name: str, value: Any, is_sparse: bool) -> Any:
    """Returns a client's part of an update as a difference to the table that it was sent: of rows if it ``is_sparse``.

    ``value``: (keys, rows) of differences, which stay as they are, or the whole array.
    """
    if isinstance(value, tuple):
        if not is_sparse:
            raise sa.InvalidArgumentError(f"tensor {name!r} comes as rows, but is not among the sparse tensors")
        return value
    check_shape(name, value.shape, base.shape)
    return changed_rows(base.dense(), value, base.row_width) if is_sparse else _whole_difference(base.dense(), value)


@default_float_environment()
def stepped(
    tables: Mapping[str, Table], sparse: Collection[str], result: sa.Result, optimizer: RowOptimizer | None
) -> tuple[dict[str, Table], dict[str, Any]]:
    """Returns the tables after a step along merged differences, and the changed keys of the sparse ones."""
    after, changed = {}, {}
    for name, table in tables.items():
        if name in sparse:
            after[name], changed[name] = _step_of_rows(name, table, result[name], optimizer)
        else:
            moved = table.dense().astype(np.float64) + result[name].dense().reshape(table.shape)
            after[name] = _step_of_whole(name, table, moved, None, optimizer)
    return after, changed


@default_float_environment()
def _whole_difference(before: Any, after: Any) -> Any:
    """Returns after − before: in the dtype of floats, else in float64."""
    if str(before.dtype) not in _SUMMED:
        before, after = before.astype(np.float64), after.astype(np.float64)
    return difference(before, after.reshape(before.shape))


@default_float_environment()
def _step_of_rows(
    name: str, table: Table, merged: sa.TensorResult, optimizer: RowOptimizer | None
) -> tuple[Table, Any]:
    keys = merged.indices
    delta = np.asarray(merged.values).reshape(len(keys), table.row_width)
    if optimizer is not None and optimizer.dense:  # which moves all rows
        values = table.dense().copy()
        optimizer.step(name, values.reshape(-1, table.row_width), (keys, delta))
        return _rewritten(table, values), None
    rows = table.rows_at(keys)
    if optimizer is None:
        for begin in range(0, len(rows), _BLOCK):
            part = slice(begin, begin + _BLOCK)
            moved = rows[part].astype(np.float64) + delta[part]
            rows[part] = moved if rows.dtype.kind == "f" else np.rint(moved)
    else:
        rows = optimizer.step_rows(name, table.num_rows, keys, rows, delta)
    return table.with_rows(keys, rows), keys


@default_float_environment()
def _step_of_whole(
    name: str, table: Table, merged: Any, nonfinite: Nonfinite | None, optimizer: RowOptimizer | None
) -> Table:
    if table.dtype.kind != "f":
        return _rewritten(table, np.asarray(np.rint(merged)).astype(table.dtype))
    if optimizer is None:
        return _rewritten(table, merged.astype(table.dtype, copy=False))
    values, merged = table.dense().copy(), merged.reshape(-1)
    with np.errstate(invalid="ignore"):
        delta = merged - values.astype(np.float64).reshape(-1)
    if nonfinite is not None:  # no step leads from there; the mean itself is the next value
        delta[nonfinite.positions] = 0
    optimizer.step(name, values.reshape(-1), delta)
    if nonfinite is not None:
        values.reshape(-1)[nonfinite.positions] = merged[nonfinite.positions]
    return _rewritten(table, values)


def _rewritten(table: Table, values: Any) -> Table:
    return Table.of(to_array(values.reshape(table.shape)), table.row_width)
