"""A cluster's round and the rounds on its servers: the specs, the descriptions and the certificate of the one."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparseagg._internal.certificates import statement
from sparseagg._internal.certificates.statement import make_certificate, payload_of, read_private_key, time_now
from sparseagg._internal.client.blocking_client import Round
from sparseagg._internal.results.info import (
    Certificate,
    ClipSummary,
    Leaves,
    RoundInfo,
    StageTime,
    SubmissionReceipt,
    TensorSummary,
    Timeline,
)
from sparseagg._internal.results.result import Result, TensorResult
from sparseagg._internal.spec.bounds import ClusterSpec, HomeServer
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg.cluster.exchange import leaves as leaves_of
from sparseagg.cluster.plan import is_cut, is_dense, on_all
from sparseagg.cluster.published import Listed, Part
from sparseagg.cluster.reduce import merges_on_arrival
from sparseagg.errors import FailedPreconditionError, InvalidArgumentError


def server_spec(spec: RoundSpec, homes: Sequence[HomeServer] = (), index: int = 0) -> RoundSpec:
    """Returns the spec of the round of server ``index``, which does not close itself; no ``homes``: it is only checked.

    Raises ``InvalidArgumentError``, which names the field and says why, for a spec that is not for clusters.
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

    ``own_times``: seconds of the steps in this process; none: those of the process that has closed the round. ``cut``:
    how many rows of ``tensors`` were cut, by tensor.
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


@dataclasses.dataclass(frozen=True)
class RoundCertificate:
    """The certificate of a round, and the leaves of its tree."""

    certificate: Certificate
    leaves: Leaves

    def complete(self, receipt: SubmissionReceipt) -> SubmissionReceipt:
        """Returns the receipt of a home server with the proof that the certificate counts the submission."""
        counted = self.leaves.counted
        index = list(counted).index(receipt.client_id)
        path = statement.path_of(counted.values(), index)
        return dataclasses.replace(receipt, leaf_index=index, tree_size=len(counted), path=path)


def certify(
    name: str,
    spec: RoundSpec,
    result: Result,
    rounds: Sequence[Round],
    key_file: pathlib.Path,
    close_time: str | None = None,
) -> RoundCertificate:
    """Signs what the servers of a cluster have computed together: a result of all submissions of sealed rounds.

    Raises ``FailedPreconditionError`` if there is no submission; as ``read_private_key`` for the file.
    """
    key = read_private_key(key_file)
    parts = on_all(rounds, leaves_of)
    firsts = [(opened, next(iter(part.counted))) for opened, part in zip(rounds, parts) if part.counted]
    promises = [payload_of(opened._receipt(client).promise, "promise") for opened, client in firsts]
    if not promises:
        raise FailedPreconditionError(f"{name} has no submissions to make a certificate of")
    counted = {client: leaf for part in parts for client, leaf in part.counted.items()}
    ordered = {client: counted[client] for client in sorted(counted, key=lambda each: each.encode())}
    leaves = Leaves(ordered, tuple(leaf for part in parts for leaf in part.withdrawn))
    bytes_of_spec = spec._to_proto().SerializeToString(deterministic=True)
    tensors = dict(result.items()).values()
    made = make_certificate(name, bytes_of_spec, leaves, tensors, "cpu", promises, key, close_time or time_now())
    return RoundCertificate(made, leaves)
