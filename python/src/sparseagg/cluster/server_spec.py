"""The specs of a cluster's round and of the rounds on its servers: each of the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from sparseagg._internal.spec.cluster_spec import ClusterSpec, HomeServer
from sparseagg._internal.spec.round_spec import RoundSpec
from sparseagg.cluster.reduce import merges_on_arrival
from sparseagg.errors import InvalidArgumentError

__all__ = ["cluster_spec", "server_spec"]


def server_spec(spec: RoundSpec, homes: Sequence[HomeServer] = (), index: int = 0) -> RoundSpec:
    """Returns the spec of a server's round: it does not close itself, and knows all servers.

    Args:
        spec: of the cluster's round.
        homes: the servers; none: of a spec that is checked alone.
        index: which of them the server is.

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
