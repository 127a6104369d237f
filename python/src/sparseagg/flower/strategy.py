"""Strategies of ``flwr.serverapp.strategy`` that merge sparse updates."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from logging import ERROR, INFO, WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy.result import Result
from flwr.supercore import log

import sparseagg as sa
from sparseagg._internal.base.credentials import TLSArgument, TokenArgument
from sparseagg._internal.base.text import largest_of
from sparseagg._internal.base.types import Op
from sparseagg._internal.spec.of_model import Names
from sparseagg._internal.updates.contributors import naming_client
from sparseagg.cluster import ClusterClient
from sparseagg.cluster.cluster import Rule, ServerArgument, server_client
from sparseagg.flower.checkpoint import Checkpointed
from sparseagg.flower.downlink import Downlink
from sparseagg.flower.merge import Merge, ServedMerge, changed_rows
from sparseagg.flower.model import (
    CONFIG,
    NEEDS_WHOLE,
    Model,
    Table,
    check_served,
    served_settings,
    sparse_layout,
    update_of,
)
from sparseagg.flower.replies import (
    NO_MOD,
    StreamingGrid,
    arrays_of,
    averaged,
    check_goes_on,
    client_of,
    only_arrays,
    refused,
    weight_of,
    with_node,
    with_usable_metrics,
    without_arrays,
)
from sparseagg.optimizers import RowOptimizer

# Warnings, each once in a run.
_OTHER_ARRAYS = (
    "node %d is sent all arrays, and sends all back: configure_train of %s has put other arrays than the model into "
    "its message"
)
_OTHER_ROWS = (
    "aggregate_train of %s returns other arrays than the merged model: they differ from it in %d of %d rows of tensor "
    "%r, which travels whole to each node"
)
_OTHER_FORM = (
    "aggregate_train of %s returns arrays with other names, shapes or dtypes than the model: all of them travel whole "
    "to each node"
)
_PRIVATE = {"weighting": "uniform", "mean_divisor": "fixed"}  # what privacy needs


class SparseMixin(Checkpointed):
    """Gives a strategy that is derived from ``FedAvg`` sparse updates, and a sparse way down.

        class SparseFedProx(SparseMixin, FedProx): ...

    Clients use ``sparse_mod``. Those that do not are sent the whole model, and their arrays are merged, too. A strategy
    that takes steps of its own, as FedAdam, gets the merged model from ``super().aggregate_train``, and takes its dense
    step. One that needs each client's separate update, as Bulyan, raises ``InvalidArgumentError``. Under another
    strategy that calls this one's methods, as Flower's wrappers for differential privacy do, all arrays travel whole,
    with a warning.

    An override may copy, sort or filter the replies that it hands on; updates whose replies it drops do not count. A
    reply has metrics and configuration, and no arrays. An override may return other arrays than the merged ones, such
    as an average over rounds: clients are sent the rows that differ.

    An update that is refused, or that comes too late, is reported like an error of its client; the others count.

    ``save`` and ``load`` are for a run that was killed (``Checkpointed``). A strategy that takes steps of its own adds
    its state to ``state_dict`` and ``load_state_dict``.

    Args:
        sparse: the tensors of which clients send rows: names, patterns such as "*.embedding.weight", or a function of
            name and array. A name stands for its tied weights, too: tensors with the same values at the start.
        elements: the tensors of which clients send single elements, named likewise.
        op: of these tensors. "mean": a row that a client did not change counts as no change, as in FedAvg.
            "coordinate_mean": only clients that changed the row count. Or "sum".
        server: "host:port" of a sparseagg server to which clients upload; ":local:" starts one, for clients of this
            machine; or a ``sparseagg.Client``. A ``sparseagg.cluster.Cluster``, or "host:port,host:port":
            each client uploads to its home among several servers. None: arrays come with Flower's replies, and are
            merged here.
        tls, token: of this process's connection to the server, as of ``sparseagg.Client``, with a coordinator's token.
            By default the environment's. Clients have their own (``sparse_mod``).
        optimizer: takes the step of the server; None adds the merged differences.
        model: a ``sparseagg.Model``, which has all that is trained: its optimizer takes the steps on the server,
            clients read there and upload there, and no arrays travel through Flower. ``start`` takes an
            ``ArrayRecord()``, or one with arrays of the model, which are not read; at the end, ``Model.read`` has them.
            Without the arguments above but ``op``, and for strategies that aggregate as FedAvg does.
        rows_down: with ``model``, what a client reads. "changed": what has changed since its copy. "used": the rows
            that its ``sparse_mod(rows_for=…)`` names.
        options: of the rounds, as of ``sparseagg.RoundSpec``. A ``clip`` bounds the differences of the sparse tensors.
            ``on_nonfinite`` may also be a mapping from names or patterns to "reject" or "propagate".
        dp: differential privacy of the model, for each client in each round; experimental, see docs/privacy.md. All
            tensors are merged as differences with noise, and each reply counts alike. ``options`` need ``clip``,
            ``max_submissions`` and ``fixed_divisor``, such as the number of clients that you expect. Not with a server.
            Metrics are not private: they are aggregated as they are. Integers and bools stay as they are in the model.
            The statistics of batch normalization are refused.
        ledger: pays for each round before it begins. At its budget, rounds go by without training, each with an error
            in the log. None: nobody counts.
        noise_key: of ``sparseagg.aggregate``; None: random bytes that are never stored.

    Raises:
        InvalidArgumentError: an argument has a wrong value, or the strategy needs the single updates of the clients.
    """

    # Attributes of FedAvg, with which this is mixed.
    weighted_by_key: str
    arrayrecord_key: str
    train_metrics_aggr_fn: Any

    _op_of_all = False  # whether the op is of the dense tensors, too, and each reply has one vote

    def __init__(
        self,
        *args: Any,
        sparse: Names = None,
        elements: Names = None,
        op: Op = "mean",
        server: ServerArgument | None = None,
        tls: TLSArgument = None,
        token: TokenArgument = None,
        optimizer: RowOptimizer | None = None,
        model: sa.Model | None = None,
        rows_down: str = "changed",
        options: Mapping[str, Any] | None = None,
        dp: sa.PrivacySpec | None = None,
        ledger: sa.PrivacyLedger | None = None,
        noise_key: bytes | None = None,
        **kwargs: Any,
    ) -> None:
        check_goes_on(type(self), "aggregate_train", (SparseMixin,), FedAvg)
        super().__init__(*args, **kwargs)
        if not isinstance(server, str) and (tls, token) != (None, None):
            raise sa.InvalidArgumentError('tls and token are of the connection to server="host:port"')
        if rows_down not in ("changed", "used") or (rows_down == "used" and model is None):
            raise sa.InvalidArgumentError(f'rows_down must be "changed", or with model=… "used", got {rows_down!r}')
        given = (sparse, elements, server, optimizer, dp, ledger)
        has_rule = type(self)._rule is not SparseMixin._rule
        is_other = self._op_of_all or has_rule or not _aggregates_like_fedavg(self)
        if model is not None and (is_other or any(each is not None for each in given)):
            raise sa.InvalidArgumentError(
                "model=… is for strategies that aggregate as FedAvg does, without sparse, elements, server, "
                f"optimizer, dp and ledger; got {type(self).__name__}"
            )
        self._served, self._rows_down = model, rows_down
        self._names = sparse, elements
        self._op = op
        self._server = server
        self._credentials: dict[str, Any] = {"tls": tls, "token": token}
        self._optimizer = optimizer
        self._options = dict(options or {})
        if dp is None and (ledger, noise_key) != (None, None):
            raise sa.InvalidArgumentError("ledger and noise_key are for dp=sparseagg.PrivacySpec(…)")
        if dp is not None and server is not None:
            raise sa.InvalidArgumentError("dp is not for server=…: clients upload whole arrays there, not differences")
        if dp is not None:
            self._options = {**_PRIVATE, **self._options, "privacy": dp}
        self._ledger = ledger
        self._noise_key = secrets.token_bytes(32) if dp is not None and noise_key is None else noise_key
        self._client: sa.Client | ClusterClient | None = None
        self._model: Model | None = None
        self._downlink: Downlink | None = None
        self._sparse: list[str] = []
        self._merge: Merge | ServedMerge | None = None
        self._counted: dict[str, int] = {}  # node by client id
        # The round's replies that were seen, by message, and the clients whose updates are merged; None: it failed.
        self._taken: dict[tuple[str, int], str | None] = {}
        self._streams = False  # whether start has been called, and replies are seen as they arrive
        self._warned: set[str] = set()
        # While the strategy behind takes its step: the function that averages metrics, and the average.
        self._metrics_fn: Any = None
        self._step_metrics: MetricRecord | None = None

    def summary(self) -> None:
        """Logs the settings."""
        where = "in this process" if self._server is None else f"on {self._server}"
        where = where if self._served is None else f"into {self._served.name}"
        log(INFO, "\t├──> Sparse settings:")
        log(INFO, "\t│\t├── sparse %s | elements %s", *self._names)
        if not self._streams:
            log(INFO, "\t│\t├── if its own start() runs; all arrays travel whole where another strategy calls it")
        log(INFO, "\t│\t└── merged by %s, %s", self._op, where)
        super().summary()  # type: ignore[misc]

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Runs the rounds, as FedAvg does; replies are merged while other clients train. After ``load``, it goes on
        with the model that was loaded, until there are ``num_rounds`` in all.
        """
        done, arrays = self._begin(initial_arrays, 0)

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            self._adopt(arrays)  # for state_dict
            return evaluate_fn(server_round + done, arrays) if evaluate_fn else None

        configs = train_config, evaluate_config, evaluate if evaluate_fn else None
        self._streams, self._warned = True, set()
        try:
            with self._numbering(done):
                result: Result = super().start(  # type: ignore[misc]
                    StreamingGrid(grid, self), arrays, max(0, num_rounds - done), timeout, *configs
                )
            if done:
                result.arrays = result.arrays or arrays
                for metrics in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
                    setattr(result, metrics, {number + done: each for number, each in getattr(result, metrics).items()})
            return result
        finally:
            self._streams = False
            self._cancel("the run has ended")
            if self._client is not None and self._client is not self._server:
                self._client.close()
            self._client = None

    @contextlib.contextmanager
    def _numbering(self, done: int) -> Iterator[None]:
        """Adds the rounds that are done to the numbers of rounds, which Flower's loop counts from 1."""

        def renumbered(method: Callable[..., Any]) -> Callable[..., Any]:
            return lambda server_round, *args: method(server_round + done, *args)

        # On the instance, before the methods of all its classes: an override reads the number, too.
        names = ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate") if done else ()
        vars(self).update({name: renumbered(getattr(self, name)) for name in names})
        try:
            yield
        finally:
            for name in names:
                del vars(self)[name]

    def state_dict(self) -> dict[str, Any]:
        """As of ``Checkpointed``. Raises ``InvalidArgumentError`` for a strategy with a state of its own, too."""
        if not _aggregates_like_fedavg(self) and type(self).state_dict is SparseMixin.state_dict:
            raise sa.InvalidArgumentError(
                f"{type(self).__name__} takes a step of its own, and may have a state: override state_dict and "
                "load_state_dict, or use a strategy of sparseagg.flower, such as SparseFedAdam"
            )
        return super().state_dict()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the strategy's; adopts the model, and opens the merge if a ledger has to pay for it."""
        if not self._streams:
            log(
                WARNING,
                "configure_train: all arrays travel whole, both ways: only start() of %s itself sends rows, and this "
                "method was called by another strategy, such as a wrapper for differential privacy",
                type(self).__name__,
            )
        self._cancel("another round begins")
        self._taken = {}
        record = self._adopt(arrays)
        if self._ledger is not None:
            try:
                self._opened()
            except sa.errors.ResourceExhaustedError as error:
                log(ERROR, "configure_train: nobody trains in this round, and the model stays: %s", error)
                return []
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
        sent = message.content.get(self.arrayrecord_key)
        if not isinstance(sent, ArrayRecord):
            return message  # of a strategy that sends something else
        if not model.is_in(sent):
            self._warn(_OTHER_ARRAYS, message.metadata.dst_node_id, type(self).__name__)
            return message
        handle = self._opened().handle if _is_train(message) else None
        return downlink.message(message, handle)

    def incoming(self, reply: Message) -> Message | None:
        """Merges a reply; returns what to report in its place, and None if the node needs the whole model."""
        _, downlink = self._known()
        node, is_train = reply.metadata.src_node_id, _is_train(reply)
        if is_train:
            self._taken[_key(reply)] = None
        if reply.has_error():
            if (reply.error.reason or "").startswith(NEEDS_WHOLE):
                downlink.forget(node)
                return None
            return reply
        try:
            config = reply.content.config_records.get(CONFIG)
            downlink.note(node, config)
            if not is_train:
                return reply
            if config is None and self._sparse and self._streams and _OTHER_ARRAYS not in self._warned:
                self._warn(NO_MOD, node)
            self._taken[_key(reply)] = self._add(node, reply.content)
        except MemoryError:
            raise
        except Exception as error:  # of any kind, since clients send anything: this one fails, and no other
            kind = "" if isinstance(error, sa.SparseaggError) else f"{type(error).__name__}: "
            reply.content.clear()  # breaks cycles of references: see without_arrays
            return refused(reply, f"{kind}{error}")
        reply.content = without_arrays(reply.content)
        return reply

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Finishes the merge of the replies, and takes the step. Updates of replies that are left out do not count."""
        self._done = server_round
        given: dict[tuple[str, int], Message] = {}
        for reply in replies:  # which an override may have copied, sorted or filtered
            seen = reply if _key(reply) in self._taken else self.incoming(reply)
            if seen is not None:
                given[_key(seen)] = seen
        if _aggregates_like_fedavg(self):
            return self._merged(list(given.values()))
        return self._own_step(server_round, list(given.values()))

    def _merged(self, replies: list[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Finishes the merge, in which these replies count; returns the model and the metrics."""
        valid, _ = super()._check_and_log_replies(replies, True, validate=False)  # type: ignore[misc]
        if not valid:
            if self._taken:
                nodes = {node for _, node in self._taken}
                log(ERROR, "aggregate_train: the reply of none of %d nodes counts, and the model stays", len(nodes))
            self._cancel("the round has no results")
            return None, None
        counted = {client for reply in valid if (client := self._taken.get(_key(reply))) is not None}
        if self._merge is None or not counted:
            raise sa.errors.FailedPreconditionError(
                f"{type(self).__name__} hands on no reply whose update waits to be merged: each one is of this round, "
                "and is merged once"
            )
        if len(counted) < len(self._counted):
            log(
                INFO,
                "aggregate_train: the updates of %d replies do not count: %s has left them out",
                len(self._counted) - len(counted),
                type(self).__name__,
            )
        merge = self._merge
        try:
            tables, changed, missing = merge.finish(counted, self._optimizer)
            self._merge = None
        except sa.SparseaggError as error:
            log(ERROR, "aggregate_train: the updates cannot be merged, and the model stays: %s", error)
            return None, None
        finally:
            self._cancel("the round failed")
        for client in sorted(missing):
            log(ERROR, "\t> Node %d: the server has no submission of client %r", self._counted[client], client)
        left_out = set(missing)
        if merge.choice is not None:
            log(INFO, "aggregate_train: %s", merge.choice)
            left_out.update(client for client in merge.choice.clients if merge.choice[client] == 0)
        lost = {self._counted[client] for client in left_out}
        counted_replies = [reply for reply in valid if reply.metadata.src_node_id not in lost]
        metrics = averaged(counted_replies, self._metrics_fn or self.train_metrics_aggr_fn, self.weighted_by_key)
        self._advance(tables, changed)
        return self._known()[0].record, metrics

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As the strategy's. A reply whose metrics do not go with the others' counts as a failure."""
        usable = with_usable_metrics(list(replies), self.weighted_by_key)
        try:
            return super().aggregate_evaluate(server_round, usable)  # type: ignore[misc]
        except ArithmeticError as error:  # of a user's own average
            log(WARNING, "aggregate_evaluate: there is no average of the metrics: %s", error)
            return None

    def _own_step(self, server_round: int, replies: list[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Lets the strategy take its step: FedAvg's method, which it calls, sees the merged model as the only reply."""
        self._metrics_fn = self.train_metrics_aggr_fn
        self.train_metrics_aggr_fn = lambda *_: self._step_metrics
        try:
            arrays, metrics = super().aggregate_train(server_round, replies)  # type: ignore[misc]
        finally:
            self.train_metrics_aggr_fn, self._metrics_fn = self._metrics_fn, None
        if arrays is None:
            return None, metrics
        return self._take(arrays), metrics

    def _check_and_log_replies(
        self, replies: Iterable[Message], is_train: bool, validate: bool = True
    ) -> tuple[list[Message], list[Message]]:
        """As FedAvg's; while the strategy takes its step, the merged model in the place of all replies."""
        if self._metrics_fn is None or not is_train:
            return super()._check_and_log_replies(replies, is_train, validate)  # type: ignore[misc,no-any-return]
        merged, self._step_metrics = self._merged(list(replies))
        if merged is None:
            return [], []
        record = ArrayRecord({name: table.to_array() for name, table in self._known()[0].tables.items()})
        only = RecordDict({"arrays": record, "metrics": MetricRecord({self.weighted_by_key: 1.0})})
        return [Message(only, dst_node_id=0, message_type="train")], []

    def _add(self, node: int, content: RecordDict) -> str:
        """Merges the content of a reply, and returns the client's id; one that has uploaded to the server sends no
        arrays.
        """
        client_id, weight = client_of(content), weight_of(content, self.weighted_by_key)
        merge = self._opened()
        if merge.handle is None or arrays_of(content):
            client_id = with_node(client_id, node)
            with naming_client(client_id):
                update = update_of(only_arrays(content), self._known()[0].tables)
            merge.add(client_id, update, weight)
        elif client_id in self._counted:
            raise sa.errors.AlreadyExistsError(
                f"client {client_id!r}: another node has named this submission as its own"
            )
        self._counted[client_id] = node
        return client_id

    def _adopt(self, arrays: ArrayRecord) -> ArrayRecord:
        """Makes these arrays the model, unless they are; returns the model's record."""
        if self._served is not None:
            check_served(self._served, arrays)
            arrays = ArrayRecord()
        if self._model is not None:
            if self._model.is_like(arrays):
                return self._take(arrays)
            self._warn(_OTHER_FORM, type(self).__name__)
        widths, settings = self._layout(arrays)
        self._sparse = list(widths)
        if self._model is None:
            _log_sizes(arrays, widths)
        version = 0 if self._model is None else self._model.version + 1
        if self._served is not None:
            version = self._served.refresh().version
        tables = {name: Table.of(array, widths.get(name, 1)) for name, array in arrays.items()}
        self._model = Model(tables, version)
        self._downlink = Downlink(self._model, self._sparse, settings)
        return self._model.record

    def _take(self, arrays: ArrayRecord) -> ArrayRecord:
        """Makes arrays of the model's names and shapes its next version, unless they are it; returns the record."""
        model, _ = self._known()
        if model.is_in(arrays):
            return model.record
        tables: dict[str, Table] = {}
        changed: dict[str, Any] = {}
        for name, table in model.tables.items():
            if model.has(name, arrays[name]):
                continue
            tables[name] = table.rewritten(arrays[name])
            if name in self._sparse:
                keys, _ = changed_rows(table.dense(), tables[name].dense(), table.row_width)
                changed[name] = keys
                if 2 * len(keys) >= table.num_rows > 0:
                    changed[name] = None
                    self._warn(_OTHER_ROWS, type(self).__name__, len(keys), table.num_rows, name)
        self._advance(tables, changed)
        return self._known()[0].record

    def _warn(self, text: str, *arguments: Any) -> None:
        if self._streams and text not in self._warned:
            self._warned.add(text)
            log(WARNING, text, *arguments)

    def _layout(self, arrays: ArrayRecord) -> tuple[dict[str, int], dict[str, Any]]:
        """Returns the sparse tensors with the widths of their rows, and what clients need to know."""
        if self._served is not None:
            return {}, served_settings(self._served, self._rows_down, self.arrayrecord_key, self.weighted_by_key)
        return sparse_layout(arrays, *self._names, self._op, self.arrayrecord_key, self.weighted_by_key)

    def _advance(self, tables: Mapping[str, Table], changed: Mapping[str, Any]) -> None:
        model, downlink = self._known()
        self._model = Model({**model.tables, **tables}, model.version + 1)
        downlink.advance(self._model, changed)

    def _known(self) -> tuple[Model, Downlink]:
        if self._model is None or self._downlink is None:
            raise sa.InvalidArgumentError("there is no model: call start, or configure_train before aggregate_train")
        return self._model, self._downlink

    def _opened(self) -> Merge | ServedMerge:
        if self._merge is None and self._served is not None:
            self._merge = ServedMerge(self._served, self._known()[0].version, self._op, self._options)
            self._counted = {}
        if self._merge is None:
            if self._server is not None and self._client is None:
                own = self._credentials if isinstance(self._server, str) else {}
                self._client = server_client(self._server, **own)
            self._merge = Merge(
                self._known()[0].tables,
                self._sparse,
                self._op,
                self._client,
                self._options,
                of_all=self._op_of_all,
                rule=self._rule(),
                noise_key=self._noise_key,
                ledger=self._ledger,
                keeps=_may_leave_out(self),
            )
            self._counted = {}
        return self._merge

    def _rule(self) -> Rule | None:
        """Returns what chooses among the replies; None: all count."""
        return None

    def _cancel(self, reason: str) -> None:
        if self._merge is not None:
            self._merge.cancel(reason)
            self._merge = None


