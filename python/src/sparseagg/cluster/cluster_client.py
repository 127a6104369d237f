"""The methods of a client, for the rounds of a cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sparseagg._internal.client.blocking_client import Client
from sparseagg._internal.results.server_info import ServerInfo
from sparseagg._internal.spec.bounds import home_of
from sparseagg._internal.spec.round_spec import RoundSpec
from sparseagg.cluster.cluster_round import ClusterRound
from sparseagg.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError

if TYPE_CHECKING:
    from sparseagg.cluster.cluster import Cluster

__all__ = ["ClusterClient"]


class ClusterClient(contextlib.AbstractContextManager["ClusterClient"]):
    """What ``sparseagg.Client`` is for one server, for a cluster: from ``Cluster.client``. Thread-safe.

    Rounds are spread over all servers. A published model and a task have one server each: models that of their name's
    hash, tasks the first one. A task cannot ask for a submission to a round (``TaskSpec.round``), since that is on the
    home server of whoever works on the task.

    ``close`` leaves the cluster as it is.
    """

    def __init__(self, cluster: Cluster, clients: Sequence[Client], owns_cluster: bool = False) -> None:
        self._cluster = cluster
        self._owns_cluster = owns_cluster
        self._clients = clients
        first = clients[0]
        self.lease_task = first.lease_task
        self.extend_lease = first.extend_lease
        self.complete_task = first.complete_task
        self.fail_task = first.fail_task
        self.get_task = first.get_task
        self.list_tasks = first.list_tasks
        self.cancel_tasks = first.cancel_tasks
        self.aggregate = first.aggregate

    @property
    def address(self) -> str:
        """The addresses of all servers, with commas: for ``sparseagg.Client`` in another process."""
        return ",".join(self._cluster.addresses)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Does nothing where the connections are those of a cluster that is used elsewhere."""
        if self._owns_cluster:
            self._cluster.close()

    def server_info(self) -> ServerInfo:
        """Returns version, engine and limits of the first server."""
        return self._clients[0].server_info()

    def create_round(self, spec: RoundSpec, round_id: str | None = None) -> ClusterRound:
        """Creates a round on all servers: ``Cluster.create_round``."""
        return self._cluster.create_round(spec, round_id)

    def get_round(self, name: str) -> ClusterRound:
        """Returns a round of the cluster by its id or name: ``Cluster.open_round``."""
        return self._cluster.open_round(name)

    def list_rounds(self) -> Iterator[ClusterRound]:
        """Yields the rounds of the cluster, oldest first. Rounds that are on one server alone are left out."""
        for opened in self._clients[0].list_rounds():
            with contextlib.suppress(NotFoundError, FailedPreconditionError):  # being created, or deleted; of others
                yield self._cluster.open_round(opened.name)

    def model(self, name: str, **options: Any) -> Any:
        """Returns a published model, as ``Client.model``, on the server of its name's hash."""
        return self._clients[home_of(str(name), len(self._clients))].model(name, **options)

    def create_tasks(self, tasks: Any, **options: Any) -> Any:
        """Creates tasks on the first server, as ``Client.create_tasks``.

        Raises:
            InvalidArgumentError: also for a task with a round.
        """
        tasks = list(tasks)
        for task in tasks:
            if getattr(task, "round", None):
                raise InvalidArgumentError(
                    f"a task of a cluster has no round, got {task.round!r}: submissions are on other servers"
                )
        return self._clients[0].create_tasks(tasks, **options)
