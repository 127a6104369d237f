"""Rounds over several servers: clients submit to their home server, and the coordinator merges ranges of keys.

The result has the bits of one server that has all submissions. ``docs/scale.md`` has the picture.
"""

from sparseagg.cluster.cluster import Cluster, ClusterClient
from sparseagg.cluster.cluster_round import ClusterRound

__all__ = ["Cluster", "ClusterClient", "ClusterRound"]
