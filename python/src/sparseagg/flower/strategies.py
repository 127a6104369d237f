"""Strategies with an optimizer, with order statistics and for dense vectors."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from logging import INFO
from typing import Any

from flwr.serverapp.strategy import FedAvg
from flwr.supercore import log

import sparseagg as sa
from sparseagg._internal.base.arguments import checked_integer, shown
from sparseagg.cluster.cluster import Rule
from sparseagg.flower.strategy import SparseMixin
from sparseagg.optimizers import FedAdagrad, FedAdam, FedAvgM, FedYogi


class SparseFedAvgM(SparseMixin, FedAvg):
    """Flower's ``FedAvgM`` with the same arguments, and those of ``SparseMixin``.

    Args:
        server_learning_rate: of the server.
        server_momentum: of a row; it rests while no client changes the row.
        dense: move rows that no client has changed, too, as Flower's does: for comparison.
    """

    def __init__(
        self,
        *args: Any,
        server_learning_rate: float = 1.0,
        server_momentum: float = 0.0,
        dense: bool = False,
        **kwargs: Any,
    ) -> None:
        optimizer = FedAvgM(learning_rate=server_learning_rate, momentum=server_momentum, dense=dense)
        super().__init__(*args, optimizer=optimizer, **kwargs)


class SparseFedAdagrad(SparseMixin, FedAvg):
    """Flower's ``FedAdagrad`` with the same arguments, and those of ``SparseMixin``; ``dense`` as above.

    ``eta_l``, as in Flower, is for the clients, and changes nothing here.
    """

    def __init__(
        self, *args: Any, eta: float = 1e-1, eta_l: float = 1e-1, tau: float = 1e-3, dense: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(*args, optimizer=FedAdagrad(learning_rate=eta, tau=tau, dense=dense), **kwargs)
        self.eta, self.eta_l, self.tau = eta, eta_l, tau


class SparseFedAdam(SparseMixin, FedAvg):
    """Flower's ``FedAdam`` with the same arguments, and those of ``SparseMixin``; ``dense`` as above."""

    def __init__(
        self,
        *args: Any,
        eta: float = 1e-1,
        eta_l: float = 1e-1,
        beta_1: float = 0.9,
        beta_2: float = 0.99,
        tau: float = 1e-3,
        dense: bool = False,
        **kwargs: Any,
    ) -> None:
        optimizer = FedAdam(learning_rate=eta, beta_1=beta_1, beta_2=beta_2, tau=tau, dense=dense)
        super().__init__(*args, optimizer=optimizer, **kwargs)
        self.eta, self.eta_l, self.beta_1, self.beta_2, self.tau = eta, eta_l, beta_1, beta_2, tau


class SparseFedYogi(SparseMixin, FedAvg):
    """Flower's ``FedYogi`` with the same arguments, and those of ``SparseMixin``; ``dense`` as above."""

    def __init__(
        self,
        *args: Any,
        eta: float = 1e-2,
        eta_l: float = 0.0316,
        beta_1: float = 0.9,
        beta_2: float = 0.99,
        tau: float = 1e-3,
        dense: bool = False,
        **kwargs: Any,
    ) -> None:
        optimizer = FedYogi(learning_rate=eta, beta_1=beta_1, beta_2=beta_2, tau=tau, dense=dense)
        super().__init__(*args, optimizer=optimizer, **kwargs)
        self.eta, self.eta_l, self.beta_1, self.beta_2, self.tau = eta, eta_l, beta_1, beta_2, tau


class _OrderStatistic(SparseMixin, FedAvg):
    """A strategy whose ``op`` is an order statistic of all tensors.

    Rows whose merged difference is 0 are left out of the result, since they do not move the model.
    """

    _op_of_all = True

    def __init__(self, *args: Any, absent: str, options: Mapping[str, Any] | None, **kwargs: Any) -> None:
        given = {"absent": absent, "prune_zeros": True, **(options or {})}
        super().__init__(*args, options=given, **kwargs)


class SparseFedMedian(_OrderStatistic):
    """Flower's ``FedMedian`` with the same arguments, and those of ``SparseMixin`` but for ``op``.

    Each value becomes the median of the nodes' values: of dense tensors as in Flower, of sparse ones as the median of
    their differences. Every reply has one vote, whatever its number of examples.

    Args:
        absent: what a node says of a row that it did not change. "zero": that the row stays, as in Flower's strategy,
            which sees whole arrays; rows that few nodes change then stay. "skip": nothing; the nodes that changed the
            row decide. Then f attackers are outvoted at rows of 2f + 1 nodes: set ``min_contributors`` in ``options``.
        options: as of ``SparseMixin``; ``weighting="by_weight"`` gives a reply as many votes as examples.
    """

    def __init__(
        self, *args: Any, absent: str = "zero", options: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, op="median", absent=absent, options=options, **kwargs)


class SparseFedTrimmedAvg(_OrderStatistic):
    """Flower's ``FedTrimmedAvg`` with the same arguments, and those of ``SparseMixin`` but for ``op``.

    Each value becomes the mean of the nodes' values without the ⌊``beta``·n⌋ lowest and as many highest ones.

    Args:
        beta: fraction of the values that is dropped at either end; in [0, 0.5).
        absent, options: as of ``SparseFedMedian``. With "skip", n is the number of nodes that changed the row.

    Raises:
        InvalidArgumentError: ``beta`` is out of range.
    """

    def __init__(
        self,
        *args: Any,
        beta: float = 0.2,
        absent: str = "zero",
        options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(beta, (int, float)) or not 0 <= beta < 0.5:
            raise sa.InvalidArgumentError(f"beta must be a number in [0, 0.5), got {shown(beta)}")
        self.beta = beta
        given = {"trim_fraction": float(beta), **(options or {})}
        super().__init__(*args, op="trimmed_mean", absent=absent, options=given, **kwargs)


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
