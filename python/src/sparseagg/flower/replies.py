"""Replies of clients that do not go with the others': one of them must not end a round, or the run, for all.

Flower's aggregation of metrics wants the same metrics in all replies, and raises an error that ends the run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from flwr.app import Error, Message, RecordDict

from sparseagg.flower.records import PRECONDITION

__all__ = ["refused", "split_by_metrics", "with_usable_metrics"]


def refused(reply: Message, reason: str) -> Message:
    """Returns what is reported in a reply's place: an error of the client, which Flower counts and logs."""
    return Message(Error(PRECONDITION, f"sparseagg: {reason}"), metadata=reply.metadata)


def split_by_metrics(replies: Sequence[Message]) -> tuple[list[Message], list[Message]]:
    """Returns the replies with the metrics that most replies have, by names and lengths, and the other replies."""
    forms = {id(reply): _form(reply.content) for reply in replies}
    counts = Counter(forms.values())
    # Of equally frequent forms the least one: the order of arrival changes nothing.
    usual = min(counts, key=lambda form: (-counts[form], form), default=None)
    alike = [reply for reply in replies if forms[id(reply)] == usual]
    return alike, [reply for reply in replies if forms[id(reply)] != usual]


def with_usable_metrics(replies: Sequence[Message], weighted_by: str) -> list[Message]:
    """Returns the replies of an evaluation, with errors in the place of those that Flower could not average."""
    weights = {id(reply): _weight(reply.content, weighted_by) for reply in replies if not reply.has_error()}
    alike, _ = split_by_metrics([reply for reply in replies if weights.get(id(reply)) is not None])
    usable = {id(reply) for reply in alike if any(weights[id(other)] for other in alike)}
    reason = f"these metrics cannot be averaged: the others have {{}}, and {weighted_by!r} is a number from 0 on"
    names = sorted(name for record in alike[:1] for name in next(iter(record.content.metric_records.values())))
    return [
        reply if reply.has_error() or id(reply) in usable else refused(reply, reason.format(", ".join(names)))
        for reply in replies
    ]


def _form(content: RecordDict) -> str:
    return repr(
        [
            (name, sorted((key, len(value) if isinstance(value, list) else -1) for key, value in record.items()))
            for name, record in content.metric_records.items()
        ]
    )


def _weight(content: RecordDict, weighted_by: str) -> float | None:
    """Returns the weight of a reply with one MetricRecord; None if there is no number from 0 on."""
    if len(content.metric_records) != 1:
        return None
    weight = next(iter(content.metric_records.values())).get(weighted_by)
    return float(weight) if isinstance(weight, (int, float)) and math.isfinite(weight) and weight >= 0 else None
