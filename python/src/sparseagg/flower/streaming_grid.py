"""A grid that shows every reply to the strategy as soon as it is there."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from logging import INFO
from typing import Any, Protocol

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

# Flower's grid to a SuperLink asks every 3 s; a question without answers takes milliseconds.
_LEAST_WAIT_S, _MOST_WAIT_S = 0.05, 1.0
# Messages that a question is about, and questions in a row.
_LEAST_AT_ONCE, _MOST_QUESTIONS = 2, 32


class _Strategy(Protocol):
    def outgoing(self, message: Message) -> Message:
        """Returns what is sent in the message's place."""

    def incoming(self, reply: Message) -> Message | None:
        """Returns what is reported in the reply's place; None: the node needs its message again."""


class StreamingGrid(Grid):
    """Another grid, of which ``send_and_receive`` hands replies to a strategy while other clients still train."""

    def __init__(self, grid: Grid, strategy: _Strategy) -> None:
        self._grid = grid
        self._strategy = strategy

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

    def set_run(self, run: Any) -> None:
        """As the grid's."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """As the grid's."""
        return self._grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """As the grid's."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """As the grid's."""
        return self._grid.get_node_ids()  # type: ignore[no-any-return]

    def get_nodes(self) -> Iterable[Any]:
        """As the grid's."""
        return self._grid.get_nodes()  # type: ignore[no-any-return]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """As the grid's: these messages and their replies go past the strategy."""
        return self._grid.push_messages(messages)  # type: ignore[no-any-return]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """As the grid's."""
        return self._grid.pull_messages(message_ids)  # type: ignore[no-any-return]
