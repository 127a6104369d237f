"""Tasks that workers pull: what a coordinator creates, what a worker leases, and how it ended."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable
from typing import Any

from sparseagg._internal.base.arguments import checked_integer, checked_text, shown
from sparseagg._internal.base.fields import Seconds, as_of, duration, now, read, seconds_of
from sparseagg._internal.base.text import plain
from sparseagg._internal.base.types import Update
from sparseagg.errors import InvalidArgumentError
from sparseagg.v1 import tasks_pb2

_MOST_INT32 = 2**31 - 1
_MOST_UINT32 = 2**32 - 1


@dataclasses.dataclass(frozen=True)
class NewTask:
    """A task to create.

    Attributes:
        payload: for the worker; at most the server's max_task_bytes.
        labels: what a worker must have to get the task.
        priority: tasks of a higher priority go first.
        deadline: seconds from the creation until the task fails; None: never.
        max_attempts: leases until the task fails; 0: the server's default, 10.
        round: the round or stream to submit to, by its id, its name, or as ``Round`` or ``Stream``; None: none.
        ttl: seconds that the ended task is kept; None: the server's limit.
        id: ``[A-Za-z0-9_][A-Za-z0-9._-]{0,127}``; None: a random one.
    """

    payload: bytes = b""
    labels: Iterable[str] = ()
    priority: int = 0
    deadline: Seconds | None = None
    max_attempts: int = 0
    round: Any = None
    ttl: Seconds | None = None
    id: str | None = None

    def _to_proto(self, task_id: str) -> tasks_pb2.NewTask:
        """Returns the message; ``InvalidArgumentError`` names a field with a wrong type."""
        most = f"from 0 to {_MOST_UINT32}"
        return tasks_pb2.NewTask(
            task_id=checked_text("a task's id", task_id),
            spec=tasks_pb2.TaskSpec(
                payload=checked_bytes("payload", self.payload),
                labels=checked_labels(self.labels),
                priority=checked_integer(
                    "priority must be a number of 32 bits", self.priority, -_MOST_INT32 - 1, _MOST_INT32
                ),
                deadline=duration("deadline", self.deadline),
                max_attempts=checked_integer(
                    f"max_attempts must be a number {most}", self.max_attempts, 0, _MOST_UINT32
                ),
                round=checked_round(self.round),
                ttl=duration("ttl", self.ttl),
            ),
        )


@dataclasses.dataclass(frozen=True)
class Task:
    """A task at one moment.

    Attributes:
        name: "tasks/{id}".
        state: "open", "leased", "completed", "failed" or "cancelled".
        state_reason: why the task is "failed" or "cancelled", or why the attempt before failed.
        payload: of ``get_task`` and ``lease_task``, while the task has not ended; otherwise empty.
        attempts: leases so far.
        client_id: the worker of the latest lease; of a "completed" task, the worker that has completed it.
        lease_id: of the lease of this worker.
        lease_remaining: seconds until that lease expires, as the server wrote them.
        result: of a "completed" task, from ``get_task`` and ``list_tasks``.
        base_version: of ``lease_task``, if ``round`` is a stream: its latest version with a result when the task was
            leased; 0: there is none. Else None.
        as_of: when this client read the description, by its own clock, in UTC.
    """

    name: str
    state: str
    state_reason: str
    payload: bytes
    labels: tuple[str, ...]
    priority: int
    round: str
    owner: str
    attempts: int
    max_attempts: int
    client_id: str
    lease_id: str
    lease_remaining: float
    submission_id: str
    result: bytes
    create_time: datetime.datetime | None
    end_time: datetime.datetime | None
    expire_time: datetime.datetime | None
    base_version: int | None = None
    as_of: datetime.datetime | None = dataclasses.field(default=None, compare=False)

    def __repr__(self) -> str:
        worker = f", client {self.client_id!r}" if self.client_id else ""
        return (
            f"Task({self.name!r}, {plain(self.state)}{worker}, attempts: {self.attempts} of {self.max_attempts}"
            f"{as_of(self.as_of)})"
        )

    @property
    def id(self) -> str:
        """The name without "tasks/"."""
        return self.name.partition("/")[2]

    @property
    def ended(self) -> bool:
        """Whether the task is in a final state."""
        return self.state not in ("open", "leased")

    @classmethod
    def _from_proto(cls, proto: tasks_pb2.Task) -> Task:
        """Returns the values of a message."""
        spec, lease = proto.spec, proto.lease
        return read(
            cls,
            proto,
            payload=spec.payload,
            labels=tuple(spec.labels),
            priority=spec.priority,
            round=spec.round,
            max_attempts=spec.max_attempts,
            client_id=lease.client_id,
            lease_id=lease.lease_id,
            lease_remaining=seconds_of(lease.remaining),
            as_of=now(),
        )


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a worker's handler has made of a task.

    Attributes:
        update: for the task's round; see ``Round.submit``. None: nothing to submit, which fails a task with a round.
        weight: of the update.
        result: small, for the coordinator; at most the server's max_task_bytes.
    """

    update: Update | None = None
    weight: float | None = None
    result: bytes = b""

    @classmethod
    def of(cls, returned: Any) -> Outcome:
        """Returns what a handler has returned as an outcome; ``InvalidArgumentError`` if it is none."""
        if isinstance(returned, Outcome):
            return returned
        if returned is None:
            return cls()
        return cls(result=checked_bytes("what a handler returns, unless it is an Outcome or None,", returned))


def checked_bytes(what: str, value: Any) -> bytes:
    """Returns ``value`` as bytes; ``InvalidArgumentError`` names ``what`` if it is no bytes-like object."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise InvalidArgumentError(f"{what} must be bytes, got {shown(value)}")


def checked_labels(labels: Any) -> list[str]:
    """Returns a list of labels; ``InvalidArgumentError`` if ``labels`` is no collection of strings."""
    if isinstance(labels, (str, bytes)) or not isinstance(labels, Iterable):
        raise InvalidArgumentError(f"labels must be a list of strings, got {shown(labels)}")
    return [checked_text("a label", label) for label in labels]


def checked_round(chosen: Any) -> str:
    """Returns "rounds/{id}" for a round, a stream, or the name or id of either; "" for None."""
    if chosen is None:
        return ""
    name = checked_text("the round of a task", getattr(chosen, "name", chosen))
    return name if name.startswith("rounds/") else f"rounds/{name.removeprefix('streams/')}"
