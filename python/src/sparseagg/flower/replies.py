"""Replies to a strategy: the grid that shows each as it comes, which can be merged, and what is left of it."""

from __future__ import annotations

import contextlib
import inspect
import sys
import time
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from logging import INFO, WARNING
from typing import Any

from flwr.app import ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

import sparseagg as sa
from sparseagg._internal.base.arguments import shown
from sparseagg.flower.model import CONFIG, PRECONDITION

# Ends of an error's text: what to use in place of those of Flower's strategies that have a counterpart here.
_HINTS = {
    "FedMedian": "; sparseagg.flower.SparseFedMedian merges so itself",
    "FedTrimmedAvg": "; sparseagg.flower.SparseFedTrimmedAvg merges so itself",
    "MultiKrum": "; sparseagg.flower.SparseKrum and SparseMultiKrum choose so themselves",
}


def check_goes_on(strategy: type, method: str, ours: tuple[type, ...], base: type) -> None:
    """Refuses a strategy of which a class before ``base`` overrides a method without calling the next class's.

    ``ours``: classes whose method is the merge, which stands for that of ``base``. ``InvalidArgumentError`` names the
    class.
    """
    for cls in strategy.__mro__:
        if cls is base:
            return
        if cls not in ours and method in vars(cls) and method not in _names_used(cls, vars(cls)[method]):
            raise sa.InvalidArgumentError(
                f"{cls.__name__}.{method} needs the single updates of the clients, for it does not call "
                f"super().{method}(...), and sparse updates are merged as they arrive: {shown(strategy.__name__)} "
                f"cannot combine the two{_HINTS.get(cls.__name__, '')}"
            )


def _names_used(cls: type, function: Any) -> set[str]:
    """Returns the names that a method uses, also in functions in it, in what it decorates, and in methods it calls."""
    names: set[str] = set()
    waiting, seen = [function], set()
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        code = thing
        if not isinstance(thing, types.CodeType):
            thing = inspect.unwrap(getattr(thing, "__func__", thing))  # of a static or class method
            code = getattr(thing, "__code__", None)
            for cell in getattr(thing, "__closure__", None) or ():
                with contextlib.suppress(ValueError):  # the cell is empty: what it is for is defined later
                    if isinstance(cell.cell_contents, types.FunctionType):
                        waiting.append(cell.cell_contents)
        if isinstance(code, types.CodeType):
            names.update(code.co_names)
            waiting += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
            waiting += [vars(cls)[name] for name in code.co_names if name in vars(cls)]
    return names


NO_MOD = (
    "node %d replies without sparse_mod: whole arrays travel, both ways, for each node like it; put mods=[sparse_mod] "
    "into its ClientApp"
)
_MOST_SHOWN = 5  # weights in the log
_GONE = "{!r}: the arrays of a reply are merged when it arrives, and not kept; it has its metrics and configuration: {}"


class _NoArrays(dict[str, ArrayRecord]):
    """No arrays, and an error that says why."""

    def __init__(self, others: str) -> None:
        super().__init__()
        self._others = others

    def __missing__(self, name: str) -> ArrayRecord:
        raise KeyError(_GONE.format(name, self._others))


class _Merged(RecordDict):
    """What is left of a reply whose arrays are merged."""

    def __getitem__(self, name: str) -> Any:
        return super().__getitem__(name) if name in self else self.array_records[name]

    @property
    def array_records(self) -> Any:
        """As of a ``RecordDict``."""
        return super().array_records or _NoArrays(", ".join(map(repr, self)))


def client_of(content: RecordDict) -> str:
    """Returns the id that a client gives itself; ``InvalidArgumentError`` if there is none."""
    config = content.config_records.get(CONFIG)
    client_id = "~node" if config is None else config.get("client")
    if not isinstance(client_id, str):
        raise sa.InvalidArgumentError(f"the configuration {CONFIG!r} of a reply has no text 'client'")
    return client_id


