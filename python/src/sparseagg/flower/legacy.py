"""Sparse updates for strategies of ``flwr.server.strategy``, which know arrays by position.

    strategy = SparseFedAvg(sparse=[0])                       # in the place of flwr.server.strategy.FedAvg()

    def fit(self, parameters, config):                        # the client
        ...
        return sparse_ndarrays(parameters, trained, [0]), num_examples, {"partition-id": self.partition}

Only the way up is sparse: this API has no place for a mod that makes a model of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import ERROR, INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import Array
from flwr.common import EvaluateRes, FitRes, Parameters, Scalar
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg
from flwr.supercore import log

import sparseagg as sa
from sparseagg._internal.base.types import Op
from sparseagg._internal.spec.options import is_like
from sparseagg._internal.updates.contributors import naming_client
from sparseagg.flower.merge import Merge, changed_rows
from sparseagg.flower.model import Table, view
from sparseagg.flower.replies import check_goes_on
from sparseagg.optimizers import RowOptimizer


def sparse_ndarrays(before: Sequence[Any], after: Sequence[Any], sparse: Sequence[int]) -> list[Any]:
    """Returns the arrays that a client sends: of those at the positions ``sparse``, keys and differences of rows.

    Raises:
        InvalidArgumentError: the lists differ in length, or two arrays in shape.
    """
    if len(before) != len(after):
        raise sa.InvalidArgumentError(f"the model has {len(before)} arrays before training, and {len(after)} after it")
    arrays: list[Any] = []
    for position, (old, new) in enumerate(zip(before, after)):
        if position not in sparse:
            arrays.append(new)
            continue
        if not is_like(old.shape, new.shape):
            raise sa.InvalidArgumentError(f"array {position} has shape {old.shape}, and {new.shape} after training")
        arrays.extend(changed_rows(old, new, _width(old)))
    return arrays


class SparseFedAvg(FedAvg):
    """``FedAvg`` of clients that send ``sparse_ndarrays``, or all arrays, as always.

    The order of sums, and so the last bits, is that of the metric "partition-id" of the clients, and of their ids where
    they send none. An update that is refused is reported like a failure; the others count.

    Args:
        sparse: positions of the arrays of which clients send rows.
        op: of these arrays: "mean", "coordinate_mean" or "sum"; see ``sparseagg.flower.SparseMixin``.
        optimizer: takes the step of the server; None adds the merged differences.
        options: of the rounds; see ``sparseagg.flower.SparseMixin``.

    Raises:
        InvalidArgumentError: a class that this one is combined with aggregates in another way.
    """

    def __init__(
        self,
        *args: Any,
        sparse: Sequence[int] = (),
        op: Op = "mean",
        optimizer: RowOptimizer | None = None,
        options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        check_goes_on(type(self), "aggregate_fit", (SparseFedAvg,), FedAvg)
        classes = type(self).__mro__
        for cls in classes[classes.index(SparseFedAvg) + 1 : classes.index(FedAvg)]:
            if "aggregate_fit" in vars(cls):
                raise sa.InvalidArgumentError(
                    f"{cls.__name__}.aggregate_fit would not be called; optimizer= takes a step of the server"
                )
        super().__init__(*args, **kwargs)
        self._sparse = [int(position) for position in sparse]
        self._op = op
        self._optimizer = optimizer
        self._options = dict(options or {})
        self._tables: dict[str, Table] = {}
        self._has_warned = False

    def configure_fit(self, server_round: int, parameters: Parameters, client_manager: Any) -> Any:
        """As FedAvg's; remembers the model, to which the rows are added."""
        arrays = [_array(tensor) for tensor in parameters.tensors]
        unknown = [position for position in self._sparse if not 0 <= position < len(arrays)]
        if unknown:
            raise sa.InvalidArgumentError(f"sparse has position {unknown[0]}, but the model has {len(arrays)} arrays")
        self._tables = {
            str(position): Table.of(array, _width(view(array)) if position in self._sparse else 1)
            for position, array in enumerate(arrays)
        }
        return super().configure_fit(server_round, parameters, client_manager)

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Merges the results, and takes the step."""
        if not self._tables:
            raise sa.errors.FailedPreconditionError(
                "there is no model: the server calls configure_fit before aggregate_fit"
            )
        merge = Merge(self._tables, map(str, self._sparse), self._op, None, self._options, keeps=True)
        merged: dict[str, FitRes] = {}
        for proxy, result in results:
            # The client's own id is part of it, so that no client can push another out.
            client = f"{result.metrics.get('partition-id', '')!s:>20}:{proxy.cid}"
            try:
                with naming_client(client):
                    merge.add(client, self._update(result.parameters.tensors), result.num_examples)
                merged[client] = result
            except MemoryError:
                raise
            except Exception as error:  # of any kind, since clients send anything: this one fails, and no other
                log(INFO, "aggregate_fit: the result of client %s is refused: %s", proxy.cid, error)
                failures.append(error)
        if not merged:
            log(ERROR, "aggregate_fit: none of %d results counts, and the model stays", len(results))
            return None, {}
        if failures and not self.accept_failures:
            return None, {}
        try:
            tables, _, _ = merge.finish(merged, self._optimizer)
        except sa.SparseaggError as error:
            log(ERROR, "aggregate_fit: the updates cannot be merged, and the model stays: %s", error)
            return None, {}
        self._tables = {**self._tables, **tables}
        metrics: dict[str, Scalar] = {}
        if self.fit_metrics_aggregation_fn:
            given = [(result.num_examples, result.metrics) for result in merged.values()]
            try:
                metrics = self.fit_metrics_aggregation_fn(given)
            except ArithmeticError as error:  # as of numbers of examples that are all 0
                log(WARNING, "aggregate_fit: the updates count; there is no average of the metrics: %s", error)
        tensors = [table.to_array().data for table in self._tables.values()]
        return Parameters(tensors=tensors, tensor_type="numpy.ndarray"), metrics

    def aggregate_evaluate(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, EvaluateRes]],
        failures: list[tuple[ClientProxy, EvaluateRes] | BaseException],
    ) -> tuple[float | None, dict[str, Scalar]]:
        """As FedAvg's. Without a loss where the clients' numbers of examples have no average, such as all 0."""
        try:
            return super().aggregate_evaluate(server_round, results, failures)  # type: ignore[no-any-return]
        except ArithmeticError as error:
            numbers = {proxy.cid: result.num_examples for proxy, result in results}
            log(
                WARNING, "aggregate_evaluate: there is no average of the loss: %s, with num_examples %s", error, numbers
            )
            return None, {}

    def _update(self, tensors: Sequence[bytes]) -> dict[str, Any]:
        sparse = set(self._sparse) if len(tensors) == len(self._tables) + len(self._sparse) else set()
        if self._sparse and len(tensors) == len(self._tables) and not self._has_warned:
            self._has_warned = True
            log(WARNING, "aggregate_fit: a client sends whole arrays; its fit returns them without sparse_ndarrays")
        if len(tensors) != len(self._tables) + len(sparse):
            raise sa.InvalidArgumentError(
                f"{len(tensors)} arrays, but the model has {len(self._tables)}, {len(self._sparse)} of them sparse"
            )
        rest = iter(tensors)
        update: dict[str, Any] = {}
        for position in range(len(self._tables)):
            parts = ("keys of ", "rows of ") if position in sparse else ("",)
            values = tuple(_values(next(rest), f"{part}tensor '{position}'") for part in parts)
            update[str(position)] = values if position in sparse else values[0]
        return update


def _values(tensor: bytes, what: str = "an array") -> Any:
    return view(Array("", (), "numpy.ndarray", tensor), what)


def _array(tensor: bytes) -> Array:
    """Returns a serialized array as one of a record, which shares its bytes."""
    values = _values(tensor)
    return Array(str(values.dtype), tuple(values.shape), "numpy.ndarray", tensor)


def _width(values: Any) -> int:
    return int(np.prod(values.shape[1:], dtype=np.int64))
