"""A worker: leases tasks, runs a handler, submits, completes. One coroutine, which both kinds of client run."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sparseagg._internal.base.arguments import Timeout, checked_seconds, shown
from sparseagg._internal.base.durations import Seconds
from sparseagg._internal.client.async_client import Client
from sparseagg._internal.client.deadlines import seconds_to
from sparseagg._internal.client.retry import RetryPolicy
from sparseagg._internal.results.tasks import Outcome, Task
from sparseagg._internal.updates.contributors import ClientId
from sparseagg.errors import (
    AlreadyExistsError,
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    SparseaggError,
    UnavailableError,
)

__all__ = ["Worker", "worker"]

# Renewals within the duration of a lease: one may be lost.
_RENEWALS = 3

_MOST_REASON_BYTES = 1024

# The server stops, is down, or is full: a later call may succeed.
_TEMPORARY = (UnavailableError, CancelledError, DeadlineExceededError, ResourceExhaustedError)


class Worker:
    """The loop of one worker. The arguments are those of ``sparseagg.worker``."""

    def __init__(
        self,
        client: Client,
        handler: Callable[[Task], Any],
        client_id: ClientId,
        *,
        labels: Iterable[str] = (),
        lease_duration: Seconds = 60.0,
        idle_timeout: Timeout = None,
        max_tasks: int | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        if not callable(handler):
            raise InvalidArgumentError(f"handler must be a function of a task, got {shown(handler)}")
        length = checked_seconds("lease_duration", lease_duration)
        if not length:
            raise InvalidArgumentError(
                f"lease_duration must be a number of seconds above 0, got {shown(lease_duration)}"
            )
        self._client = client
        self._handler = handler
        self._client_id = client_id
        self._labels = list(labels)
        self._lease_s = length
        self._idle_s = checked_seconds("idle_timeout", idle_timeout)
        self._max_tasks = max_tasks
        self._should_stop = should_stop

    async def run(self) -> int:
        """Works until there is nothing to do any more; returns the number of completed tasks."""
        num_completed = 0
        has_answered = False  # the server, once
        idle_since = time.monotonic()
        waits: Iterator[float] = iter(())
        while num_completed != self._max_tasks and not self._should_stop():
            deadline = None if self._idle_s is None else idle_since + self._idle_s
            try:
                task = await self._client.lease_task(
                    self._client_id,
                    labels=self._labels,
                    lease_duration=self._lease_s,
                    timeout=min(30.0, seconds_to(deadline)),
                )
            except _TEMPORARY as error:
                # A worker outlasts its server, and may be started before it.
                if not has_answered and (seconds_to(deadline) == 0 or _cannot_pass(error)):
                    raise
                if seconds_to(deadline) == 0:
                    return num_completed
                pause = next(waits, None)
                if pause is None:
                    waits = RetryPolicy(attempts=100, initial=0.5, maximum=10.0).waits()
                    pause = next(waits)
                await self._client._connection.transport.sleep(min(pause, seconds_to(deadline)))
                continue
            waits, has_answered = iter(()), True
            if task is not None:
                num_completed += await self._do(task)
                idle_since = time.monotonic()
            elif seconds_to(deadline) == 0:
                return num_completed
        return num_completed

    async def _do(self, task: Task) -> bool:
        """Does one task; returns whether this worker has completed it."""
        transport = self._client._connection.transport
        try:
            return await transport.alongside(self._finish(task), lambda: self._renew(task), self._lease_s / _RENEWALS)
        except (FailedPreconditionError, NotFoundError):
            return False  # the task has ended, or its round, or another worker has completed it
        except _TEMPORARY:
            return False  # the lease expires, and the task is offered again

    async def _finish(self, task: Task) -> bool:
        try:
            outcome = Outcome.of(await self._handled(task))
            if task.round and outcome.update is None:  # another attempt would find nothing, either
                await self._client.fail_task(task, "nothing to submit", retry=False)
                return False
            submission_id = await self._submit(task, outcome)
        except (FailedPreconditionError, NotFoundError, *_TEMPORARY) as error:
            if isinstance(error, (FailedPreconditionError, NotFoundError)):
                await self._client.fail_task(task, _reason(error))
            raise
        except Exception as error:  # of the handler: whatever it is, the task is for others
            await self._client.fail_task(task, _reason(error))
            return False
        await self._client.complete_task(task, submission_id, outcome.result)
        return True

    async def _handled(self, task: Task) -> Any:
        if inspect.iscoroutinefunction(self._handler):
            return await self._handler(task)
        return await self._client._connection.transport.convert(self._handler, task)

    async def _submit(self, task: Task, outcome: Outcome) -> str:
        """Submits the update, if there is one, and returns the submission's id."""
        if outcome.update is None:
            return ""
        if not task.round:
            raise InvalidArgumentError(f"{task.name} has no round, but its handler returned an update")
        # The same id in each attempt: if an earlier one was killed behind its commit, that submission counts.
        submission_id = task.id
        # AlreadyExistsError: with other content. If it is of another task, the server refuses to complete this one.
        with contextlib.suppress(AlreadyExistsError):
            if task.base_version is not None:
                stream = await self._client.get_stream(task.round.removeprefix("rounds/"))
                await stream.submit(
                    task.client_id,
                    outcome.update,
                    outcome.weight,
                    submission_id=submission_id,
                    base_version=task.base_version,
                )
                return submission_id
            opened = await self._client.get_round(task.round)
            await opened.submit(task.client_id, outcome.update, outcome.weight, submission_id=submission_id)
        return submission_id

    async def _renew(self, task: Task) -> bool:
        """Renews the lease; returns whether to go on renewing."""
        try:
            await self._client.extend_lease(task, self._lease_s)
        except _TEMPORARY:
            return True
        except SparseaggError:
            return False  # the work goes on: it may be completed, unless somebody else has
        return True


async def worker(client: Client, handler: Callable[[Task], Any], client_id: ClientId, **options: Any) -> int:
    """Leases tasks, runs ``handler``, submits and completes; see ``sparseagg.worker``.

    A coroutine function as the handler runs in the event loop, any other function in a thread.
    """
    return await Worker(client, handler, client_id, **options).run()


def _cannot_pass(error: SparseaggError) -> bool:
    return isinstance(error, UnavailableError) and error.cannot_pass


def _reason(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}".encode()[:_MOST_REASON_BYTES]
    return text.decode(errors="ignore")
