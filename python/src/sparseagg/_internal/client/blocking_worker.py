"""``sparseagg.worker``."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sparseagg._internal.base.arguments import Timeout
from sparseagg._internal.base.durations import Seconds
from sparseagg._internal.client.async_worker import Worker
from sparseagg._internal.client.blocking_client import Client
from sparseagg._internal.client.transport import run
from sparseagg._internal.results.tasks import Outcome, Task
from sparseagg._internal.updates.contributors import ClientId

__all__ = ["worker"]


def worker(
    client: Client,
    handler: Callable[[Task], Outcome | bytes | None],
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

        sparseagg.worker(client, train, "site-7", labels=["gpu"])

    While the handler works, the lease is renewed from another thread, three times within ``lease_duration``. The worker
    may be started before the server, and outlasts restarts of the server. If the worker is killed, its lease expires,
    and the task is offered again. An exception of the handler gives the task back, with the exception as the reason. A
    task with a round for which the handler returns no update fails for good.

    The submission's id is the task's, so that a task that the same client begins again counts once. A client has one
    submission in a round, so that it should get one task of a round: a label for each client, such as "client:site-7",
    addresses tasks.

    Args:
        client: whose server has the tasks.
        handler: a function of a ``Task``. It returns an ``Outcome``, the bytes of a result, or None.
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
    return run(
        Worker(
            client._inner,
            handler,
            client_id,
            labels=labels,
            lease_duration=lease_duration,
            idle_timeout=idle_timeout,
            max_tasks=max_tasks,
            should_stop=should_stop,
        ).run()
    )
