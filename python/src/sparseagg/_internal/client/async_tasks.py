"""The calls of a client about tasks, as coroutines; ``blocking_client`` has the blocking twins."""

from __future__ import annotations

import contextlib
import inspect
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from sparseagg._internal.base.arguments import Timeout, checked_seconds, checked_text, shown
from sparseagg._internal.base.fields import Seconds, duration
from sparseagg._internal.client.connection import Connection
from sparseagg._internal.client.memory_connection import MemoryConnection
from sparseagg._internal.client.retry import RetryPolicy, checked_deadline, long_poll, pages, raise_if_late, seconds_to
from sparseagg._internal.results.tasks import NewTask, Outcome, Task, checked_bytes, checked_labels, checked_round
from sparseagg._internal.updates.contributors import ClientId, checked_client_id
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
from sparseagg.v1 import tasks_pb2 as pb

if TYPE_CHECKING:
    from sparseagg._internal.client.async_client import Client

# Bounds of one CreateTasks.
_MOST_TASKS = 1000
_MOST_BYTES = 1 << 20

_STATES = ("open", "leased", "completed", "failed", "cancelled")


class TaskCalls:
    """A part of both clients."""

    _connection: Connection | MemoryConnection

    async def create_tasks(self, tasks: Iterable[NewTask], owner: str = "") -> list[str]:
        """Creates tasks and returns their names.

        Args:
            tasks: the tasks. A task whose id, content and owner are those of an existing one stays as it is. Up to 1000
                tasks and 1 MiB are created together or not at all; of more, the first may exist after an error.
            owner: on whose behalf; owners of tasks with the same priority take turns. "": the name of the credential.

        Raises:
            InvalidArgumentError: a task is wrong; the message says which one.
            AlreadyExistsError: an id is that of another task.
            FailedPreconditionError: the round of a task is not open.
            ResourceExhaustedError: the server has too many tasks, or a payload is too large.
        """
        names: list[str] = []
        for messages in _batches(tasks):
            request = pb.CreateTasksRequest(tasks=messages, owner=checked_text("an owner", owner))
            names += (await self._connection.call("CreateTasks", request)).names
        return names

    async def lease_task(
        self,
        client_id: ClientId,
        *,
        labels: Iterable[str] = (),
        lease_duration: Seconds = 60.0,
        timeout: Timeout = 30.0,
        lease_id: str | None = None,
    ) -> Task | None:
        """Leases a task, or returns None if none comes within ``timeout``. ``work`` does all that follows.

        Args:
            client_id: the worker's id, under which it submits.
            labels: the worker's. It gets tasks whose labels are all among them.
            lease_duration: seconds, or a timedelta, until the lease expires, unless ``extend_lease`` renews it.
            timeout: how long to wait for a task, in seconds, retries included; None: for ever.
            lease_id: names the lease: with the id of a lease that the client has, the answer is that task. None: a
                random id.

        Raises:
            TimeoutError: (``DeadlineExceededError``) the server has not answered within ``timeout`` and a few seconds.
        """
        deadline = checked_deadline(timeout)
        request = pb.LeaseTaskRequest(
            client_id=checked_client_id(client_id),
            # The same in all attempts, so that a lease whose answer was lost is found again.
            lease_id=uuid.uuid4().hex if lease_id is None else checked_text("a lease's id", lease_id),
            labels=checked_labels(labels),
            lease_duration=duration("lease_duration", lease_duration),
        )
        with raise_if_late(deadline, "no task has been leased"):
            answer = await long_poll(
                self._connection, "LeaseTask", request, deadline, lambda answer: answer.HasField("task")
            )
        return Task._from_proto(answer.task) if answer.HasField("task") else None

    async def extend_lease(self, task: Task, lease_duration: Seconds = 60.0) -> Task:
        """Renews the lease of a task for ``lease_duration`` from now.

        Raises:
            FailedPreconditionError: the task has ended, or the lease has passed on to another worker.
        """
        return await self._change(
            "ExtendLease",
            pb.ExtendLeaseRequest(**_lease(task), lease_duration=duration("lease_duration", lease_duration)),
        )

    async def complete_task(self, task: Task, submission_id: str = "", result: bytes = b"") -> Task:
        """Completes a leased task, and returns it as it is now.

        Args:
            task: of ``lease_task``.
            submission_id: of the submission in the task's round, if the task has one.
            result: bytes for the coordinator; at most the server's max_task_bytes.

        Raises:
            FailedPreconditionError: the task has ended, or the round has no such submission.
        """
        submission_id = checked_text("a submission's id", submission_id)
        request = pb.CompleteTaskRequest(
            **_lease(task), submission_id=submission_id, result=checked_bytes("result", result)
        )
        return await self._change("CompleteTask", request)

    async def fail_task(self, task: Task, reason: str = "", *, retry: bool = True) -> Task:
        """Gives a leased task back. The server offers it again while it has attempts left, and otherwise fails it.

        Args:
            task: of ``lease_task``.
            reason: for the task's ``state_reason``.
            retry: False fails the task at once.

        Raises:
            FailedPreconditionError: the task has ended, or the lease has passed on to another worker.
        """
        request = pb.FailTaskRequest(**_lease(task), reason=checked_text("a reason", reason), retry=bool(retry))
        return await self._change("FailTask", request)

    async def get_task(self, name: str) -> Task:
        """Returns a task by its id or its name ("tasks/{id}"); ``NotFoundError`` if the server has none."""
        return await self._change("GetTask", pb.GetTaskRequest(task=_task_name(name)))

    async def list_tasks(self, *, state: str | None = None, in_round: Any = None) -> AsyncIterator[Task]:
        """Yields tasks, oldest first, without their payloads.

        Args:
            state: "open", "leased", "completed", "failed" or "cancelled"; None: all.
            in_round: only tasks of this round or stream, by its id, its name, or itself.
        """
        if state is not None and state not in _STATES:
            raise InvalidArgumentError(
                f"state must be one of {', '.join(_STATES)}, or None for all, got {shown(state)}"
            )
        request = pb.ListTasksRequest(
            page_size=_MOST_TASKS,
            state=None if state is None else f"TASK_STATE_{state.upper()}",
            round=checked_round(in_round),
        )
        async for page in pages(self._connection, "ListTasks", request):
            for proto in page.tasks:
                yield Task._from_proto(proto)

    async def cancel_tasks(self, names: Iterable[str] = (), *, in_round: Any = None, reason: str = "") -> int:
        """Cancels tasks by name, or all of a round; returns how many had not ended.

        Raises:
            NotFoundError: a name is unknown. No task is cancelled then, but of more than 1000 names
                the first thousands may be.
        """
        if isinstance(names, str) or not isinstance(names, Iterable):
            raise InvalidArgumentError(f"names must be a list of names of tasks, got {shown(names)}")
        named = [_task_name(name) for name in names]
        request = pb.CancelTasksRequest(round=checked_round(in_round), reason=checked_text("a reason", reason))
        if request.round:
            request.names.extend(named)  # for the server to refuse
            return int((await self._connection.call("CancelTasks", request)).num_cancelled)
        num_cancelled = 0
        for begin in range(0, len(named), _MOST_TASKS):
            request.names[:] = named[begin : begin + _MOST_TASKS]
            num_cancelled += (await self._connection.call("CancelTasks", request)).num_cancelled
        return num_cancelled

    async def work(
        self: Any,
        handler: Callable[[Task], Any],
        client_id: ClientId,
        *,
        labels: Iterable[str] = (),
        lease_duration: Seconds = 60.0,
        idle_timeout: Timeout = None,
        max_tasks: int | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> int:
        """Leases tasks one after the other, runs ``handler`` on each, submits its update and completes the task.

            def train(task):
                keys, rows = gradient(task.payload)
                return sparseagg.Outcome({"embedding": (keys, rows)}, weight=12.0)

            client.work(train, "site-7", labels=["gpu"])

        While the handler works, the lease is renewed from another thread, three times within ``lease_duration``. The
        worker may be started before the server, and outlasts restarts of the server. If the worker is killed, its lease
        expires, and the task is offered again. An exception of the handler gives the task back, with the exception as
        the reason. A task with a round for which the handler returns no update fails for good.

        The submission's id is the task's, so that a task that the same client begins again counts once. A client has
        one submission in a round, so that it should get one task of a round: a label for each client, such as
        "client:site-7", addresses tasks.

        Args:
            handler: a function of a ``Task``. It returns an ``Outcome``, the bytes of a result, or None. In
                ``sparseagg.aio``, a coroutine function runs in the event loop, any other function in a thread.
            client_id: under which the worker leases and submits.
            labels: the worker's. It gets tasks whose labels are all among them.
            lease_duration: seconds, or a timedelta, after which a killed worker's task is offered again.
            idle_timeout: seconds, or a timedelta, without a task after which the worker ends; None: never.
            max_tasks: number of completed tasks after which the worker ends; None: never.
            should_stop: called between two tasks, and at least every 30 seconds; returns whether the worker ends.

        Returns:
            The number of tasks that this worker has completed.

        Raises:
            UnavailableError, DeadlineExceededError: the server has not answered once within ``idle_timeout``; or what
                listens at the address is no server for this client.
        """
        worker = Worker(self, handler, client_id, labels, lease_duration, idle_timeout, max_tasks, should_stop)
        return await worker.run()

    async def _change(self, method: str, request: Any) -> Task:
        return Task._from_proto(await self._connection.call(method, request))


def _batches(tasks: Any) -> Iterator[list[pb.NewTask]]:
    """Yields the messages of tasks, as many at a time as one call takes."""
    if not isinstance(tasks, Iterable):
        raise InvalidArgumentError(f"tasks must be a list of NewTask, got {shown(tasks)}")
    batch: list[pb.NewTask] = []
    num_bytes = 0
    for task in tasks:
        if not isinstance(task, NewTask):
            raise InvalidArgumentError(f"tasks must be a list of NewTask, got {shown(task)} in it")
        # An id, so that the call may be repeated.
        message = task._to_proto(uuid.uuid4().hex if task.id is None else task.id)
        if batch and (len(batch) == _MOST_TASKS or num_bytes + message.ByteSize() > _MOST_BYTES):
            yield batch
            batch, num_bytes = [], 0
        batch.append(message)
        num_bytes += message.ByteSize()
    if batch:
        yield batch


def _lease(task: Any) -> dict[str, str]:
    """Returns the fields that name a lease."""
    if not isinstance(task, Task):
        raise InvalidArgumentError(f"a task must be what lease_task has returned, got {shown(task)}")
    return {"task": task.name, "client_id": task.client_id, "lease_id": task.lease_id}


def _task_name(name: Any) -> str:
    name = checked_text("a task's name", name)
    return name if name.startswith("tasks/") else f"tasks/{name}"


# Renewals within the duration of a lease: one may be lost.
_RENEWALS = 3

_MOST_REASON_BYTES = 1024

# The server stops, is down, or is full: a later call may succeed.
_TEMPORARY = (UnavailableError, CancelledError, DeadlineExceededError, ResourceExhaustedError)


class Worker:
    """The loop of one worker. The arguments are those of ``Client.work``."""

    def __init__(
        self,
        client: Client,
        handler: Callable[[Task], Any],
        client_id: ClientId,
        labels: Iterable[str],
        lease_duration: Seconds,
        idle_timeout: Timeout,
        max_tasks: int | None,
        should_stop: Callable[[], bool],
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


def _cannot_pass(error: SparseaggError) -> bool:
    return isinstance(error, UnavailableError) and error.cannot_pass


def _reason(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}".encode()[:_MOST_REASON_BYTES]
    return text.decode(errors="ignore")
