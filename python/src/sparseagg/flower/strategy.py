"""Strategies of ``flwr.serverapp.strategy`` that merge sparse updates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from logging import ERROR, INFO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy.result import Result
from flwr.serverapp.strategy.strategy_utils import validate_message_reply_consistency
from flwr.supercore import log

import sparseagg as sa
from sparseagg.arguments import shown
from sparseagg.flower.downlink import Downlink
from sparseagg.flower.merge import Merge, changed_rows
from sparseagg.flower.model import Model, Table
from sparseagg.flower.records import CONFIG, NEEDS_WHOLE, PRECONDITION, update_of
from sparseagg.flower.streaming_grid import Replies, StreamingGrid
from sparseagg.optimizers import RowOptimizer
from sparseagg.spec_of_model import Names

__all__ = ["SparseFedAvg", "SparseMixin"]


class SparseMixin:
    """Gives a strategy that is derived from ``FedAvg`` sparse updates, and a sparse way down.

        class SparseFedProx(SparseMixin, FedProx): ...

    Clients use ``sparse_mod``. Those that do not are sent the whole model, and their arrays are merged, too. A strategy
    that takes steps of its own, as FedAdam, is given the merged model as the only reply, and takes its dense step.

    An update that is refused, or that comes too late, is reported like an error of its client.

    Args:
        sparse: the tensors of which clients send rows: names, patterns such as "*.embedding.weight", or a function of
            name and array.
        elements: the tensors of which clients send single elements, named likewise.
        op: of these tensors. "mean": a row that a client did not change counts as no change, as in FedAvg.
            "coordinate_mean": only clients that changed the row count. Or "sum".
        server: "host:port" of a sparseagg server to which clients upload; ":local:" starts one, for clients of this
            machine; or a ``sparseagg.Client``. None: arrays come with Flower's replies, and are merged here.
        optimizer: takes the step of the server; None adds the merged differences.
        rows_down: the rows that a client is sent for training. "changed": all that others have changed since the
            client's copy. "used": those of them that the client has changed before; the others of its copy grow old.
            Then training that always uses the same rows, such as the words of a text, sees no difference. Evaluation
            is sent all changed rows. Not with a server.
        history_bytes: for the keys that changed in earlier rounds; a client whose copy is older is sent the model.
        options: of the rounds, as of ``sparseagg.RoundSpec``, such as numerics="fixed_point" with its bounds.
    """

    # Attributes of FedAvg, with which this is mixed.
    weighted_by_key: str
    arrayrecord_key: str
    train_metrics_aggr_fn: Any

    def __init__(
        self,
        *args: Any,
        sparse: Names = None,
        elements: Names = None,
        op: str = "mean",
        server: str | sa.Client | None = None,
        optimizer: RowOptimizer | None = None,
        rows_down: str = "changed",
        history_bytes: int = 1 << 28,
        options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if rows_down not in ("changed", "used") or (rows_down == "used" and server is not None):
            raise sa.InvalidArgument(f'rows_down is "changed", or without a server "used", not {shown(rows_down)}')
        self._names = sparse, elements
        self._used_only = rows_down == "used"
        self._op = op
        self._server = server
        self._optimizer = optimizer
        self._history_bytes = history_bytes
        self._options = dict(options or {})
        self._client: sa.Client | None = None
        self._model: Model | None = None
        self._downlink: Downlink | None = None
        self._sparse: list[str] = []
        self._merge: Merge | None = None
        self._counted: list[str] = []

    def summary(self) -> None:
        """Logs the settings."""
        where = "in this process" if self._server is None else f"on {self._server}"
        log(INFO, "\t├──> Sparse settings:")
        log(INFO, "\t│\t├── sparse %s | elements %s", *self._names)
        log(INFO, "\t│\t└── merged by %s, %s", self._op, where)
        super().summary()  # type: ignore[misc]

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *args: Any, **kwargs: Any) -> Result:
        """Runs the rounds, as FedAvg does; replies are merged while other clients train."""
        try:
            return super().start(StreamingGrid(grid, self), initial_arrays, *args, **kwargs)  # type: ignore[misc]
        finally:
            self._cancel("the run has ended")
            if self._client is not None and self._client is not self._server:
                self._client.close()
            self._client = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the strategy's, and opens a merge."""
        self._cancel("another round begins")
        record = self._adopt(arrays)
        return super().configure_train(server_round, record, config, grid)  # type: ignore[misc,no-any-return]

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the strategy's."""
        record = self._adopt(arrays)
        return super().configure_evaluate(server_round, record, config, grid)  # type: ignore[misc,no-any-return]

    def outgoing(self, message: Message) -> Message:
        """Returns what is sent in a message's place: what the node needs to have the model."""
        model, downlink = self._known()
        if message.content.get(self.arrayrecord_key) is not model.record:
            return message  # of a strategy that sends something else
        handle = self._opened().handle if _is_train(message) else None
        return downlink.message(message, _is_train(message), handle)

    def incoming(self, reply: Message) -> Message | None:
        """Merges a reply; returns what to report in its place, and None if the node needs the whole model."""
        _, downlink = self._known()
        node = reply.metadata.src_node_id
        if reply.has_error():
            if (reply.error.reason or "").startswith(NEEDS_WHOLE):
                downlink.forget(node)
                return None
            return reply
        config = reply.content.config_records.get(CONFIG)
        downlink.note(node, config)
        if not _is_train(reply):
            return reply
        try:
            self._add(node, config, reply.content)
        except sa.SparseaggError as error:
            # As an error of the client, which Flower counts and logs.
            return Message(Error(PRECONDITION, f"sparseagg: {error}"), metadata=reply.metadata)
        reply.content = RecordDict(dict(reply.content.metric_records))
        return reply

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Finishes the merge of the replies, and takes the step."""
        if not isinstance(replies, Replies):
            replies = [seen for reply in replies if (seen := self.incoming(reply)) is not None]
        valid, _ = self._check_and_log_replies(replies, is_train=True, validate=False)  # type: ignore[attr-defined]
        contents = [reply.content for reply in valid]
        try:
            if not contents:
                return None, None
            validate_message_reply_consistency(contents, self.weighted_by_key, check_arrayrecord=False)
            metrics = self.train_metrics_aggr_fn(contents, self.weighted_by_key)
            tables, changed = self._opened().finish(self._counted, self._optimizer)
            self._merge = None
            sa.release_memory()  # that the engine keeps for a next merge, which is a round of training away
        except sa.SparseaggError as error:
            log(ERROR, "aggregate_train: the updates cannot be merged, and the model stays: %s", error)
            return None, None
        finally:
            self._cancel("the round failed")
        self._advance(tables, changed)
        if _aggregates_like_fedavg(self):
            return self._known()[0].record, metrics
        return self._own_step(server_round, contents, metrics)

    def _own_step(
        self, server_round: int, contents: list[RecordDict], metrics: MetricRecord
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Lets the strategy take its step from one reply: the merged model."""
        model, _ = self._known()
        record = ArrayRecord({name: table.to_array() for name, table in model.tables.items()})
        only = RecordDict({"arrays": record, "metrics": MetricRecord({self.weighted_by_key: 1.0})})
        message = Message(only, dst_node_id=0, message_type="train")
        aggregate, self.train_metrics_aggr_fn = self.train_metrics_aggr_fn, lambda *_: metrics
        try:
            arrays, metrics = super().aggregate_train(server_round, [message])  # type: ignore[misc]
        finally:
            self.train_metrics_aggr_fn = aggregate
        if arrays is None:
            return None, metrics
        tables, changed = {}, {}
        for name, table in model.tables.items():
            values = arrays[name].numpy().astype(table.dtype, copy=False)
            tables[name] = Table.of(Array(values), table.width)
            if name in self._sparse:
                changed[name], _ = changed_rows(table.dense(), values, table.width)
        self._advance(tables, changed)
        return self._known()[0].record, metrics

    def _add(self, node: int, config: ConfigRecord | None, content: RecordDict) -> None:
        """Merges the content of a reply; a client that has uploaded to the server itself sends no arrays."""
        client_id = f"~node-{node:020d}" if config is None else config.get("client")
        if not isinstance(client_id, str):
            raise sa.InvalidArgument(f"the configuration {CONFIG!r} of a reply has no text 'client'")
        metrics = list(content.metric_records.values())
        weight = metrics[0].get(self.weighted_by_key) if len(metrics) == 1 else None
        if not isinstance(weight, (int, float)):
            raise sa.InvalidArgument(f"a reply has one MetricRecord with a number {self.weighted_by_key!r}")
        arrays = list(content.array_records.values())
        merge = self._opened()
        if merge.handle is None or arrays:
            if len(arrays) != 1:
                raise sa.InvalidArgument(f"a reply has one ArrayRecord, not {len(arrays)}")
            model, downlink = self._known()
            update = update_of(arrays[0], model.tables)
            merge.add(client_id, update, weight)
            downlink.note_used(node, update)
        self._counted.append(client_id)

    def _adopt(self, arrays: ArrayRecord) -> ArrayRecord:
        """Makes these arrays the model, unless they are; returns the model's record."""
        if self._model is not None and arrays is self._model.record:
            return arrays
        widths, settings = self._layout(arrays)
        self._sparse = list(widths)
        version = 0 if self._model is None else self._model.version + 1
        tables = {name: Table.of(array, widths.get(name, 1)) for name, array in arrays.items()}
        self._model = Model(tables, version)
        self._downlink = Downlink(self._model, self._sparse, settings, self._used_only, self._history_bytes)
        return self._model.record

    def _layout(self, arrays: ArrayRecord) -> tuple[dict[str, int], dict[str, Any]]:
        """Returns the sparse tensors with the widths of their rows, and what clients need to know."""
        shapes = {name: np.broadcast_to(np.float32(0), array.shape) for name, array in arrays.items()}
        shapes = {name: array for name, array in shapes.items() if array.size}
        sparse, elements = self._names
        spec = sa.RoundSpec.like(shapes, sparse, elements=elements)
        widths = {tensor.name: tensor.width for tensor in spec.tensors if tensor.layout == "sparse"}
        by_element = {tensor.name for tensor in sa.RoundSpec.like(shapes, sparse).tensors if tensor.layout == "dense"}
        lists = {
            "names": list(arrays),
            "rows": [name for name in widths if name not in by_element],
            "elements": [name for name in widths if name in by_element],
        }
        # Without empty lists, of which Flower's ConfigRecord cannot count the bytes (1.42).
        settings = {name: value for name, value in lists.items() if value}
        return widths, {**settings, "arrays": self.arrayrecord_key, "weight": self.weighted_by_key}

    def _advance(self, tables: Mapping[str, Table], changed: Mapping[str, Any]) -> None:
        model, downlink = self._known()
        self._model = Model({**model.tables, **tables}, model.version + 1)
        downlink.advance(self._model, changed)

    def _known(self) -> tuple[Model, Downlink]:
        if self._model is None or self._downlink is None:
            raise sa.InvalidArgument("there is no model: call start, or configure_train before aggregate_train")
        return self._model, self._downlink

    def _opened(self) -> Merge:
        if self._merge is None:
            if self._server is not None and self._client is None:
                self._client = self._server if isinstance(self._server, sa.Client) else sa.Client(self._server)
            self._merge = Merge(self._known()[0].tables, self._sparse, self._op, self._client, self._options)
            self._counted = []
        return self._merge

    def _cancel(self, reason: str) -> None:
        if self._merge is not None:
            self._merge.cancel(reason)
            self._merge = None


class SparseFedAvg(SparseMixin, FedAvg):
    """``FedAvg`` of sparse updates; see ``SparseMixin`` for what it takes besides the arguments of ``FedAvg``."""


def _is_train(message: Message) -> bool:
    return str(message.metadata.message_type).partition(".")[0] == "train"


def _aggregates_like_fedavg(strategy: SparseMixin) -> bool:
    """Returns whether the strategy behind the mixin has FedAvg's own aggregation."""
    classes = type(strategy).__mro__
    behind = classes[classes.index(SparseMixin) + 1 :]
    return next(cls for cls in behind if "aggregate_train" in vars(cls)) is FedAvg
