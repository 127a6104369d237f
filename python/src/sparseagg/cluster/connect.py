"""What a coordinator's argument ``server`` may be: one server or a cluster."""

from __future__ import annotations

from typing import Any, Union

from sparseagg._internal.client.blocking_client import Client
from sparseagg._internal.client.channel import addresses_of
from sparseagg.cluster.cluster import Cluster
from sparseagg.cluster.cluster_client import ClusterClient
from sparseagg.errors import InvalidArgumentError

__all__ = ["ServerArgument", "check_rule", "server_client"]

# The address of a server; those of a cluster, with commas; a client of one server; or a cluster.
ServerArgument = Union[str, Client, Cluster, ClusterClient]


def server_client(server: ServerArgument, **credentials: Any) -> Client | ClusterClient:
    """Returns a client whose rounds are on the server or the cluster. Its ``close`` closes what is made here.

    Args:
        server: see ``ServerArgument``. Of addresses with commas, this process merges.
        credentials: of ``Client``, for addresses.

    Raises:
        InvalidArgumentError: an argument is wrong.
    """
    if isinstance(server, Cluster):
        return server.client()
    if isinstance(server, (Client, ClusterClient)):
        return server
    addresses = addresses_of(server) if isinstance(server, str) else []
    if len(addresses) < 2:
        return Client(server, **credentials)
    cluster = Cluster(addresses, **credentials)
    return ClusterClient(cluster, cluster._clients, owns_cluster=True)


def check_rule(client: Client | ClusterClient | None, rule: Any) -> None:
    """Raises ``InvalidArgumentError`` for a rule that chooses among the submissions of a cluster's round."""
    if rule is not None and isinstance(client, ClusterClient):
        raise InvalidArgumentError(
            "a rule that chooses among updates needs all of them in one place: use one server, or none"
        )
