"""The description of a cluster's round, from those of its servers' rounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from sparseagg._internal.results.info import ClipSummary, RoundInfo, StageTime, TensorSummary, Timeline
from sparseagg._internal.results.result import TensorResult
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg.cluster.join import is_cut, is_dense
from sparseagg.cluster.published import Listed, Part

__all__ = ["cluster_info"]


def cluster_info(
    spec: RoundSpec,
    own_times: dict[str, float],
    infos: Sequence[RoundInfo],
    listed: Listed | None = None,
    tensors: dict[str, TensorResult] | None = None,
    cut: dict[str, int] | None = None,
) -> RoundInfo:
    """Returns the description of a cluster's round.

    Args:
        spec: of the cluster's round.
        own_times: seconds of the steps in this process; none: those of the process that has closed the round.
        infos: of the servers' rounds.
        listed: of the result on the servers; None: there is none.
        tensors: the result in this process; None: there is none.
        cut: how many rows were cut, by tensor.
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
    return ClipSummary(
        num_clipped=sum(clip.num_clipped for clip in clips),
        num_l2=sum(clip.num_l2 for clip in clips),
        num_linf=sum(clip.num_linf for clip in clips),
        num_max_keys=sum(clip.num_max_keys for clip in clips),
        factors=tuple(sum(column) for column in zip(*(clip.factors for clip in clips))),
    )
