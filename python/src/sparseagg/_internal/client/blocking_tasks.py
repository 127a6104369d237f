"""The calls of ``sparseagg.Client`` about tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from sparseagg._internal.base.arguments import Timeout
from sparseagg._internal.base.durations import Seconds
from sparseagg._internal.base.renamed import ROUND, renamed
from sparseagg._internal.client.async_tasks import TaskCalls
from sparseagg._internal.client.transport import run
from sparseagg._internal.results.tasks import NewTask, Task
from sparseagg._internal.updates.contributors import ClientId

__all__ = ["BlockingTaskCalls"]


@renamed(ROUND)
class BlockingTaskCalls:
    """A part of ``sparseagg.Client``."""

    @property
    def _tasks(self) -> TaskCalls:
        """The operations, over the transport that blocks."""
        raise NotImplementedError

    def create_tasks(self, tasks: Iterable[NewTask], owner: str = "") -> list[str]:
        """Creates tasks and returns their names.

        Args:
            tasks: the tasks. A task whose id, content and owner are those of an existing one stays as it is. Up to 1000
                tasks and 1 MiB are created together or not at all; of more, the first may exist when an error comes.
            owner: owners of tasks with the same priority take turns; "": the name of the credential.

        Raises:
            InvalidArgumentError: a task is wrong; the message says which one.
            AlreadyExistsError: an id is that of another task.
            FailedPreconditionError: the round of a task is not open.
            ResourceExhaustedError: the server has too many tasks, or a payload is too large.
        """
        return run(self._tasks.create_tasks(tasks, owner))

    def lease_task(
        self,
        client_id: ClientId,
        *,
        labels: Iterable[str] = (),
        lease_duration: Seconds = 60.0,
        timeout: Timeout = 30.0,
        lease_id: str | None = None,
    ) -> Task | None:
        """Leases a task, or returns None if none comes within ``timeout``. ``sparseagg.worker`` does all that follows.

        Args:
            client_id: the worker, under whose id it submits.
            labels: what the worker has.
            lease_duration: seconds until the lease expires, unless ``extend_lease`` renews it.
            timeout: how long to wait for a task, in seconds, retries included; None: for ever.
            lease_id: names the lease: with the id of a lease that the client has, the answer is that task. None: a
                random id.

        Raises:
            TimeoutError: (``DeadlineExceededError``) the server has not answered within ``timeout`` and a few seconds.
        """
        return run(
            self._tasks.lease_task(
                client_id, labels=labels, lease_duration=lease_duration, timeout=timeout, lease_id=lease_id
            )
        )

    def extend_lease(self, task: Task, lease_duration: Seconds = 60.0) -> Task:
        """Renews the lease of a task for ``lease_duration`` from now.

        Raises:
            FailedPreconditionError: the task has ended, or the lease has passed on to another worker.
        """
        return run(self._tasks.extend_lease(task, lease_duration))

    def complete_task(self, task: Task, submission_id: str = "", result: bytes = b"") -> Task:
        """Completes a leased task.

        Args:
            task: of ``lease_task``.
            submission_id: of the submission in the task's round, if the task has one.
            result: small, for the coordinator.

        Raises:
            FailedPreconditionError: the task has ended, or the round has no such submission.
        """
        return run(self._tasks.complete_task(task, submission_id, result))

    def fail_task(self, task: Task, reason: str = "", *, retry: bool = True) -> Task:
        """Gives a leased task back: to be offered again while it has attempts left, or else to be failed.

        Raises:
            FailedPreconditionError: the task has ended, or the lease has passed on to another worker.
        """
        return run(self._tasks.fail_task(task, reason, retry=retry))

    def get_task(self, name: str) -> Task:
        """Returns a task by its id or its name ("tasks/{id}"); ``NotFoundError`` if the server has none."""
        return run(self._tasks.get_task(name))

    def list_tasks(self, *, state: str | None = None, in_round: Any = None) -> Iterator[Task]:
        """Yields tasks, oldest first, without their payloads.

        Args:
            state: "open", "leased", "completed", "failed" or "cancelled"; None: all.
            in_round: only tasks of this round, by its id, its name or as ``Round``.
        """
        token: str | None = ""
        while token is not None:
            tasks, token = run(self._tasks._page_of_tasks(state, in_round, token))
            yield from tasks

    def cancel_tasks(self, names: Iterable[str] = (), *, in_round: Any = None, reason: str = "") -> int:
        """Cancels tasks by name, or all of a round; returns how many had not ended.

        Raises:
            NotFoundError: a name is of no task. Of more than 1000 names, the first may be cancelled then.
        """
        return run(self._tasks.cancel_tasks(names, in_round=in_round, reason=reason))
