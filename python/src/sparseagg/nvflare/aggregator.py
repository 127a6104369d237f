"""The aggregator of NVFlare's workflows."""

from __future__ import annotations

import functools
import inspect
import math
import threading
from collections.abc import Callable, Mapping
from typing import Any

from nvflare.apis.dxo import from_shareable
from nvflare.apis.fl_constant import FLMetaKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.aggregators.weighted_aggregation_helper import (
    WeightedAggregationHelper,
    filter_aggregatable_metrics,
)
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

import sparseagg as sa
from sparseagg._internal.base import arguments, text, types
from sparseagg._internal.updates import contributors as updates
from sparseagg.cluster import ClusterClient, cluster
from sparseagg.nvflare.arrays import checked_names, same_values, to_array
from sparseagg.nvflare.merge import ModelForm, RoundMerge

_RULES: dict[str, Callable[..., sa.robust.ClientWeights]] = {"krum": sa.robust.krum, "multi_krum": sa.robust.multi_krum}


class SparseAggregator(ModelAggregator):
    """Merges sparse and dense updates of a ``FedAvgRecipe`` or of ``ScatterAndGather``. Thread-safe.

    Dense tensors: the mean, weighted by NUM_STEPS_CURRENT_ROUND, over the clients that sent the tensor, as NVFlare's
    own; by binned sums, which are merged as results arrive and rounded once, with the same bits in any order. Integers
    and bools are rounded to nearest. Tensors in ``sparse``: rows that a client did not send, or the whole tensor, are
    "not touched"; ``op`` says what that means. A client may also send all rows, as a dense array.

    A value that is not finite and that a client has left unchanged, such as −inf in a mask, counts as no change. A
    value that all clients have changed gets their mean. Only results with the most frequent params_type count; on a
    tie, those with DIFF.

    Life cycle, by NVFlare: ROUND_STARTED and BEFORE_TRAIN_TASK (which show the model), accepts, aggregate, reset. State
    of a round is in memory alone: as with NVFlare's own aggregators, a server that restarts repeats the round.

    Args:
        sparse: names of the tensors that clients may send as rows, with params_type DIFF.
        op: of these tensors. "mean": an untouched row has not changed, as in the dense mean of all clients.
            "coordinate_mean": the mean over the clients that sent the row. Or "sum". The last two are of differences,
            and refuse these tensors with params_type FULL. "median", "trimmed_mean" with its ``trim_fraction`` in
            ``options``, or "quantile": of all tensors, the dense ones too; each client has one vote.
            A client votes for no change of rows that it did not send, unless ``options`` have absent="skip".
        server: "host:port" of a sparseagg server that merges, or "host:port,host:port" of a cluster's servers; None:
            this process does.
        aggregation_weights: factors of the weights, by client name; 0: the result does not count. (NVFlare gives
            the recipe's aggregation_weights and exclude_vars to its own aggregator alone.)
        exclude_vars: a regular expression; tensors whose names it finds are left out.
        rows: whether sparse results are ``MergedRows``; False: dense arrays, for server optimisers, which need them.
        options: more options of ``sparseagg.RoundSpec``, by name, such as numerics="canonical". With any but
            ``on_nonfinite``, all results are held until they are merged, as with ``rule``.
            ``on_nonfinite`` may also be a mapping from names or patterns to "reject" or "propagate".
        elements: names of the tensors of which clients may send single elements, at their flat positions.
        tls: of the connection to the server: True, or the path of a PEM file with its authorities. None: as the
            environment says (SPARSEAGG_TLS_CA and its kind).
        token: a coordinator's, for the server. None: that of the environment (SPARSEAGG_TOKEN), which is better, for
            whoever reads the job reads its arguments.
        rule: chooses among the results of all tensors: the name of a function of ``sparseagg.robust`` and its
            arguments, as {"name": "multi_krum", "f": 2, "m": 6} or {"name": "krum", "f": 2}. The others do not count,
            nor do their metrics; a line in the log has all scores. None: all results count.
    """

    # Recipes export a component's arguments from the attributes of the same names.
    def __init__(
        self,
        sparse: list[str] | None = None,
        op: types.Op = "mean",
        server: str | None = None,
        aggregation_weights: dict[str, float] | None = None,
        exclude_vars: str | None = None,
        rows: bool = True,
        options: dict[str, Any] | None = None,
        elements: list[str] | None = None,
        tls: bool | str | None = None,
        token: str | None = None,
        rule: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.sparse, self.elements = checked_names(sparse or [], elements)
        self.op = op
        self.server = server
        self.aggregation_weights = aggregation_weights
        self.exclude_vars = exclude_vars
        self.rows = rows
        self.options = options
        self.tls = tls
        self.token = token
        self.rule = rule
        self._rule = _rule_of(rule)
        for client, factor in (aggregation_weights or {}).items():
            if not arguments.is_number(factor) or not 0 <= factor < math.inf:
                raise sa.InvalidArgumentError(
                    f"aggregation_weights of client {client!r} must be a number from 0 on, "
                    f"got {arguments.shown(factor)}"
                )
        self._lock = threading.RLock()
        self._client: sa.Client | ClusterClient | None = None
        self._merges: dict[ParamsType, RoundMerge] = {}
        self._model: ModelForm | None = None
        self._round: int | None = None
        self._has_logged = False
        self._has_warned = False
        self.reset_stats()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Learns the round and the model from the controller's events."""
        super().handle_event(event_type, fl_ctx)
        if event_type == AppEventType.ROUND_STARTED:
            with self._lock:
                self._round = fl_ctx.get_prop(AppConstants.CURRENT_ROUND)
                self._model = None
        elif event_type == AppEventType.BEFORE_TRAIN_TASK and self._model is None:
            task = fl_ctx.get_prop(AppConstants.TRAIN_SHAREABLE)
            self.set_model(from_shareable(task).data)

    def set_model(self, params: Mapping[str, Any]) -> None:
        """Tells the names, shapes and dtypes of the server's model, for a controller without BEFORE_TRAIN_TASK."""
        with self._lock:
            self._model = ModelForm(params, self.sparse, self.elements, self.op, self.exclude_vars, self.options)
            if not self._has_logged:
                self._has_logged = True
                self._log_sizes(params, self._model.dense_names())

    def _log_sizes(self, params: Mapping[str, Any], dense: list[str]) -> None:
        """Logs the bytes of the tensors that travel whole, the largest first, and those that look like tied weights."""
        sizes = {name: to_array(params[name]).nbytes for name in dense}
        self.info(f"dense tensors, whole in each update: {text.largest_of(sizes)}")
        for name, sparse in same_values(params, sizes, [*self.sparse, *self.elements]):
            self.warning(
                f"tensor {name!r} has the values of {sparse!r} (tied weights?), and travels whole: add it to sparse, "
                "here and at the clients"
            )

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        """Adds a client's result for ScatterAndGather; returns False, with a line in the log, if it does not count."""
        self.fl_ctx = fl_ctx
        client = shareable.get_peer_prop(ReservedKey.IDENTITY_NAME, "")
        try:
            model = FLModelUtils.from_shareable(shareable, fl_ctx)
            model.meta["client_name"] = client
            model.current_round = shareable.get_cookie(AppConstants.CONTRIBUTION_ROUND, model.current_round)
            return self.accept_model(model)
        except MemoryError:
            raise
        except Exception as error:  # of any kind, since clients send anything: this one does not count, others do
            self.warning(f"the result of client {client!r} does not count: {error}")
            with self._lock:
                self._refused[client] = str(error)
            return False

    def accept_model(self, model: FLModel) -> bool:
        """Adds a client's result; returns False, with a line in the log, if it is late, or the client's second one.

        Raises:
            InvalidArgumentError: the result is wrong, and nothing of it counts; the message names client, tensor and
            value. NVFlare's FedAvg logs it as one line, and does not count the client.
        """
        meta = model.meta or {}
        client = meta.get("client_name") or AppConstants.CLIENT_UNKNOWN
        with self._lock:
            is_other = None not in (model.current_round, self._round) and model.current_round != self._round
            late = self._closed or is_other
            if late or any(client in merge.accepted for merge in self._merges.values()):
                what = "is late" if late else "is the second one"
                self.warning(f"the result of client {client!r} {what}, and does not count (round {self._round})")
                return False
            weight = num_steps(meta) * (self.aggregation_weights or {}).get(client, 1.0)
            try:
                with updates.naming_client(client):
                    params_type, update = self._read(model)
                self._merge_of(params_type).add(client, update, weight, model.metrics)
            except (sa.errors.AlreadyExistsError, sa.RoundClosedError) as error:  # another process was first
                self.warning(f"the result of client {client!r} does not count: {error}")
                self._refused[client] = str(error)
                return False
            except Exception as error:
                self._refused[client] = str(error)
                raise
            whole = [name for name in [*self.sparse, *self.elements] if name in update and name in model.params]
            if whole and not self._has_warned:
                self._has_warned = True
                self.warning(
                    f"client {client!r} sends all rows of the sparse tensor {whole[0]!r}: its script does not call "
                    "sparse_diff, and the job has no add_sparse_filters"
                )
            return True

    def aggregate_model(self) -> FLModel:
        """Merges, and returns the differences or weights. Later results of this round do not count."""
        with self._lock:
            self._closed = True
            # Without a result, an empty difference: an empty FULL model would replace the server's.
            params, params_type, accepted = {}, ParamsType.DIFF, {}
            most = self._keep_majority()
            try:
                if most is None:
                    raise sa.errors.FailedPreconditionError("no result counts")
                merge = self._merges[most]
                params, params_type = self._known().params(merge.finish(), most, self.rows), most
                accepted = merge.accepted
                sa.release_memory()  # kept for the next merge, which is a round of training away
                if merge.choice is not None:
                    self.info(f"round {self._round}: {merge.choice}")
            except sa.SparseaggError as error:  # an error here would end the job
                refused = [f"client {client!r}: {reason}" for client, reason in sorted(self._refused.items())]
                self.error("; ".join([f"round {self._round}: the model stays: {error}", *refused]))
            return FLModel(
                params=params,
                params_type=params_type,
                metrics=self._metrics(accepted),
                current_round=self._round,
                meta={"nr_aggregated": len(accepted), AppConstants.CURRENT_ROUND: self._round},
            )

    def reset_stats(self) -> None:
        """Opens the next round."""
        with self._lock:
            self._closed = False
            self._refused: dict[str, str] = {}  # reason by client
            for merge in self._merges.values():
                merge.cancel()
            self._merges = {}

    def _read(self, model: FLModel) -> tuple[ParamsType, dict[str, Any]]:
        """Returns what a client has sent: its kind, and the update."""
        if not model.params:
            raise sa.InvalidArgumentError("the result has no params")
        if not isinstance(model.metrics, (Mapping, type(None))):
            raise sa.InvalidArgumentError(f"metrics must be a mapping, got {type(model.metrics).__name__}")
        try:
            params_type = ParamsType(model.params_type)
        except ValueError as error:
            raise sa.InvalidArgumentError(str(error)) from error
        return params_type, self._known().update(model.params, params_type)

    def _merge_of(self, params_type: ParamsType) -> RoundMerge:
        """Returns the merge of a params_type; opens it with the first result."""
        if params_type not in self._merges:
            if self.server is not None and self._client is None:
                self._client = cluster.server_client(self.server, tls=self.tls, token=self.token)
            self._merges[params_type] = RoundMerge(self._known(), params_type, self._client, self._rule)
        return self._merges[params_type]

    def _keep_majority(self) -> ParamsType | None:
        """Returns the params_type of most results, of two as frequent DIFF; cancels the merge of the others."""
        counts = {params_type: len(merge.accepted) for params_type, merge in self._merges.items()}
        most = max(counts, key=lambda each: (counts[each], each == ParamsType.DIFF), default=None)
        for params_type, merge in self._merges.items():
            if params_type != most or not counts[most]:
                merge.cancel()
                for client in merge.accepted:
                    self._refused[client] = f"params_type {params_type.value}, unlike most"
                    self.warning(f"the result of client {client!r} does not count: {self._refused[client]}")
        return most if most is not None and counts[most] else None

    def _known(self) -> ModelForm:
        if self._model is None:
            raise sa.errors.FailedPreconditionError(
                "the model is not known: the controller has fired no BEFORE_TRAIN_TASK; call set_model(params)"
            )
        return self._model

    def _metrics(self, accepted: Mapping[str, tuple[float, Any]]) -> dict[str, Any] | None:
        """As NVFlare's FedAvg, in the order of client names: weighted means; none if a client has no metrics."""
        helper = WeightedAggregationHelper()
        for client, (weight, metrics) in sorted(accepted.items()):
            if not weight:
                continue
            if metrics is None:
                return None
            for name, value in filter_aggregatable_metrics(metrics).items():
                try:
                    helper.add({name: value}, weight, client, self._round)
                except Exception as error:  # of any kind, as of arrays of other shapes than the others'
                    self.warning(f"metric {name!r} of client {client!r} is left out: {error}")
        return helper.get_result() or None


def _rule_of(given: Any) -> cluster.Rule | None:
    """Returns the rule of a job's arguments."""
    if given is None:
        return None
    options = dict(given) if isinstance(given, Mapping) else {}
    name = options.pop("name", None)
    if name not in _RULES:
        known = " or ".join(f'{{"name": "{each}", …}}' for each in _RULES)
        raise sa.InvalidArgumentError(f"rule must be {known}, got {arguments.shown(given)}")
    rule = _RULES[name]
    try:
        inspect.signature(rule).bind(None, **options)
    except TypeError as error:
        raise sa.InvalidArgumentError(f"rule {name!r}: {error}") from None
    return functools.partial(rule, **options)


def num_steps(meta: Mapping[str, Any]) -> float:
    """Returns the weight of a result as NVFlare's FedAvg does: 1 where the client has sent no positive number."""
    value = meta.get(FLMetaKey.NUM_STEPS_CURRENT_ROUND)
    try:
        weight = 1.0 if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return 1.0
    return weight if math.isfinite(weight) and weight > 0 else 1.0