def with_node(client_id: str, node: int) -> str:
    """Returns the id with the node's own id, so that no node can speak for another."""
    return client_id if client_id.endswith(f":{node}") else f"{client_id}:{node}"


def weight_of(content: RecordDict, weighted_by: str) -> float:
    """Returns the weight of a client's update; ``InvalidArgumentError`` if there is no number."""
    metrics = list(content.metric_records.values())
    weight = metrics[0].get(weighted_by) if len(metrics) == 1 else None
    if not isinstance(weight, (int, float)):
        raise sa.InvalidArgumentError(f"a reply has one MetricRecord with a number {weighted_by!r}")
    return weight


def only_arrays(content: RecordDict) -> ArrayRecord:
    """Returns the one record of arrays; ``InvalidArgumentError`` if there is none, or another one."""
    arrays = arrays_of(content)
    if len(arrays) != 1:
        raise sa.InvalidArgumentError(f"a reply must have one ArrayRecord, got {len(arrays)}")
    return arrays[0]


def arrays_of(content: RecordDict) -> list[ArrayRecord]:
    """Returns the records of arrays; not by ``array_records``, which would keep them, as ``without_arrays`` says."""
    return [record for record in content.values() if isinstance(record, ArrayRecord)]


def without_arrays(content: RecordDict) -> RecordDict:
    """Returns a reply's content without arrays, and without the record between the mod and the strategy.

    Empties ``content``. Flower's views of it (``metric_records``) are cycles of references, which keep it, and so its
    arrays, until Python looks for cycles (flwr 1.42, ``_SyncedDict``).
    """
    kept = {name: record for name, record in content.items() if not isinstance(record, ArrayRecord)}
    kept.pop(CONFIG, None)
    content.clear()
    return _Merged(kept)


def averaged(
    replies: Sequence[Message], average: Callable[[list[RecordDict], str], MetricRecord], weighted_by: str
) -> MetricRecord:
    """Returns the average of the replies' metrics; if their weights allow none, an empty one, with a warning."""
    alike, others = _split_by_metrics(replies, weighted_by)
    for reply in others:
        log(
            WARNING,
            "\t> Node %d: its update counts; its metrics are left out, for they are not those of the others: %s",
            reply.metadata.src_node_id,
            dict(reply.content.metric_records),
        )
    try:
        return average([reply.content for reply in alike], weighted_by)
    except ArithmeticError as error:
        weights = ", ".join(
            f"{reply.metadata.src_node_id}: {_weight(reply.content, weighted_by)}" for reply in alike[:_MOST_SHOWN]
        )
        log(
            WARNING,
            "the updates count; there is no average of the metrics: %s, with these values of %r by node: %s",
            f"{type(error).__name__}: {error}",
            weighted_by,
            weights,
        )
        return MetricRecord()


def refused(reply: Message, reason: str) -> Message:
    """Returns what is reported in a reply's place: an error of the client, which Flower counts and logs."""
    return Message(Error(PRECONDITION, f"sparseagg: {reason}"), metadata=reply.metadata)


def _split_by_metrics(replies: Sequence[Message], weighted_by: str) -> tuple[list[Message], list[Message]]:
    """Returns the replies with the metrics that most replies have, by names and lengths, and the others.

    Replies of weight 0 have no vote on what most have, unless no other reply has a weight: the average ignores them,
    too. One whose metrics differ is in neither list.
    """
    weights = {id(reply): _weight(reply.content, weighted_by) for reply in replies}
    forms = {id(reply): _form(reply.content) for reply in replies if weights[id(reply)] is not None}
    counts = Counter(form for reply_id, form in forms.items() if weights[reply_id]) or Counter(forms.values())
    # Of equally frequent forms the least one: the order of arrival changes nothing.
    usual = min(counts, key=lambda form: (-counts[form], form), default="")
    alike = [reply for reply in replies if forms.get(id(reply)) == usual]
    return alike, [reply for reply in replies if forms.get(id(reply)) != usual and weights[id(reply)] != 0]


