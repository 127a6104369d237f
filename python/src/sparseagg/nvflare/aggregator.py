"""The aggregator of NVFlare's workflows."""

from __future__ import annotations

import contextlib
import math
import re
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
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
from sparseagg.nvflare.arrays import FLOATS, KEYS, ROWS, ArrayForm, MergedRows, checked_names, to_array

__all__ = ["SparseAggregator"]


class SparseAggregator(ModelAggregator):
    """Merges sparse and dense updates of a ``FedAvgRecipe`` or of ``ScatterAndGather``. Thread-safe.

    Dense tensors: the mean, weighted by NUM_STEPS_CURRENT_ROUND, over the clients that sent the tensor, as NVFlare's
    own; in float64, in the order of client names, so that the order of arrival changes no bit. Integers and bools are
    rounded to nearest. Tensors in ``sparse``: rows that a client did not send, or the whole tensor, are "not touched";
    ``op`` says what that means. A client may also send all rows, as a dense array.

    Life cycle, by NVFlare: ROUND_STARTED and BEFORE_TRAIN_TASK (which show the model), accepts, aggregate, reset. State
    of a round is in memory alone: as with NVFlare's own aggregators, a server that restarts repeats the round.

    Args:
        sparse: names of the tensors that clients may send as rows, with params_type DIFF.
        op: of these tensors. "mean": an untouched row has not changed, as in the dense mean of all clients.
            "coordinate_mean": the mean over the clients that sent the row. Or "sum".
        server: "host:port" of a sparseagg server that merges; None: this process does.
        aggregation_weights: factors of the weights, by client name. (NVFlare applies those of the recipe to its own
            aggregator only, and the same with the next.)
        exclude_vars: a regular expression; tensors whose names it finds are left out.
        rows: whether sparse results are ``MergedRows``; False: dense arrays, for server optimisers, which need them.
        options: more options of ``sparseagg.RoundSpec``, by name, such as numerics="fixed_point" with its bounds.
    """

    # Recipes export a component's arguments from the attributes of the same names.
    def __init__(
        self,
        sparse: list[str] | None = None,
        op: str = "mean",
        server: str | None = None,
        aggregation_weights: dict[str, float] | None = None,
        exclude_vars: str | None = None,
        rows: bool = True,
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.sparse = checked_names(sparse or [])
        self.op = op
        self.server = server
        self.aggregation_weights = aggregation_weights
        self.exclude_vars = exclude_vars
        self.rows = rows
        self.options = options
        self._lock = threading.RLock()
        self._client: sa.Client | None = None
        self._remote: sa.Round | None = None
        self._model: dict[str, ArrayForm] = {}
        self._round: int | None = None
        self.reset_stats()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Learns the round and the model from the controller's events."""
        super().handle_event(event_type, fl_ctx)
        if event_type == AppEventType.ROUND_STARTED:
            with self._lock:
                self._round = fl_ctx.get_prop(AppConstants.CURRENT_ROUND)
                self._model = {}
        elif event_type == AppEventType.BEFORE_TRAIN_TASK and not self._model:
            task = fl_ctx.get_prop(AppConstants.TRAIN_SHAREABLE)
            self.set_model(from_shareable(task).data)

    def set_model(self, params: Mapping[str, Any]) -> None:
        """Tells the names, shapes and dtypes of the server's model, for a controller without BEFORE_TRAIN_TASK."""
        with self._lock:
            self._model = {name: ArrayForm.of(array) for name, array in params.items()}

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        """Adds a client's result for ScatterAndGather; returns False, with a line in the log, if it does not count."""
        self.fl_ctx = fl_ctx
        client = shareable.get_peer_prop(ReservedKey.IDENTITY_NAME, "")
        try:
            model = FLModelUtils.from_shareable(shareable, fl_ctx)
            model.meta["client_name"] = client
            model.current_round = shareable.get_cookie(AppConstants.CONTRIBUTION_ROUND, model.current_round)
            return self.accept_model(model)
        except (sa.SparseaggError, TypeError, ValueError) as error:
            self.warning(f"the result of client {client!r} does not count: {error}")
            return False

    def accept_model(self, model: FLModel) -> bool:
        """Adds a client's result; returns False, with a line in the log, if it is late, or the client's second one.

        Raises:
            InvalidArgument: the result is wrong, and nothing of it counts; the message names client, tensor and value.
            NVFlare's FedAvg logs it as one line, and does not count the client.
        """
        meta = model.meta or {}
        client = meta.get("client_name") or AppConstants.CLIENT_UNKNOWN
        with self._lock:
            is_other = None not in (model.current_round, self._round) and model.current_round != self._round
            late = self._closed or is_other
            if late or client in self._accepted:
                what = "is late" if late else "is the second one"
                self.warning(f"the result of client {client!r} {what}, and does not count (round {self._round})")
                return False
            if not model.params:
                raise sa.InvalidArgument(f"client {client!r}: the result has no params")
            params_type = ParamsType(model.params_type)
            if self._accepted and params_type != self._params_type:
                raise sa.InvalidArgument(f"client {client!r}: params_type {params_type.value}, unlike the others'")
            weight = _num_steps(meta) * (self.aggregation_weights or {}).get(client, 1.0)
            try:
                update = self._update(model.params, params_type)
                if params_type != self._params_type:
                    self._open(params_type)
                self._submit(client, update, weight)
            except (sa.AlreadyExists, sa.RoundClosed) as error:  # on a server, by somebody else
                self.warning(f"the result of client {client!r} does not count: {error}")
                return False
            self._accepted[client] = weight, model.metrics
            return True

    def aggregate_model(self) -> FLModel:
        """Merges, and returns the differences or weights. Later results of this round do not count."""
        with self._lock:
            self._closed = True
            # Without a result, an empty difference: an empty FULL model would replace the server's.
            params, params_type = {}, ParamsType.DIFF
            if self._accepted:
                result, self._remote = self._finish(), None
                params, params_type = self._params(result), self._params_type
            return FLModel(
                params=params,
                params_type=params_type,
                metrics=self._metrics(),
                current_round=self._round,
                meta={"nr_aggregated": len(self._accepted), AppConstants.CURRENT_ROUND: self._round},
            )

    def reset_stats(self) -> None:
        """Opens the next round."""
        with self._lock:
            self._closed = False
            self._params_type: ParamsType | None = None
            self._accepted: dict[str, tuple[float, Any]] = {}
            self._submit: Any = None
            self._finish: Any = None
            self._cancel_remote()

    def _cancel_remote(self) -> None:
        """Ends a round on the server that this aggregator has opened and not closed."""
        if self._remote is not None:
            with contextlib.suppress(sa.SparseaggError):
                self._remote.cancel("the NVFlare round ended without an aggregation")
        self._remote = None

    def _open(self, params_type: ParamsType) -> None:
        """Opens the merge of this round, in the place of one without submissions."""
        self._cancel_remote()
        tensors = []
        for name, form in self._aggregated():
            op = self.op if name in self.sparse and params_type == ParamsType.DIFF else "coordinate_mean"
            # All tensors have the sparse layout, in which a tensor may be absent from an update.
            tensors.append(sa.TensorSpec(name, form.wire_dtype, shape=form.shape, op=op))
        spec = sa.RoundSpec(tensors, weighting="by_weight", result="sparse", **(self.options or {}))
        if self.server is None:
            aggregator = sa.Aggregator(spec)
            self._submit, self._finish = aggregator.add, aggregator.finish
        else:
            self._client = self._client or sa.Client(self.server)
            self._remote = self._client.create_round(spec)
            self._submit, self._finish = self._remote.submit, self._remote.close
        self._params_type = params_type

    def _aggregated(self) -> Iterable[tuple[str, ArrayForm]]:
        if not self._model:
            raise sa.FailedPrecondition(
                "the model is not known: the controller has fired no BEFORE_TRAIN_TASK; call set_model(params)"
            )
        excluded = re.compile(self.exclude_vars) if self.exclude_vars else None
        for name, form in self._model.items():
            if math.prod(form.shape) and not (excluded and excluded.search(name)):
                yield name, form

    def _update(self, params: Mapping[str, Any], params_type: ParamsType) -> dict[str, Any]:
        """Returns the update of a client's params; lazy references become arrays."""
        update: dict[str, Any] = {}
        known = dict(self._aggregated())
        for name, value in params.items():
            tensor = name.rpartition(":")[0]
            if name.endswith(KEYS) and tensor + ROWS in params:
                if params_type != ParamsType.DIFF:
                    raise sa.InvalidArgument(f"tensor {tensor!r}: rows are differences, but params_type is FULL")
                if tensor not in self.sparse:
                    raise sa.InvalidArgument(f"tensor {tensor!r} came as rows, but is not in sparse={self.sparse}")
                update[tensor] = to_array(value), to_array(params[tensor + ROWS])
            elif not (name.endswith(ROWS) and tensor + KEYS in params):
                if name not in known:
                    if name in self._model:  # excluded, or without values
                        continue
                    raise sa.InvalidArgument(f"unknown tensor {name!r}; the model has {', '.join(self._model)}")
                array = to_array(value)
                shape = tuple(array.shape)
                if shape != known[name].shape:
                    raise sa.InvalidArgument(
                        f"tensor {name!r} has shape {shape}, but the model's has {known[name].shape}"
                    )
                update[name] = array if known[name].dtype in FLOATS else array * 1.0
        return update

    def _params(self, result: Mapping[str, sa.TensorResult]) -> dict[str, Any]:
        params: dict[str, Any] = {}
        as_rows = self.sparse if self.rows and self._params_type == ParamsType.DIFF else []
        for name, form in self._model.items():
            rows = result.get(name)
            if rows is None:
                if self._params_type == ParamsType.FULL and not math.prod(form.shape):
                    params[name] = form.array(np.zeros(form.shape))
            elif len(rows) and name in as_rows and form.dtype in FLOATS:
                params[name] = MergedRows(rows)
            elif len(rows):
                params[name] = form.array(rows.values if len(rows) == rows.dimension else rows.dense())
        return params

    def _metrics(self) -> dict[str, Any] | None:
        """As NVFlare's FedAvg, in the order of client names: weighted means; none if a client has no metrics."""
        helper = WeightedAggregationHelper()
        for client, (weight, metrics) in sorted(self._accepted.items()):
            if metrics is None:
                return None
            helper.add(filter_aggregatable_metrics(metrics), weight, client, self._round)
        return helper.get_result() or None


def _num_steps(meta: Mapping[str, Any]) -> float:
    """Returns the weight of a result as NVFlare's FedAvg does: 1 where the client has sent no positive number."""
    value = meta.get(FLMetaKey.NUM_STEPS_CURRENT_ROUND)
    try:
        weight = 1.0 if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return 1.0
    return weight if math.isfinite(weight) and weight > 0 else 1.0
