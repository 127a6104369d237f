"""The merge of one round's results of one params_type, in this process or on a server."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import sparseagg as sa
from sparseagg._internal.client import finish_by_rule
from sparseagg._internal.spec import round_spec
from sparseagg._internal.updates import contributors as updates
from sparseagg.cluster import ClusterClient, ClusterRound
from sparseagg.cluster.cluster import check_rule

__all__ = ["RoundMerge"]


class RoundMerge:
    """Results of clients, merged as ``spec`` says. Not thread-safe.

    Life cycle: ``add`` each result, in any order; ``finish`` or ``cancel`` once.

    Args:
        spec: of the round.
        client: of the server, or of the cluster, that merges; None: this process does.
        rule: chooses among the results when they are there; None: all count.

    Attributes:
        accepted: weight and metrics of the results that count, by client.
        choice: of the rule, once ``finish`` has been called.
    """

    def __init__(
        self, spec: sa.RoundSpec, client: sa.Client | ClusterClient | None, rule: finish_by_rule.Rule | None = None
    ) -> None:
        check_rule(client, rule)
        self._rule = rule
        self.choice: sa.robust.ClientWeights | None = None
        self._own_client = sa.Client(":memory:") if client is None and rule is not None else None
        client = client or self._own_client
        self._aggregator = sa.Aggregator(spec) if client is None else None
        self._round = None if client is None else client.create_round(spec)
        self._is_weighted = round_spec.is_weighted(spec)
        self.accepted: dict[str, tuple[float, Any]] = {}

    def add(self, client: str, update: Mapping[str, Any], weight: float, metrics: Any) -> None:
        """Adds a result, completely or not at all. Raises a ``SparseaggError`` that names the client."""
        vote = weight if self._is_weighted else 1.0
        if self._aggregator is not None:
            self._aggregator.add(client, update, vote)
        elif self._round is not None:
            with updates.naming_client(client):
                self._round.submit(client, update, vote)
        self.accepted[client] = weight, metrics

    def finish(self) -> sa.Result:
        """Merges. Results that a rule leaves out are no longer in ``accepted``."""
        if self._aggregator is not None:
            return self._aggregator.finish()
        assert self._round is not None
        if self._rule is None:
            result = self._round.finish()
            if isinstance(self._round, ClusterRound):  # which would keep the submissions
                self._round.delete()
        else:
            assert isinstance(self._round, sa.Round)
            result, self.choice = finish_by_rule.finish_by_rule(self._round, self._rule, self.accepted)
            self.accepted = {client: self.accepted[client] for client, weight in self.choice.items() if weight > 0}
        self._round = None
        self._close_own_client()
        return result

    def cancel(self) -> None:
        """Ends a round on the server that was not finished."""
        if self._round is not None:
            with contextlib.suppress(sa.SparseaggError):
                self._round.cancel("the NVFlare round ended without an aggregation")
            self._round = None
        self._close_own_client()

    def _close_own_client(self) -> None:
        if self._own_client is not None:
            self._own_client.close()
            self._own_client = None
