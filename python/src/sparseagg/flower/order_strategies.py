"""FedMedian and FedTrimmedAvg of sparse updates: order statistics, which few attackers cannot move."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.serverapp.strategy import FedAvg

import sparseagg as sa
from sparseagg._internal.base.arguments import shown
from sparseagg.flower.strategy import SparseMixin

__all__ = ["SparseFedMedian", "SparseFedTrimmedAvg"]


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
