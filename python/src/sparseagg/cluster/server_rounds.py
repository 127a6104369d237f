"""A cluster's round and the rounds on its servers: the specs and the descriptions of the one from the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparseagg._internal.results.info import ClipSummary, RoundInfo, StageTime, TensorSummary, Timeline
from sparseagg._internal.results.result import TensorResult
from sparseagg._internal.spec.bounds import ClusterSpec, HomeServer
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg.cluster.join import is_cut, is_dense
from sparseagg.cluster.published import Listed, Part
from sparseagg.cluster.reduce import merges_on_arrival
from sparseagg.errors import InvalidArgumentError


def server_spec(spec: RoundSpec, homes: Sequence[HomeServer] = (), index: int = 0) -> RoundSpec:
    """Returns the spec of the round of server ``index``, which does not close itself; no ``homes``: it is only checked.

    Raises:
        InvalidArgumentError: a field of the spec is not for clusters; the message says which one, and why.
    """
    if spec.deadline is not None:
        raise InvalidArgumentError(
            f"deadline {spec.deadline}: a cluster's round is ended by finish(), not by a deadline"
        )
    if spec.allow_export:
        raise InvalidArgumentError("allow_export: a cluster writes no bundles of its rounds; use one server")
    if spec.privacy is not None:
        raise InvalidArgumentError("privacy: servers export no submissions of such rounds; use one server")
    for tensor in spec.tensors:
        clip = spec.clip if tensor.clip is None or tensor.clip.l2 is None else tensor.clip
        if merges_on_arrival(spec, tensor):
            continue
        if spec.clips(tensor) and clip is not None and clip.l2 not in (None, np.inf) and clip.on_clip != "reject":
            raise InvalidArgumentError(
                f"tensor {tensor.name!r}: clip.l2 {clip.l2} scales updates to values that no server exports; "
                'on_clip="reject" refuses them instead'
            )
    cluster = ClusterSpec(tuple(homes), index) if homes else None
    return dataclasses.replace(spec, stay_open=True, cluster=cluster)


def cluster_spec(spec: RoundSpec) -> RoundSpec:
    """Returns the spec whose ``server_spec`` this is."""
    return dataclasses.replace(spec, stay_open=False, cluster=None)


def cluster_info(
    spec: RoundSpec,
    own_times: dict[str, float],
    infos: Sequence[RoundInfo],
    listed: Listed | None = None,
    tensors: dict[str, TensorResult] | None = None,
    cut: dict[str, int] | None = None,
) -> RoundInfo:
    """Returns the description of a cluster's round, whose result is on the servers (``listed``), or in this process.

    Args:
        own_times: seconds of the steps in this process; none: those of the process that has closed the round.
        cut: how many rows of ``tensors`` were cut, by tensor.
    """
    clips = [info.clip for info in infos if info.clip is not None]
    times = own_times or (listed[1]["times"] if listed is not None else {})
    num_counted = None if listed is None else listed[1]["num_counted"]
    steps = tuple(StageTime(step, seconds, 0.0, 0) for step, seconds in times.items())
    is_done = listed is not None or tensors is not None
    longest = max(times, key=lambda step: times[step]) if times else ""
    summaries: tuple[TensorSummary, ...] = ()
    if tensors is not None:
        cut = cut or {}
        summaries = tuple(
            TensorSummary(r.name, len(r), r.layout, r.dtype, r.row_width, r.num_rows, "", cut.get(r.name, 0))
            for r in tensors.values()
        )
    elif listed is not None:
        summaries = tuple(_summary(spec, tensor, *listed) for tensor in spec.tensors)
    return dataclasses.replace(
        infos[0],
        spec=spec,
        state="done" if is_done else infos[0].state,
        state_reason="" if is_done else infos[0].state_reason,
        num_submissions=sum(info.num_submissions for info in infos) if num_counted is None else num_counted,
        num_tuples=sum(info.num_tuples for info in infos),
        num_bytes=sum(info.num_bytes for info in infos),
        num_refused=sum(info.num_refused for info in infos),
        num_uploads=sum(info.num_uploads for info in infos),
        timeline=Timeline(sum(times.values()), 0.0, steps, longest),
        results=summaries,
        recent_refusals=(),
        clip=_total(clips) if clips else None,
    )


def _summary(spec: RoundSpec, tensor: TensorSpec, listed: Sequence[Part], about: dict[str, Any]) -> TensorSummary:
    own = [part for part in listed if part.tensor == tensor.name]
    num_rows = sum(part.num_rows for part in own)
    dtype = own[0].dtype if own else tensor.dtype
    cut = about["cut"].get(tensor.name, 0)
    is_full = bool(own) and not is_cut(spec, tensor) and is_dense(spec, tensor, dtype, num_rows)
    rows = tensor.num_rows if is_full else num_rows
    layout = "dense" if is_full else "sparse"
    return TensorSummary(tensor.name, rows, layout, dtype, tensor.row_width, tensor.num_rows, "", cut)


def _total(clips: Sequence[ClipSummary]) -> ClipSummary:
    names = ("num_clipped", "num_l2", "num_linf", "num_max_keys")
    numbers = {name: sum(getattr(clip, name) for clip in clips) for name in names}
    return ClipSummary(**numbers, factors=tuple(sum(column) for column in zip(*(clip.factors for clip in clips))))
