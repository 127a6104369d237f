"""Rounds over several servers: clients submit to their home server, and the coordinator merges ranges of keys.

The result has the bits of one server that has all submissions. ``docs/scale.md`` has the picture.

What servers and coordinators exchange about one server's round: ``export_submissions`` returns its submissions;
``export_partial`` returns what they add up to, and ``add_partial`` counts that in another round.
"""

from sparseagg.cluster.cluster import Cluster, ClusterClient
from sparseagg.cluster.cluster_round import ClusterRound
from sparseagg.cluster.exchange import add_partial, export_partial, export_submissions

__all__ = ["Cluster", "ClusterClient", "ClusterRound", "add_partial", "export_partial", "export_submissions"]