def with_usable_metrics(replies: Sequence[Message], weighted_by: str) -> list[Message]:
    """Returns the replies of an evaluation, with errors in the place of those that Flower could not average."""
    alike, _ = _split_by_metrics([reply for reply in replies if not reply.has_error()], weighted_by)
    has_average = any(_weight(reply.content, weighted_by) for reply in alike)
    usable = {id(reply) for reply in alike if has_average}
    wanted = f"{weighted_by!r} must be a number from 0 on, and not 0 in all replies"
    for reply in alike[:1]:
        names = sorted(name for record in reply.content.metric_records.values() for name in record)
        wanted = f"the others have {', '.join(names)}, and {wanted}"
    reason = f"these metrics cannot be averaged: {wanted}"
    return [reply if reply.has_error() or id(reply) in usable else refused(reply, reason) for reply in replies]


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
    if not isinstance(weight, (int, float)) or not 0 <= weight <= sys.float_info.max:
        return None
    return float(weight)


# Flower's grid to a SuperLink asks every 3 s; a question without answers takes milliseconds.
_LEAST_WAIT_S, _MOST_WAIT_S = 0.05, 1.0
# Messages that a question is about, and questions in a row.
_LEAST_AT_ONCE, _MOST_QUESTIONS = 2, 32


@Grid.register
class StreamingGrid:
    """Another grid, of which ``send_and_receive`` hands replies to a strategy while other clients still train.

    Args:
        grid: which has all else; messages that are pushed by its own methods, and their replies, go past the strategy.
        strategy: a ``SparseMixin``.
    """

    def __init__(self, grid: Grid, strategy: Any) -> None:
        self._grid = grid
        self._strategy = strategy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Sends messages, and returns the replies; those that are not there within the timeout are left out."""
        end = None if timeout is None else time.monotonic() + timeout
        replies: list[Message] = []
        waiting = self._push(list(messages))
        repeated: set[str] = set()  # ids of messages that were sent a second time; there is no third
        sent, wait = len(waiting), _LEAST_WAIT_S
        while waiting and (end is None or time.monotonic() < end):
            again: list[Message] = []
            num_arrived = 0
            for reply in self._arrivals(list(waiting)):
                num_arrived += 1
                message = waiting.pop(reply.metadata.reply_to_message_id, None)
                if message is None:
                    continue
                seen = self._strategy.incoming(reply)
                if seen is not None or reply.metadata.reply_to_message_id in repeated:
                    replies.append(reply if seen is None else seen)
                else:
                    again.append(message)
            sent_again = self._push(again)
            repeated.update(sent_again)
            waiting.update(sent_again)
            if num_arrived:
                wait = _LEAST_WAIT_S
            else:
                time.sleep(wait if end is None else max(0.0, min(wait, end - time.monotonic())))
                wait = min(2 * wait, _MOST_WAIT_S)
        if waiting:
            log(INFO, "%s of %s nodes have not replied within %s s", len(waiting), sent, timeout)
        return replies

    def _arrivals(self, ids: list[str]) -> Iterator[Message]:
        """Yields the replies to some messages that are there. Few are asked for at a time, and wait to be merged."""
        step = max(_LEAST_AT_ONCE, len(ids) // _MOST_QUESTIONS)
        for first in range(0, len(ids), step):
            arrived = list(self._grid.pull_messages(ids[first : first + step]))
            while arrived:
                yield arrived.pop(0)  # which releases its arrays when they are merged

    def _push(self, messages: list[Message]) -> dict[str, Message]:
        """Sends messages, and returns the originals by the id that was sent; those that could not be sent are out."""
        outgoing = [self._strategy.outgoing(message) for message in messages]
        pushed = set(self._grid.push_messages(outgoing)) if outgoing else set()
        by_id = {sent.metadata.message_id: message for sent, message in zip(outgoing, messages)}
        if len(pushed & set(by_id)) < len(messages):
            log(INFO, "%s of %s messages could not be sent", len(messages) - len(pushed & set(by_id)), len(messages))
        return {message_id: message for message_id, message in by_id.items() if message_id in pushed}
