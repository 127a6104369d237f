"""Servers of a cluster in actors of Ray, spread over its nodes."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Sequence
from typing import Any

from sparseagg._internal.spec.cluster_spec import HomeServer
from sparseagg.cluster.server_keeper import ServerKeeper, directory_of
from sparseagg.errors import DeadlineExceededError, UnavailableError

__all__ = ["RayServers"]

_READY_S = 120.0  # of all servers: nodes may have to start first
_RESOURCE = "sparseagg_server"  # of nodes that mount the servers' volume
_RETRIES = 10  # of a call, when the actor has been started again


class RayServers:
    """Servers that actors own, one each, in a placement group with SPREAD.

    An actor that dies is started again by Ray, and starts its server on the same directory and at the same ports. A
    server does not start on a node without ``data_dir``, such as one that does not mount the volume. Where nodes have
    the resource "sparseagg_server", servers are on these nodes alone (``deploy/kuberay``). A server that dies alone is
    started again by its actor.

    Args:
        ray: the module.
        number: of servers.
        data_dir: on every node that has servers; None: rounds live in memory.
        options: more flags of the servers.
        cpus: of each actor.
        gpus: of each actor; its server sees them by CUDA_VISIBLE_DEVICES.

    Raises:
        UnavailableError: Ray has no room for the actors.
    """

    def __init__(
        self,
        ray: Any,
        number: int,
        data_dir: str | os.PathLike[str] | None,
        options: Sequence[str],
        cpus: float,
        gpus: float,
    ) -> None:
        self._ray = ray
        self.actors: list[Any] = []
        marks = {_RESOURCE: 1} if _RESOURCE in ray.cluster_resources() else {}
        bundle = {"CPU": cpus, **({"GPU": gpus} if gpus else {}), **marks}
        # A bundle of nothing is none: without a share of a node, each actor is placed by itself.
        has_share = bool(cpus or gpus or marks)
        self._group = ray.util.placement_group([bundle] * number, strategy="SPREAD") if has_share else None
        try:
            if self._group is not None and not self._group.wait(_READY_S):
                raise UnavailableError(f"Ray has no room for {number} servers of {bundle} within {_READY_S:g} s")
            # One machine: its loopback, which needs no credentials. Several: the address of each node.
            nodes = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
            strategies = ray.util.scheduling_strategies
            for index in range(number):
                place: Any = "SPREAD"
                if self._group is not None:
                    place = strategies.PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
                made = ray.remote(
                    num_cpus=cpus,
                    num_gpus=gpus,
                    resources=marks,
                    max_restarts=-1,
                    max_task_retries=_RETRIES,
                    max_concurrency=4,
                    scheduling_strategy=place,
                )(_ServerActor)
                directory = directory_of(data_dir, index)
                self.actors.append(
                    made.remote(None if directory is None else str(directory), len(nodes) == 1, list(options))
                )
            waits = [actor.home.remote() for actor in self.actors]
            _, late = ray.wait(waits, num_returns=number, timeout=_READY_S)
            if late:
                raise DeadlineExceededError(f"{len(late)} of {number} servers do not listen after {_READY_S:g} s")
            self.homes: list[HomeServer] = ray.get(waits)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stops the servers in order, then ends their actors."""
        with contextlib.suppress(Exception):  # whoever owns Ray has ended it
            stops = [actor.close.remote() for actor in self.actors]
            self._ray.wait(stops, num_returns=max(1, len(stops)), timeout=30.0)
            for actor in self.actors:
                self._ray.kill(actor)
            if self._group is not None:
                self._ray.util.remove_placement_group(self._group)


class _ServerActor:
    """An actor with a server. Its constructor does not fail: Ray would never start the actor again."""

    def __init__(self, directory: str | None, is_local: bool, options: Sequence[str]) -> None:
        host = "127.0.0.1"
        if not is_local:
            host = importlib.import_module("ray.util").get_node_ip_address()
        if directory is not None and is_local:
            os.makedirs(os.path.dirname(directory), exist_ok=True)
        self._keeper = ServerKeeper(directory, host, options)

    def home(self) -> HomeServer:
        return self._keeper.home(_READY_S)

    def pids(self) -> tuple[int, int | None]:
        """Returns the process ids of the actor and of its server."""
        return os.getpid(), self._keeper.pid

    def close(self) -> None:
        self._keeper.close()
