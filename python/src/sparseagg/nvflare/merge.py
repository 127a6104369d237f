"""A model as an update, and rounds of NVFlare as rounds of sparseagg."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from nvflare.app_common.abstract.fl_model import ParamsType

import sparseagg as sa
from sparseagg._internal.base import types
from sparseagg._internal.spec import options as spec_options
from sparseagg._internal.spec import round_spec
from sparseagg._internal.updates import contributors as updates
from sparseagg._internal.updates import nonfinite
from sparseagg.cluster import ClusterClient, ClusterRound, cluster, exchange
from sparseagg.nvflare.arrays import KEYS, ROWS, ArrayForm, MergedRows, naming_tensor, numpy_of, to_array


class ModelForm:
    """Names, shapes and dtypes of the arrays in ``params``, and their values that are not finite. Immutable. The other
    arguments are those of ``SparseAggregator``.
    """

    def __init__(
        self,
        params: Mapping[str, Any],
        sparse: list[str],
        elements: list[str],
        op: types.Op,
        exclude_vars: str | None,
        options: Mapping[str, Any] | None,
    ) -> None:
        self._forms = {name: ArrayForm.of(array) for name, array in params.items()}
        self._sparse, self._elements, self._op = sparse, elements, op
        self._excluded = re.compile(exclude_vars) if exclude_vars else None
        self._all_options = options

    def dense_names(self) -> list[str]:
        """Returns the names of the tensors that travel whole."""
        return [name for name, _ in self._aggregated() if not self._is_sparse(name)]

    @property
    def is_binned(self) -> bool:
        """Whether whole arrays may be binned sums, which need no kept results: no option asks for something else."""
        return self._op not in spec_options.ORDER_OPS and not set(self._all_options or ()) - {"on_nonfinite"}

    def names(self, params_type: ParamsType) -> tuple[list[str], list[str]]:
        """Returns the names of the tensors of which clients may send rows, and of the others."""
        names = [name for name, _ in self._aggregated()]
        rows = [name for name in names if params_type == ParamsType.DIFF and self._is_sparse(name)]
        return rows, [name for name in names if name not in rows]

    def spec(
        self, params_type: ParamsType, names: Collection[str] | None = None, whole: types.Op = "coordinate_mean"
    ) -> sa.RoundSpec:
        """Returns the spec of a round of these tensors, of which all submissions have the whole ones, as binned sums.

        None: of all tensors, each of which may be absent from a submission. ``whole``: the op of whole arrays then.
        """
        on_nonfinite, options = self._options()
        tracked = self._tracked()
        is_order = self._op in spec_options.ORDER_OPS
        absent = options.pop("absent", "zero") if is_order else None
        tensors = []
        for name, form in self._aggregated():
            if names is not None and name not in names:
                continue
            is_rows = self._is_sparse(name) and params_type == ParamsType.DIFF
            how: dict[str, Any] = {
                "row_width": 1 if name in self._elements else None,  # None: as the shape says
                "op": self._op if is_rows or is_order else whole,
                "absent": absent if is_rows or not is_order else "skip",  # who left out a whole array does not vote
            }
            if names is not None and not is_rows:
                how = {"op": "mean", "layout": "dense", "result_layout": "dense", "numerics": "binned"}
            tensors.append(
                sa.TensorSpec(name, form.wire_dtype, shape=form.shape, on_nonfinite=on_nonfinite.get(name), **how)
            )
            if params_type == ParamsType.FULL and name in tracked:
                tensors.append(tracked[name].spec(name))
        weighting = "uniform" if is_order else "by_weight"
        return sa.RoundSpec(tensors, **{"weighting": weighting, "result_layout": "sparse", **options})

    def update(self, params: Mapping[Any, Any], params_type: ParamsType) -> dict[str, Any]:
        """Returns the update of a client's params; lazy references become arrays. ``InvalidArgumentError`` names the
        tensor that does not fit the model.
        """
        update: dict[str, Any] = {}
        known, tracked = dict(self._aggregated()), self._tracked()
        for name, value in params.items():
            if not isinstance(name, str):
                raise sa.InvalidArgumentError(f"a tensor's name must be text, got {name!r}")
            tensor = name.rpartition(":")[0]
            if name.endswith(KEYS) and tensor + ROWS in params:
                if params_type != ParamsType.DIFF:
                    raise sa.InvalidArgumentError(f"tensor {tensor!r}: rows are differences, but params_type is FULL")
                if not self._is_sparse(tensor):
                    names = f"sparse={self._sparse}, nor in elements={self._elements}"
                    raise sa.InvalidArgumentError(f"tensor {tensor!r} came as rows, but is not in {names}")
                with naming_tensor(tensor):
                    keys, rows = to_array(value), to_array(params[tensor + ROWS])
                    odd = tracked.get(tensor)
                    update[tensor] = keys, rows if odd is None else _without_nan(keys, rows, odd)
            elif not (name.endswith(ROWS) and tensor + KEYS in params):
                if name not in known:
                    if name in self._forms:  # excluded, or without values
                        continue
                    raise sa.InvalidArgumentError(f"unknown tensor {name!r}; the model has {', '.join(self._forms)}")
                with naming_tensor(name):
                    update.update(self._whole(name, to_array(value), known[name], params_type, tracked.get(name)))
        return update

    def params(self, result: Mapping[str, sa.TensorResult], params_type: ParamsType, rows: bool) -> dict[str, Any]:
        """Returns the params of a result; those of sparse tensors are ``MergedRows``, if ``rows``, or else arrays."""
        params: dict[str, Any] = {}
        for name, form in self._forms.items():
            found = result.get(name)
            if found is None:
                if params_type == ParamsType.FULL and not math.prod(form.shape):
                    params[name] = form.array(np.zeros(form.shape))
            elif len(found) and self._is_sparse(name) and rows and params_type == ParamsType.DIFF and form.is_float:
                params[name] = MergedRows(found)
            elif len(found):
                values = found.values if len(found) == found.num_rows else found.dense()
                kept = result.get(name + nonfinite.KEPT)
                if kept is not None and form.nonfinite is not None:
                    values = form.nonfinite.restored(np.asarray(values), kept.indices)
                params[name] = form.array(values)
        return params

    def _is_sparse(self, name: str) -> bool:
        return name in self._sparse or name in self._elements

    def _options(self) -> tuple[dict[str, types.OnNonfinite], dict[str, Any]]:
        return nonfinite.split_on_nonfinite(self._all_options, self._forms)

    def _aggregated(self) -> Iterable[tuple[str, ArrayForm]]:
        for name, form in self._forms.items():
            if math.prod(form.shape) and not (self._excluded and self._excluded.search(name)):
                yield name, form

    def _tracked(self) -> dict[str, nonfinite.Nonfinite]:
        """Returns the values that are not finite, by tensor, where clients may not send such values."""
        words, options = self._options()
        general = options.get("on_nonfinite")
        return {
            name: form.nonfinite
            for name, form in self._aggregated()
            if form.nonfinite is not None and words.get(name, general) != "propagate"
        }

    def _whole(
        self, name: str, array: Any, form: ArrayForm, params_type: ParamsType, odd: nonfinite.Nonfinite | None
    ) -> dict[str, Any]:
        """Returns the tensors of the update for an array that came whole."""
        shape = tuple(array.shape)
        if not spec_options.is_like(shape, form.shape):
            raise sa.InvalidArgumentError(f"tensor {name!r} has shape {shape}, but the model's has {form.shape}")
        if params_type == ParamsType.FULL and self._is_sparse(name) and self._op in ("coordinate_mean", "sum"):
            raise sa.InvalidArgumentError(
                f"tensor {name!r}: op={self._op!r} is of differences, and params_type is FULL: use sparse_diff in the "
                "script, or params_transfer_type=TransferType.DIFF in the recipe"
            )
        array = array.reshape(form.shape)
        if odd is None:
            return {name: array if form.is_float else array * 1.0}
        array = numpy_of(array)
        if params_type == ParamsType.FULL:
            return odd.update(name, array)
        return {name: _with_zeros(array, odd.positions[np.isnan(array.reshape(-1)[odd.positions])])}


def _without_nan(keys: Any, rows: Any, odd: nonfinite.Nonfinite) -> Any:
    """Returns rows with 0 for NaN at what is not finite in the model: NVFlare's own difference of what is unchanged."""
    values = numpy_of(rows)
    if values.dtype.kind != "f" or not np.isnan(values).any():
        return rows
    values, keys = values.reshape(len(keys), -1), numpy_of(keys).astype(np.int64)
    at = np.flatnonzero(np.isnan(values))
    positions = keys[at // values.shape[1]] * values.shape[1] + at % values.shape[1]
    return _with_zeros(values, at[np.isin(positions, odd.positions)])


def _with_zeros(array: Any, positions: Any) -> Any:
    array = array.copy(order="C")
    array.reshape(-1)[positions] = 0
    return array


class RoundMerge:
    """Results of clients, merged as they come. Not thread-safe.

    Whole arrays are binned sums, which need no kept results, unless a rule, the op or an option needs these:
    one round for each set of arrays that clients have sent, since all submissions of a round have the same arrays. The
    rows are another round. Partials of arrays that are in several rounds give the bits of a single one.

    Life cycle: ``add`` each result, in any order; ``finish`` or ``cancel`` once.

    Args:
        form: of the model.
        params_type: of the results.
        client: of the server, or of the cluster, that merges; None: this process does.
        rule: chooses among the results when they are there; None: all count.

    Attributes:
        accepted: weight and metrics of the results that count, by client.
        choice: of the rule, once ``finish`` has been called.
    """

    def __init__(
        self,
        form: ModelForm,
        params_type: ParamsType,
        client: sa.Client | ClusterClient | None,
        rule: cluster.Rule | None = None,
    ) -> None:
        cluster.check_rule(client, rule)
        self._form, self._params_type = form, params_type
        self._rows, self._whole = form.names(params_type)
        self._rule = rule
        self.choice: sa.robust.ClientWeights | None = None
        self._own_client = sa.Client(":memory:") if client is None and rule is not None else None
        self._client = client or self._own_client
        self._is_binned = form.is_binned and rule is None
        self._parts: dict[frozenset[str] | None, _Part] = {}  # by the whole arrays in it; None: of rows, or of all
        self.accepted: dict[str, tuple[float, Any]] = {}

    def add(self, client: str, update: Mapping[str, Any], weight: float, metrics: Any) -> None:
        """Adds a result, completely or not at all. Raises a ``SparseaggError`` that names the client."""
        pieces: dict[frozenset[str] | None, Mapping[str, Any]] = {None: update}
        if self._is_binned:
            pieces = {None: {name: update[name] for name in self._rows if name in update}} if self._rows else {}
            if arrays := frozenset(update).intersection(self._whole):
                pieces[arrays] = {name: array for name, array in update.items() if name not in self._rows}
        added: list[_Part] = []
        try:
            for which, piece in pieces.items():
                part = self._part(which)
                part.add(client, piece, weight)
                added.append(part)
        except BaseException:
            for part in added:  # of rows, which are kept
                part.withdraw(client)
            raise
        self.accepted[client] = weight, metrics

    def _part(self, arrays: frozenset[str] | None) -> _Part:
        """Returns the part for results with these whole arrays; None: with rows, or with anything."""
        if arrays not in self._parts:
            names = None if not self._is_binned else self._rows if arrays is None else arrays
            self._parts[arrays] = _Part(self._form.spec(self._params_type, names), self._client)
        return self._parts[arrays]

    def finish(self) -> Mapping[str, sa.TensorResult]:
        """Merges. Results that a rule leaves out are no longer in ``accepted``."""
        if self._rule is not None:
            result, self.choice = self._parts[None].finish_by_rule(self._rule, self.accepted)
            self.accepted = {client: self.accepted[client] for client, weight in self.choice.items() if weight > 0}
            self.cancel()
            return result
        merged: dict[str, sa.TensorResult] = {}
        # Arrays that clients of weight 0 alone have sent have no mean.
        parts = {arrays: part for arrays, part in self._parts.items() if part.weight or arrays is None}
        if self._parts and not parts:
            raise sa.errors.FailedPreconditionError("the weights of all results add up to 0, so there is no mean")
        for name in self._whole:
            having = [part for arrays, part in parts.items() if arrays is not None and name in arrays]
            if len(having) > 1:
                total = sa.Aggregator(self._form.spec(self._params_type, [name]))
                names = [tensor.name for tensor in total.spec.tensors]
                for number, partial in enumerate(itertools.chain.from_iterable(part.export(names) for part in having)):
                    total.add_partial(number, partial)
                merged.update(total.finish())
        for part in parts.values():
            if any(tensor.name not in merged for tensor in part.spec.tensors):
                merged = {**part.finish(), **merged}
        self.cancel()
        return merged

    def cancel(self) -> None:
        """Ends what was not finished on the server."""
        for part in self._parts.values():
            part.cancel()
        self._parts = {}
        if self._own_client is not None:
            self._own_client.close()
            self._own_client = None


class _Part:
    """A round of some or all of the tensors, in this process or on a server; ``weight``: of the submissions."""

    def __init__(self, spec: sa.RoundSpec, client: sa.Client | ClusterClient | None) -> None:
        self.spec = spec
        self.weight = 0.0
        self._aggregator = sa.Aggregator(spec) if client is None else None
        self._round = None if client is None else client.create_round(spec)
        self._is_weighted = round_spec.is_weighted(spec)

    def add(self, client: str, update: Mapping[str, Any], weight: float) -> None:
        vote = weight if self._is_weighted else 1.0
        if self._aggregator is not None:
            self._aggregator.add(client, update, vote)
        elif self._round is not None:
            with updates.naming_client(client):
                self._round.submit(client, update, vote)
        self.weight += vote

    @property
    def memory_bytes(self) -> int:
        """Bytes that this process holds for the merge."""
        return 0 if self._aggregator is None else self._aggregator.memory_bytes

    def withdraw(self, client: str) -> None:
        if self._aggregator is not None:
            self._aggregator.withdraw(client)
        elif self._round is not None:
            self._round.withdraw(client)

    def export(self, names: Iterable[str]) -> Iterator[list[bytes]]:
        """Yields the partial of some tensors, of each server that has results; the part takes no more results."""
        if self._aggregator is not None:
            yield [block for name in names for block in self._aggregator.export_partial(name)]
            return
        assert self._round is not None
        for own in self._round._rounds if isinstance(self._round, ClusterRound) else [self._round]:
            if own.seal().num_submissions > 0:
                yield [block for name in names for block in exchange.export_partial(own, name)]

    def finish(self) -> sa.Result:
        if self._aggregator is not None:
            return self._aggregator.finish()
        assert self._round is not None
        result = self._round.finish()
        if isinstance(self._round, ClusterRound):  # which would keep the submissions
            self._round.delete()
        self._round = None
        return result

    def finish_by_rule(self, rule: cluster.Rule, only: Collection[str]) -> tuple[sa.Result, sa.robust.ClientWeights]:
        assert isinstance(self._round, sa.Round)
        found = cluster.finish_by_rule(self._round, rule, only)
        self._round = None
        return found

    def cancel(self) -> None:
        if self._round is not None:
            with contextlib.suppress(sa.SparseaggError):
                self._round.cancel("the NVFlare round ended without an aggregation")
            self._round = None
