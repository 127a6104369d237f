"""One range of keys of one tensor: read from all servers, and merged in this process."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from sparseagg._internal.client.blocking_client import Client
from sparseagg._internal.client.blocking_round import Round
from sparseagg._internal.local.engine import aggregate
from sparseagg._internal.results.result import TensorResult
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg._internal.spec.unused import ORDER_OPS
from sparseagg.cluster.plan import KeyRange
from sparseagg.cluster.published import Part, RangeStore
from sparseagg.errors import FailedPreconditionError, InternalError, OutOfRangeError, RoundFailedError

__all__ = ["RangeTask", "range_spec", "reduce_range", "run_task"]

_SUMS = ("sum", "mean", "coordinate_mean")


@dataclasses.dataclass(frozen=True)
class RangeTask:
    """What to merge. A pure function of sealed rounds: it may be run twice, anywhere, with the same result.

    Attributes:
        round_name: "rounds/{id}", the same on all servers.
        spec: of the one tensor, from ``range_spec``.
        keys: the range.
        num_submissions: of each server's round.
        threads: of the engine.
        only: the clients that count; None: all.
        device: of the engine, "cpu" or "cuda"; None: as ``sparseagg.aggregate`` chooses.
        store: where the result goes; None: to the caller.
    """

    round_name: str
    spec: RoundSpec
    keys: KeyRange
    num_submissions: tuple[int, ...]
    threads: int
    only: frozenset[str] | None = None
    device: str | None = None
    store: RangeStore | None = None


def run_task(task: RangeTask, clients: Sequence[Client]) -> TensorResult | Part:
    """Returns the result of ``reduce_range``, or writes it to the task's store and returns where it is."""
    begun = time.monotonic()
    result = reduce_range(task, [client.get_round(task.round_name) for client in clients])
    if task.store is None:
        return result
    part = task.store.write(result, clients)
    return dataclasses.replace(part, seconds=time.monotonic() - begun)


def reduce_range(task: RangeTask, rounds: Sequence[Round]) -> TensorResult:
    """Returns the merged rows of a range, in the sparse layout.

    Args:
        task: what to merge.
        rounds: of each server.

    Raises:
        RoundFailedError: the merge failed, as that of one server would have.
        FailedPreconditionError: a client has submissions on two servers; or a round is not sealed any more; or its
            submissions cannot be exported.
        InternalError: a server has exported another number of submissions than its round has.
    """
    tensor = task.spec.tensors[0]
    is_weighted = task.spec.aggregation_of(tensor).weighting == "by_weight"
    updates: dict[str, Any] = {}
    homes: dict[str, int] = {}
    for server, (opened, expected) in enumerate(zip(rounds, task.num_submissions)):
        exported = opened.export_submissions(tensor.name, keys=task.keys)
        if len(exported) != expected:
            raise InternalError(
                f"server {server} exported {len(exported)} submissions of {task.round_name}, which has {expected}"
            )
        for client_id, update in exported.items():
            if client_id in homes:
                raise FailedPreconditionError(
                    f"client {client_id!r} has submissions to {task.round_name} on servers {homes[client_id]} and "
                    f"{server}: clients submit to their home server alone"
                )
            homes[client_id] = server
            if task.only is not None and client_id not in task.only:
                continue
            named = {tensor.name: (update.keys, update.values)}
            updates[client_id] = (named, update.weight) if is_weighted else named
    try:
        return aggregate(updates, task.spec, threads=task.threads, device=task.device)[tensor.name]
    except (FailedPreconditionError, OutOfRangeError) as error:
        raise RoundFailedError(f"{task.round_name} failed: {error.code.name}: {error}", "failed") from None


def range_spec(spec: RoundSpec, tensor: TensorSpec) -> RoundSpec:
    """Returns the spec by which the ranges of a tensor are merged: all that concerns single keys.

    Dense updates and results are sparse ones with all keys. Bounds on submissions are not applied again; the layout of
    the result, and cuts of it, are decided when all ranges are there.
    """
    how = spec.aggregation_of(tensor)
    is_sum = how.op in _SUMS
    options: dict[str, Any] = {
        name: getattr(how, name)
        for name in ("op", "numerics", "on_nonfinite", "return_counts", "return_weights", "min_contributors")
    }
    options["return_moments"] = how.return_moments or None
    if is_sum or how.op in ORDER_OPS or how.return_weights:
        options["weighting"] = how.weighting
    if how.op != "union":
        options.update(prune_zeros=how.prune_zeros, result_dtype=how.result_dtype)
    if how.op == "mean":
        options["mean_divisor"] = how.mean_divisor
        options["fixed_divisor"] = how.fixed_divisor if how.mean_divisor == "fixed" else None
    if how.op in ORDER_OPS:
        options.update(absent=how.absent)
    if how.op == "trimmed_mean":
        options.update(trim_fraction=how.trim_fraction, trim_count=how.trim_count)
    if how.op == "quantile":
        options["quantile"] = how.quantile
    if how.numerics == "fixed_point":
        options["weight_bound"] = how.weight_bound if options.get("weighting") == "by_weight" else None
        if is_sum and "float" in tensor.dtype:
            options.update(value_bound=how.value_bound, on_bound=how.on_bound)
    merged = TensorSpec(
        tensor.name,
        tensor.dtype,
        num_rows=tensor.num_rows,
        row_width=tensor.row_width,
        modular=tensor.modular,
        result_layout="sparse",
        **{name: value for name, value in options.items() if value is not None},
    )
    return RoundSpec([merged], max_submissions=spec.max_submissions)
