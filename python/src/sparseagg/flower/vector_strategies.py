"""Krum and MultiKrum of sparse updates: whole submissions that are close to others count."""

from __future__ import annotations

import functools
from logging import INFO
from typing import Any

from flwr.serverapp.strategy import FedAvg
from flwr.supercore import log

import sparseagg as sa
from sparseagg._internal.base.arguments import checked_integer
from sparseagg._internal.client.finish_by_rule import Rule
from sparseagg.flower.strategy import SparseMixin

__all__ = ["SparseKrum", "SparseMultiKrum"]


class SparseMultiKrum(SparseMixin, FedAvg):
    """Flower's ``MultiKrum`` with the same arguments, and those of ``SparseMixin``.

    The next model is the mean, weighted by examples, of the ``num_nodes_to_select`` replies that are closest to the
    n − ``num_malicious_nodes`` − 2 others that are nearest to them, over all tensors together
    (``sparseagg.robust.multi_krum``). A row that a node did not send is as in the model. Metrics are of the chosen
    replies alone. Of equal scores, the lower client ids win.

    With fewer than 2·``num_malicious_nodes`` + 3 replies, for which Krum promises nothing, the model stays, with an
    error in the log. Flower's strategy goes on.

    Args:
        num_malicious_nodes: f: the most nodes that may be malicious.
        num_nodes_to_select: m: how many replies to choose, 1 to n − f.

    Raises:
        InvalidArgumentError: an argument is out of range.
    """

    def __init__(self, *args: Any, num_malicious_nodes: int = 0, num_nodes_to_select: int = 1, **kwargs: Any) -> None:
        self.num_malicious_nodes = checked_integer(
            "num_malicious_nodes must be 0 or more", num_malicious_nodes, 0, 10**9
        )
        self.num_nodes_to_select = checked_integer(
            "num_nodes_to_select must be 1 or more", num_nodes_to_select, 1, 10**9
        )
        super().__init__(*args, **kwargs)

    def _rule(self) -> Rule:
        return functools.partial(sa.robust.multi_krum, f=self.num_malicious_nodes, m=self.num_nodes_to_select)

    def summary(self) -> None:
        """Logs the settings."""
        log(INFO, "\t├──> Krum settings:")
        log(INFO, "\t│\t├── Number of malicious nodes: %d", self.num_malicious_nodes)
        log(INFO, "\t│\t└── Number of nodes to select: %d", self.num_nodes_to_select)
        super().summary()


class SparseKrum(SparseMultiKrum):
    """Flower's ``Krum`` with the same arguments, and those of ``SparseMixin``: ``SparseMultiKrum`` of one node."""

    def __init__(self, *args: Any, num_malicious_nodes: int = 0, **kwargs: Any) -> None:
        super().__init__(*args, num_malicious_nodes=num_malicious_nodes, num_nodes_to_select=1, **kwargs)
