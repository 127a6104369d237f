"""Buffered asynchronous aggregation (FedBuff) on Flower's grid: nobody waits for the slowest client."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from logging import ERROR, INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy.result import Result
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
from flwr.supercore import log

import sparseagg as sa
from sparseagg._internal.base.arguments import checked_integer, checked_number
from sparseagg._internal.base.credentials import TLSArgument, TokenArgument
from sparseagg._internal.base.types import Op
from sparseagg._internal.spec.of_model import Names
from sparseagg._internal.spec.round_spec import is_weighted
from sparseagg._internal.updates.contributors import naming_client
from sparseagg.flower.checkpoint import Checkpointed
from sparseagg.flower.downlink import Downlink
from sparseagg.flower.merge import difference_to, stepped, tensor_spec
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
from sparseagg.flower.replies import NO_MOD, averaged, client_of, only_arrays, weight_of, with_node, without_arrays
from sparseagg.optimizers import RowOptimizer

_LEAST_WAIT_S, _MOST_WAIT_S = 0.02, 1.0


@dataclasses.dataclass
class _Sent:
    """A message without a reply."""

    node: int  # whose it is
    model: Model  # that the node was sent; its version is the base version of the update
    deadline: float  # after it another client is asked; the reply still counts
    kind: str  # "train" or "evaluate"
    again: bool  # whether it repeats, with the whole model, a message whose node had lost its copy


class SparseFedBuff(Checkpointed):
    """An asynchronous strategy: a stream merges the updates of clients that are always busy.

        strategy = SparseFedBuff(sparse=["embedding.weight"], concurrency=32, buffer=8)
        result = strategy.start(grid, arrays, num_versions=200)

    ``concurrency`` clients train at any time. Each is sent the current version, and its update is committed with that
    version as ``base_version``. When ``buffer`` updates are there, the stream makes the next version of them, in which
    an update of an older version counts less. A client that is done is followed by one drawn from the idle ones.

    A client that fails, or whose update is refused, is asked again after the next version. One that does not reply in
    time is replaced; should its reply come, it counts, unless it is stale beyond ``max_staleness``. Clients use
    ``sparse_mod``; those that do not are sent whole models. Updates of all tensors are merged as differences.

    Args:
        sparse, elements: the tensors of which clients send rows, or elements; as of ``SparseFedAvg``.
        model: a ``sparseagg.Model`` that a stream drives, as of ``SparseFedAvg``: both have the same versions, and
            the arguments of the stream, ``sparse``, ``elements``, ``optimizer`` and ``initial_version`` are not given.
        rows_down: as of ``SparseFedAvg``.
        concurrency: clients that train at a time.
        buffer: updates of a version.
        staleness: of ``Client.create_stream``; None: ``sparseagg.staleness.polynomial(0.5)``.
        max_staleness: the oldest update that is taken, in versions.
        server: "host:port" of a sparseagg server that has the stream, ":memory:" for one in this process, or a
            ``sparseagg.Client``. Clients reply to Flower; the strategy commits.
        tls, token: as of ``SparseFedAvg``.
        stream_id: of a new stream, which stays on the server. None: a random one, which is deleted when the run ends.
        optimizer: takes the step of each version; None adds the merged differences.
        op: of all tensors.
        options: of each version, as of ``sparseagg.RoundSpec``. By default each update has one vote, and the divisor is
            the number of updates, as in FedBuff: ``weighting="uniform"``, ``mean_divisor="submissions"``.
        min_nodes: for which the start waits.
        evaluate_nodes: idle clients that are asked to evaluate each version, at most; they do not count as training. A
            node that has lost its copy of the version evaluates the newest one.
        seed: of the choice among idle clients; None: another one in each run.
        weighted_by_key, arrayrecord_key, configrecord_key: names of records, as of Flower's ``FedAvg``.

    Raises:
        InvalidArgumentError: an argument has a wrong value.
    """

    def __init__(
        self,
        *,
        sparse: Names = None,
        elements: Names = None,
        model: sa.Model | None = None,
        rows_down: str = "changed",
        concurrency: int,
        buffer: int | None = None,
        staleness: sa.staleness.Staleness | None = None,
        max_staleness: int = 20,
        server: str | sa.Client = ":memory:",
        tls: TLSArgument = None,
        token: TokenArgument = None,
        stream_id: str | None = None,
        optimizer: RowOptimizer | None = None,
        op: Op = "mean",
        options: Mapping[str, Any] | None = None,
        min_nodes: int = 1,
        evaluate_nodes: int = 0,
        seed: int | None = None,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
    ) -> None:
        self._names = sparse, elements
        self._concurrency = checked_integer("concurrency must be 1 or more", concurrency, 1, 1 << 20)
        given = (sparse, elements, buffer, staleness, stream_id, optimizer)
        if model is not None and (not model.info.stream or any(each is not None for each in given)):
            raise sa.InvalidArgumentError(
                "model=… needs a model with a stream, and takes no sparse, elements, buffer, staleness, stream_id and "
                f"optimizer; got {model!r}"
            )
        self._served, self._rows_down = model, rows_down
        self._model: Model | None = None
        self._buffer = 1 if model else checked_integer("buffer must be 1 or more", buffer, 1, 1 << 32)
        self._min_nodes = checked_integer("min_nodes must be 1 or more", min_nodes, 1, 1 << 32)
        self._evaluate_nodes = checked_integer("evaluate_nodes must be 0 or more", evaluate_nodes, 0, 1 << 32)
        staleness = sa.staleness.polynomial(0.5) if staleness is None else staleness
        self._staleness_table = sa.staleness.table(staleness, max_staleness)
        self._server, self._stream_id = server, stream_id
        self._credentials: dict[str, Any] = {"tls": tls, "token": token}
        self._optimizer = optimizer
        self._op = op
        self._options = {"weighting": "uniform", **(options or {})}
        if op == "mean":
            self._options.setdefault("mean_divisor", "submissions")
        self._rng = np.random.default_rng(seed)  # allow(randomness): the user's choice
        self._weight_key, self._arrays_key, self._config_key = weighted_by_key, arrayrecord_key, configrecord_key

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_versions: int = 10,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        *,
        initial_version: int | None = None,
        evaluate_config: ConfigRecord | None = None,
    ) -> Result:
        """Runs until there are so many versions.

        After the end of a run, another one goes on with its stream, given ``stream_id`` and ``initial_version``: all
        versions since then are applied first, and commits of the version that is being filled count. After ``load``,
        the two arguments are those of the state.

        Args:
            grid: Flower's.
            initial_arrays: version 0, or ``initial_version``.
            num_versions: of the stream, with those of earlier runs.
            timeout: seconds after which a client that has not replied is replaced. The run ends when no reply has come,
                and no other client could be asked, for so long.
            train_config: for each message; "server-round" is added: the version that is being filled.
            evaluate_fn: of a version and its model; called with the initial version, too.
            initial_version: the version of the stream that ``initial_arrays`` are: 0 for the model that the stream
                began with, or that of a model that ``evaluate_fn`` has kept. An optimizer must have the state of then,
                as after ``load``. None: the stream is new.
            evaluate_config: as ``train_config``, for the clients that evaluate; its "server-round" is their version.

        Raises:
            FailedPreconditionError: the stream has commits, and ``initial_version`` is None; or versions since then
                have expired (``result_ttl`` of the options).
            InvalidArgumentError: there is no such version yet, or an argument is out of range.

        Returns:
            The last model; ``train_metrics_clientapp``, ``evaluate_metrics_clientapp`` and
            ``evaluate_metrics_serverapp`` by version.
        """
        if initial_version is not None:
            checked_integer("initial_version must be 0 or more", initial_version, 0, 1 << 62)
        timeout = checked_number("timeout must be a number of seconds, 0 or more", timeout)
        configs = {"train": dict(train_config or {}), "evaluate": dict(evaluate_config or {})}
        initial_version, arrays = self._begin(initial_arrays, initial_version)
        run = _Run(self, grid, arrays, timeout, configs, evaluate_fn, initial_version)
        try:
            run.go_on_until(num_versions)
            run.await_evaluations()
        finally:
            run.close()
        run.result.arrays = ArrayRecord({name: table.to_array() for name, table in run.model.tables.items()})
        return run.result


class _Run:
    """One run of the strategy: its stream, its model, and the messages that are out. Used by one thread."""

    def __init__(
        self,
        strategy: SparseFedBuff,
        grid: Grid,
        arrays: ArrayRecord,
        timeout: float,
        configs: Mapping[str, dict[str, Any]],
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
        initial_version: int | None,
    ) -> None:
        self._strategy, self._grid, self._timeout, self._evaluate_fn = strategy, grid, timeout, evaluate_fn
        self._configs = configs
        served, keys = strategy._served, (strategy._arrays_key, strategy._weight_key)
        if served is None:
            widths, settings = sparse_layout(arrays, *strategy._names, strategy._op, *keys)
        else:
            check_served(served, arrays)
            widths, settings = {}, served_settings(served, strategy._rows_down, *keys)
            arrays, initial_version = ArrayRecord(), served.refresh().version
        self._sparse = set(widths)
        self.model = Model(
            {name: Table.of(array, widths.get(name, 1)) for name, array in arrays.items()}, initial_version or 0
        )
        self._downlink = Downlink(self.model, list(widths), settings)
        self.result = Result()
        self._waiting: dict[str, _Sent] = {}
        self._resting: set[int] = set()  # nodes that have failed since the last version
        self._replies: dict[int, list[Message]] = {}  # without arrays, by version
        self._evaluations: dict[int, list[Message]] = {}  # likewise
        self._has_started = False  # min_nodes have been there
        self._has_warned = False
        self._last_sign = time.monotonic()
        given: Any = strategy._server if served is None else None
        self._client = sa.Client(given, **strategy._credentials) if isinstance(given, str) else given
        self._stream: Any = None
        try:
            if served is None:
                self._open_stream(initial_version)
            else:
                self._stream = served.get_stream()
                self._is_weighted = is_weighted(self._stream.spec)
            self._evaluate()
        except BaseException:
            self.close()
            raise

    def _open_stream(self, initial_version: int | None) -> None:
        strategy, tables = self._strategy, self._tables(self.model)
        tensors = [tensor_spec(name, table, strategy._op, name in self._sparse) for name, table in tables.items()]
        spec = sa.RoundSpec(tensors, **strategy._options)
        self._is_weighted = is_weighted(spec)
        stream = self._stream = self._client.create_stream(
            spec, buffer=strategy._buffer, staleness=strategy._staleness_table, stream_id=strategy._stream_id
        )
        info = stream.refresh()
        if initial_version is None and (info.version != 1 or info.num_buffered):
            raise sa.errors.FailedPreconditionError(
                f"{stream.name} has commits already: initial_version must say which of its versions the arrays are"
            )
        if self.model.version >= info.version:
            raise sa.InvalidArgumentError(
                f"initial_version is {self.model.version}, and {stream.name} has {info.version - 1} versions"
            )
        if self.model.version + 1 < info.oldest_version:
            raise sa.errors.FailedPreconditionError(
                f"{stream.name} has only versions from {info.oldest_version} on, and initial_version is "
                f"{self.model.version}: earlier versions have expired (result_ttl)"
            )

    @staticmethod
    def _tables(model: Model) -> dict[str, Table]:
        return {name: table for name, table in model.tables.items() if table.num_rows}  # an empty array stays

    def go_on_until(self, num_versions: int) -> None:
        """Keeps clients busy until there are so many versions, or no client is left that could help."""
        wait = _LEAST_WAIT_S
        self._catch_up()  # with an earlier run
        while self.model.version < num_versions:
            self._ask_idle_nodes()
            arrived = list(self._grid.pull_messages(list(self._waiting))) if self._waiting else []
            for reply in arrived:
                self._take(reply)
                if self.model.version >= num_versions:
                    return
            if arrived:
                wait, self._last_sign = _LEAST_WAIT_S, time.monotonic()
                continue
            self._catch_up()  # with a cut by the stream's timer, or by somebody else
            # A client that is late may still reply, but no version waits for it.
            is_stuck = self._resting and not self._num_busy("train") and not self._cut_early()
            if is_stuck and not self._waiting:
                log(ERROR, "SparseFedBuff: all clients have failed since version %d; the run ends", self.model.version)
                return
            if time.monotonic() > self._last_sign + self._timeout:
                log(ERROR, "SparseFedBuff: no reply, and no other client, for %s s; the run ends", self._timeout)
                return
            time.sleep(wait)
            wait = min(2 * wait, _MOST_WAIT_S)

    def await_evaluations(self) -> None:
        """Takes the evaluations that are under way, until their deadlines, and averages those of each version."""
        wait = _LEAST_WAIT_S
        while self._num_busy("evaluate"):
            waiting = [message_id for message_id, sent in self._waiting.items() if sent.kind == "evaluate"]
            arrived = list(self._grid.pull_messages(waiting))
            for reply in arrived:
                self._take(reply)
            if not arrived:
                time.sleep(wait)
            wait = _LEAST_WAIT_S if arrived else min(2 * wait, _MOST_WAIT_S)
        for version, replies in sorted(self._evaluations.items()):
            metrics = averaged(replies, aggregate_metricrecords, self._strategy._weight_key)
            if metrics:
                self.result.evaluate_metrics_clientapp[version] = metrics

    def close(self) -> None:
        """Deletes the stream, unless the user has named it."""
        if self._stream is not None and self._strategy._stream_id is None and self._strategy._served is None:
            try:
                self._stream.delete()
            except sa.SparseaggError as error:
                log(WARNING, "SparseFedBuff: %s stays on the server: %s", self._stream.name, error)
        if isinstance(self._strategy._server, str) and self._client is not None:
            self._client.close()

    def _num_busy(self, kind: str) -> int:
        now = time.monotonic()
        return sum(sent.deadline > now and sent.kind == kind for sent in self._waiting.values())

    def _ask_idle_nodes(self) -> None:
        busy = self._num_busy("train")
        if busy >= self._strategy._concurrency:
            return
        nodes = set(self._grid.get_node_ids())
        self._has_started = self._has_started or len(nodes) >= self._strategy._min_nodes
        if self._has_started:
            self._send(self._drawn(nodes, self._strategy._concurrency - busy), "train")

    def _drawn(self, nodes: set[int], most: int) -> list[int]:
        """Returns so many idle nodes, or all of them, in a random order."""
        idle = sorted(nodes - self._resting - {sent.node for sent in self._waiting.values()})
        return [idle[i] for i in self._strategy._rng.permutation(len(idle))[:most]]

    def _send(self, nodes: list[int], kind: str, again: bool = False) -> None:
        messages = []
        for node in nodes:
            config = ConfigRecord({**self._configs[kind], "server-round": self.model.version + (kind == "train")})
            content = RecordDict({self._strategy._arrays_key: self.model.record, self._strategy._config_key: config})
            messages.append(self._downlink.message(Message(content, node, kind), None))
        pushed = set(self._grid.push_messages(messages)) if messages else set()
        for node, message in zip(nodes, messages):
            if message.metadata.message_id not in pushed:
                self._fail(node, "its message could not be sent")
                continue
            self._last_sign = time.monotonic()
            deadline = self._last_sign + self._timeout
            self._waiting[message.metadata.message_id] = _Sent(node, self.model, deadline, kind, again)

    def _take(self, reply: Message) -> None:
        """Commits the update of a reply, or keeps its metrics. The client is idle again."""
        message_id = reply.metadata.reply_to_message_id
        sent = self._waiting.pop(message_id, None)
        if sent is None:
            return
        if reply.has_error():
            reason = reply.error.reason or f"code {reply.error.code}"
            if reason.startswith(NEEDS_WHOLE) and not sent.again:
                self._downlink.forget(sent.node)
                self._send([sent.node], sent.kind, again=True)
            else:
                self._fail(sent.node, reason)
            return
        if sent.kind == "evaluate":
            self._downlink.note(sent.node, reply.content.config_records.get(CONFIG))
            reply.content = without_arrays(reply.content)
            self._evaluations.setdefault(sent.model.version, []).append(reply)
            return
        try:
            commit = self._commit(message_id, sent, reply.content)
        except (MemoryError, sa.errors.UnavailableError):
            raise
        except Exception as error:  # of any kind, since clients send anything: this one fails, and no other
            kind = "" if isinstance(error, sa.SparseaggError) else f"{type(error).__name__}: "
            self._fail(sent.node, f"{kind}{error}")
            self._catch_up()  # the refused commit may have tried a cut again
            return
        reply.content = without_arrays(reply.content)
        self._replies.setdefault(commit.stream.version, []).append(reply)
        self._catch_up()

    def _commit(self, message_id: str, sent: _Sent, content: RecordDict) -> Any:
        config = content.config_records.get(CONFIG)
        self._downlink.note(sent.node, config)
        if config is None and self._sparse and not self._has_warned:
            self._has_warned = True
            log(WARNING, NO_MOD, sent.node)
        client_id, served = with_node(client_of(content), sent.node), self._strategy._served
        base = sent.model.version
        with naming_client(client_id):
            weight = weight_of(content, self._strategy._weight_key)
            names = sent.model.tables if served is None else served.info.tensors
            given: Mapping[str, Any] = update_of(only_arrays(content), names)
            update: dict[str, Any] = {}
            if served is not None:
                if config is None or not all(isinstance(part, tuple) for part in given.values()):
                    raise sa.InvalidArgumentError("model=… needs sparse_mod, which sends rows")
                update, base = dict(given), int(config["version"])
            for name, table in self._tables(sent.model).items():
                if name in given:
                    update[name] = difference_to(table, name, given[name], name in self._sparse)
                elif name not in self._sparse:
                    raise sa.InvalidArgumentError(f"there is no tensor {name!r}")
        return self._stream.submit(
            client_id,
            update,
            weight if self._is_weighted else None,
            base_version=base,
            submission_id=message_id,
        )

    def _fail(self, node: int, reason: str) -> None:
        log(WARNING, "SparseFedBuff: node %d: %s", node, reason)
        self._resting.add(node)

    def _cut_early(self) -> bool:
        """Ends the version with fewer updates; returns whether it has any."""
        if not self._stream.refresh().num_buffered:
            return False
        self._stream.cut(self.model.version + 1)
        self._catch_up()
        return True

    def _catch_up(self) -> None:
        """Applies the versions that have been cut."""
        while self._stream.refresh().version - 1 > self.model.version:
            for version in self._stream.watch(self.model.version):
                self._apply(version)

    def _apply(self, version: Any) -> None:
        tables: dict[str, Table] = {}
        changed: dict[str, Any] = {}
        served = self._strategy._served
        try:
            if served is not None:
                served.wait(version.version - 1)  # the server takes the step
            if version.state != "done":
                raise sa.errors.FailedPreconditionError(f"it is {version.state}: {version.state_reason}")
            if served is None:
                result = self._stream.result(version.version)
                tables, changed = stepped(self._tables(self.model), self._sparse, result, self._strategy._optimizer)
        except sa.SparseaggError as error:
            log(ERROR, "SparseFedBuff: version %d has no result, and the model stays: %s", version.version, error)
        self.model = Model({**self.model.tables, **tables}, version.version)
        self._downlink.advance(self.model, changed)
        self._resting.clear()
        replies = self._replies.pop(version.version, [])
        log(INFO, "SparseFedBuff: version %d of %d updates", version.version, version.num_submissions)
        metrics = averaged(replies, aggregate_metricrecords, self._strategy._weight_key)
        if metrics:
            self.result.train_metrics_clientapp[version.version] = metrics
        self._evaluate()
        if self._strategy._evaluate_nodes:
            self._send(self._drawn(set(self._grid.get_node_ids()), self._strategy._evaluate_nodes), "evaluate")

    def _evaluate(self) -> None:
        self._strategy._model, self._strategy._done = self.model, self.model.version
        if self._evaluate_fn is None:
            return
        record = ArrayRecord({name: Array(table.dense()) for name, table in self.model.tables.items()})
        metrics = self._evaluate_fn(self.model.version, record)
        if metrics is not None:
            self.result.evaluate_metrics_serverapp[self.model.version] = metrics
