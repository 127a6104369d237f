"""Buffered asynchronous aggregation (FedBuff) as a workflow of NVFlare: no site waits for the slowest one."""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
from typing import Any

from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.model_controller import ModelController

import sparseagg as sa
from sparseagg._internal.base import arguments, types
from sparseagg._internal.spec import round_spec
from sparseagg._internal.updates import contributors as updates
from sparseagg.nvflare.aggregator import num_steps
from sparseagg.nvflare.arrays import MergedRows, checked_names, copy_of, sparse_diff, to_array
from sparseagg.nvflare.merge import ModelForm


@dataclasses.dataclass(frozen=True)
class _Version:
    """A version of the model. Tasks that are out share its arrays, which stay as they are."""

    number: int
    params: dict[str, Any]
    form: ModelForm


class SparseFedBuff(ModelController):
    """A workflow in the place of FedAvg, in which a stream merges results as they come.

        job.to_server(SparseFedBuff(num_versions=200, buffer=4, sparse=["embedding.weight"]))

    Every site that is idle is sent the current version, whose number is the task's current_round. Its result is
    committed with that version as ``base_version``. When ``buffer`` results are there, the stream makes the next
    version of them, in which a result of an older version counts less. The persistor saves each version.

    A site that fails, or whose result is refused, is asked again after the next version; a line in the log has the
    reason. If all have failed, the version is cut with the results that are there; without any, the job ends in an
    error. Clients are those of ``SparseAggregator``, with ``sparse_diff`` or the filters; of whole weights, the
    difference is taken here.

    Args:
        num_versions: after which the job ends.
        buffer: results of a version, K.
        sparse, elements, op, exclude_vars: as of ``SparseAggregator``, with differences of all tensors. With "mean", a
            tensor that a site leaves out has not changed.
        staleness: a result that is τ versions old counts by (1 + τ)^−staleness.
        max_staleness: the oldest result that is taken, in versions.
        options: more options of ``sparseagg.RoundSpec``, by name. By default each result has one vote, and the divisor
            is the number of results, as in FedBuff: ``weighting="uniform"``, ``mean_divisor="submissions"``.
        server: "host:port" of a sparseagg server that has the stream; None: this process has it.
        tls, token: as of ``SparseAggregator``.
        stream_id: of a new stream, which stays on the server; None: a random one, which is deleted at the end.
        task_name: of the tasks that train.
        timeout: seconds after which a task ends without a result, and its site is asked again; 0: never.
        persistor_id: of the model.
        task_check_period: seconds between two looks at tasks and stream.
    """

    # As of SparseAggregator, attributes have the arguments' names.
    def __init__(
        self,
        num_versions: int,
        buffer: int,
        sparse: list[str] | None = None,
        elements: list[str] | None = None,
        op: types.Op = "mean",
        exclude_vars: str | None = None,
        staleness: float = 0.5,
        max_staleness: int = 20,
        options: dict[str, Any] | None = None,
        server: str | None = None,
        tls: bool | str | None = None,
        token: str | None = None,
        stream_id: str | None = None,
        task_name: str = AppConstants.TASK_TRAIN,
        timeout: int = 0,
        persistor_id: str = AppConstants.DEFAULT_PERSISTOR_ID,
        task_check_period: float = 0.1,
    ) -> None:
        super().__init__(persistor_id=persistor_id, task_check_period=task_check_period)
        self.num_versions = arguments.checked_integer("num_versions must be 1 or more", num_versions, 1, 1 << 62)
        self.buffer = arguments.checked_integer("buffer must be 1 or more", buffer, 1, 1 << 32)
        self.sparse, self.elements = checked_names(sparse or [], elements)
        self.op = op
        self.exclude_vars = exclude_vars
        self.staleness = staleness
        self.max_staleness = max_staleness
        self._table = sa.staleness.table(sa.staleness.polynomial(staleness), max_staleness)
        self.options = options
        self.server, self.tls, self.token = server, tls, token
        self.stream_id = stream_id
        self.task_name = task_name
        self.timeout = timeout
        self._lock = threading.Lock()  # of what the callbacks change
        self._busy: set[str] = set()
        self._resting: set[str] = set()  # sites that have failed since the last version

    def run(self) -> None:
        """Trains until there are so many versions; called by NVFlare."""
        self._version = self._of(0, self.load_model().params)
        with sa.Client(self.server or ":memory:", tls=self.tls, token=self.token) as client:
            spec = self._version.form.spec(ParamsType.DIFF, whole="mean")
            self._is_weighted = round_spec.is_weighted(spec)
            self._stream = client.create_stream(
                spec, buffer=self.buffer, staleness=self._table, stream_id=self.stream_id
            )
            if self._stream.refresh().version != 1:
                raise sa.errors.FailedPreconditionError(f"{self._stream.name} has versions already: name a new stream")
            try:
                while self._version.number < self.num_versions and not self.abort_signal.triggered:
                    have_failed = self._send_to_idle_sites()
                    if self._catch_up():
                        continue
                    if have_failed:
                        self._cut_early()
                    time.sleep(self._task_check_period)
            finally:
                self.cancel_all_tasks(fl_ctx=self.fl_ctx)
                if self.stream_id is None:
                    self._stream.delete()

    def _of(self, number: int, params: dict[str, Any]) -> _Version:
        options: dict[str, Any] = {"weighting": "uniform"}
        if self.op == "mean":
            options["mean_divisor"] = "submissions"
        form = ModelForm(
            params, self.sparse, self.elements, self.op, self.exclude_vars, {**options, **(self.options or {})}
        )
        return _Version(number, params, form)

    def _send_to_idle_sites(self) -> bool:
        """Sends the version to idle sites; returns whether all sites have failed since it was made."""
        with self._lock:
            sites = {client.name for client in self.engine.get_clients()}
            idle = sorted(sites - self._busy - self._resting)
            self._busy.update(idle)
            have_failed = bool(sites) and not self._busy
        version = self._version
        for site in idle:
            model = FLModel(ParamsType.FULL, version.params, current_round=version.number)
            model.total_rounds = self.num_versions
            task = Task(
                self.task_name,
                FLModelUtils.to_shareable(model),
                timeout=self.timeout,
                result_received_cb=functools.partial(self._take, version),
                task_done_cb=functools.partial(self._done, site),
            )
            self.broadcast(task, self.fl_ctx, targets=[site])
        return have_failed

    def _done(self, site: str, task: Task, fl_ctx: FLContext) -> None:
        """Is called by NVFlare's monitor when a task has ended, with or without a result."""
        with self._lock:
            self._busy.discard(site)

    def _take(self, base: _Version, client_task: ClientTask, fl_ctx: FLContext) -> None:
        """Commits a result; called by threads of NVFlare."""
        site, result = client_task.client.name, client_task.result
        try:
            if result.get_return_code() != ReturnCode.OK:
                raise sa.InvalidArgumentError(f"it is {result.get_return_code()}")
            model = FLModelUtils.from_shareable(result, fl_ctx)
            with updates.naming_client(site):
                params = model.params
                if not params:
                    raise sa.InvalidArgumentError("the result has no params")
                if model.params_type == ParamsType.FULL:
                    params = sparse_diff(base.params, params, self.sparse, self.elements)
                update = base.form.update(params, ParamsType.DIFF)
                weight = num_steps(model.meta or {}) if self._is_weighted else None
                place = self._stream.submit(
                    site, update, weight, base_version=base.number, submission_id=client_task.id
                ).stream
            self.log_info(fl_ctx, f"a result of {site}, trained on version {base.number}: {place}")
        except MemoryError:
            raise
        except Exception as error:  # of any kind, since clients send anything: this one fails, and no other
            self.log_warning(fl_ctx, f"the result of client {site!r} does not count: {error}")
            with self._lock:
                self._resting.add(site)
        finally:
            client_task.result = None

    def _catch_up(self) -> bool:
        """Applies the versions that have been cut; returns whether there were any."""
        before = self._version.number
        while self._version.number < min(self._stream.refresh().version - 1, self.num_versions):
            self._apply(self._stream.watch(self._version.number)[0])
        return self._version.number > before

    def _apply(self, version: sa.types.StreamVersion) -> None:
        params = dict(self._version.params)
        try:
            if version.state != "done":
                raise sa.errors.FailedPreconditionError(f"it is {version.state}: {version.state_reason}")
            result = self._stream.result(version.version)
            for name, change in self._version.form.params(result, ParamsType.DIFF, True).items():
                before = to_array(params[name])
                params[name] = (copy_of(before) if isinstance(change, MergedRows) else before) + change
        except sa.SparseaggError as error:
            params = self._version.params
            self.error(f"version {version.version} has no result, and the model stays: {error}")
        self._version = self._of(version.version, params)
        self.info(f"version {version.version} has {version.num_submissions} results")
        self.save_model(FLModel(ParamsType.FULL, params, meta={AppConstants.CURRENT_ROUND: version.version}))
        with self._lock:
            self._resting.clear()

    def _cut_early(self) -> None:
        """Ends the version with the results that are there."""
        if not self._stream.refresh().num_buffered:
            raise sa.errors.FailedPreconditionError(f"all sites have failed since version {self._version.number}")
        self._stream.cut(self._version.number + 1)