class SparseFedAvg(SparseMixin, FedAvg):
    """``FedAvg`` of sparse updates; see ``SparseMixin`` for what it takes besides the arguments of ``FedAvg``."""


def _log_sizes(arrays: ArrayRecord, sparse: Collection[str]) -> None:
    """Logs what travels as rows, and the bytes of what travels whole, the largest first."""
    if sparse:
        log(INFO, "\t├──> Sparse tensors: %s", ", ".join(map(repr, sparse)))
    sizes = {name: len(array.data) for name, array in arrays.items() if name not in sparse}
    log(INFO, "\t└──> Dense tensors, whole in each update: %s", largest_of(sizes))


def _key(reply: Message) -> tuple[str, int]:
    """Returns what a reply and its copies have in common."""
    return reply.metadata.reply_to_message_id, reply.metadata.src_node_id


def _is_train(message: Message) -> bool:
    return str(message.metadata.message_type).partition(".")[0] == "train"


def _may_leave_out(strategy: SparseMixin) -> bool:
    """Returns whether a class that is neither Flower's nor of this package chooses the replies that count."""
    names = {"aggregate_train", "_check_and_log_replies"}
    others = [cls for cls in type(strategy).__mro__ if cls.__module__.partition(".")[0] not in ("flwr", "sparseagg")]
    return any(names & vars(cls).keys() for cls in others)


def _aggregates_like_fedavg(strategy: SparseMixin) -> bool:
    """Returns whether the strategy behind the mixin has FedAvg's own aggregation."""
    classes = type(strategy).__mro__
    behind = classes[classes.index(SparseMixin) + 1 :]
    return next(cls for cls in behind if "aggregate_train" in vars(cls)) is FedAvg
