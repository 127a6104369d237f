"""FedAvgM, FedAdagrad, FedAdam and FedYogi whose steps move only the rows that clients have changed."""

from __future__ import annotations

from typing import Any

from flwr.serverapp.strategy import FedAvg

from sparseagg.flower.strategy import SparseMixin
from sparseagg.optimizers import FedAdagrad, FedAdam, FedAvgM, FedYogi

__all__ = ["SparseFedAdagrad", "SparseFedAdam", "SparseFedAvgM", "SparseFedYogi"]


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
