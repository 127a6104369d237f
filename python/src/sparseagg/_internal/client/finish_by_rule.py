"""The end of a round whose clients a rule weighs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, SupportsFloat

from sparseagg._internal.updates.contributors import ClientId
from sparseagg.robust import ClientWeights

if TYPE_CHECKING:
    from sparseagg._internal.client.blocking_round import Round
    from sparseagg._internal.results.inspection import Inspection
    from sparseagg._internal.results.result import Result

__all__ = ["Rule", "finish_by_rule"]

Rule = Callable[["Inspection"], ClientWeights]


def finish_by_rule(rnd: Round, rule: Rule, only: Collection[str] | None = None) -> tuple[Result, ClientWeights]:
    """Seals a round, lets the rule weigh its clients, and closes it with these weights.

    Args:
        rnd: an open or sealed round.
        rule: such as ``sparseagg.robust.krum`` with its arguments.
        only: the clients that the rule sees; the others get weight 0. Clients that have not submitted are left out.

    Raises:
        SparseaggError: the rule or the round refuses; the round is sealed then, or failed.
    """
    rnd.seal()
    found = rnd.inspect()
    choice = rule(found if only is None else found.only(set(only).intersection(found.clients)))
    weights: dict[ClientId, SupportsFloat] = dict(choice.items())
    return rnd.finish(client_weights=weights), choice
