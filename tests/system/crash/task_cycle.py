"""A cycle of the crash test that is a batch of tasks."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import random
import threading
import time
from collections.abc import Callable

import numpy as np
import sparseagg as sa

from crash.cycle import Cycle
from crash.fail_points import is_at_restart
from crash.failure import Failure
from crash.server import Server
from crash.updates import SPEC

WORKERS = 4
TASKS = 24
LEASE_S = 0.2
NOBODY = "nobody"  # a label that no worker has
# What becomes of a task, by its payload.
PLAIN, IN_ROUND, FAILS, SHORT, CANCELLED = b"plain", b"round", b"fails", b"short", b"cancelled"
KINDS = [PLAIN, IN_ROUND, PLAIN, IN_ROUND, FAILS, PLAIN, SHORT, CANCELLED]


@dataclasses.dataclass(frozen=True)
class Ending:
    """The end of a task, as the server has acknowledged it."""

    state: str
    client_id: str = ""
    submission_id: str = ""
    result: bytes = b""

    @classmethod
    def of(cls, task: sa.Task) -> Ending:
        """That of a task as the server has it."""
        client = task.client_id if task.state == "completed" else ""
        return cls(task.state, client, task.submission_id, task.result)


class TaskCycle(Cycle):
    """Tasks of a coordinator, from their creation to their end by workers.

    Workers complete, fail, give back, extend and abandon leases, and complete tasks after their lease has expired, when
    another worker may have the task.
    """

    def __init__(self, server: Server, number: int, rng: random.Random, point: str) -> None:
        super().__init__(server, rng, point, is_at_restart(point))
        self._id = f"tasks-{number}"
        self._seed = rng.getrandbits(32)
        self._lock = threading.Lock()
        self._created: dict[str, bytes] = {}  # acknowledged; the payload, by id
        self._endings: collections.defaultdict[str, list[Ending]] = collections.defaultdict(list)  # acknowledged
        self._is_created = False
        self._open: set[str] = set()  # that are to end yet
        self._errors: list[Exception] = []

    def run(self) -> int:
        """Returns the number of tasks that are completed."""
        self.start()
        threads = [threading.Thread(target=self._run, args=(self._coordinate,), daemon=True)]
        threads += [threading.Thread(target=self._run, args=(self._work, i), daemon=True) for i in range(WORKERS)]
        for thread in threads:
            thread.start()
        self.disturb(threads)
        for thread in threads:
            thread.join()
        if self._errors:
            raise Failure(f"a call failed: {self._errors[0]!r}") from self._errors[0]
        self.server.kill()
        self.restart()
        with self.disturbed(), self.connected() as client:
            tasks = {task.id: task for task in client.list_tasks() if task.id.startswith(f"{self._id}-")}
            rnd = client.get_round(self._id)
            submitted = {each.client_id for each in rnd.submissions()}
            rnd.delete()
        return self._check(tasks, submitted)

    def _run(self, function: Callable[..., None], *arguments: int) -> None:
        try:
            function(*arguments)
        except Exception as error:
            with self._lock:
                self._errors.append(error)

    def _coordinate(self) -> None:
        """Creates the tasks in bulk, and again as a coordinator does that was started again, and cancels some."""
        with self.connected() as client:
            client.create_round(SPEC, round_id=self._id)
            for begin in range(0, TASKS, len(KINDS)):
                new = [self._new_task(begin + i, kind) for i, kind in enumerate(KINDS)]
                with self._lock:
                    self._open.update(f"{task.id}" for task in new)
                client.create_tasks(new)
                client.create_tasks([task for task in new if task.payload != SHORT])  # those may be deleted by now
                self._created.update({f"{task.id}": task.payload for task in new})
            for name, kind in list(self._created.items()):
                if kind != CANCELLED:
                    continue
                client.cancel_tasks([name])
                self._end(name, Ending("cancelled"))
        self._is_created = True

    def _new_task(self, number: int, kind: bytes) -> sa.NewTask:
        return sa.NewTask(
            kind,
            id=f"{self._id}-{number}",
            labels=[NOBODY if kind == CANCELLED else self._id],
            round=self._id if kind == IN_ROUND else None,
            ttl=0.05 if kind == SHORT else None,
            max_attempts=1000,
        )

    def _end(self, task_id: str, ending: Ending | None) -> None:
        """``ending`` None: the task has ended by another call."""
        with self._lock:
            if ending is not None:
                self._endings[task_id].append(ending)
            self._open.discard(task_id)

    def _work(self, number: int) -> None:
        rng = random.Random(self._seed + number)
        turn = 0
        with self.connected() as client:
            while self._open or not self._is_created:
                if self._errors:
                    return
                # A client has one submission in a round.
                worker = f"worker-{number}-{turn}"
                turn += 1
                task = None
                with contextlib.suppress(sa.errors.DeadlineExceededError):  # the server starts again
                    task = client.lease_task(
                        worker, labels=[self._id], lease_duration=LEASE_S, timeout=0.1, lease_id=f"lease-{turn}"
                    )
                if task is not None:
                    self._handle(client, task, rng)

    def _handle(self, client: sa.Client, task: sa.Task, rng: random.Random) -> None:
        conduct = rng.choice(["complete"] * 4 + ["abandon", "give back", "extend", "be late"])
        try:
            if conduct == "abandon":
                return None
            if task.payload == FAILS:
                client.fail_task(task, "as asked", retry=False)
                return self._end(task.id, Ending("failed"))
            if conduct == "give back":
                client.fail_task(task, "another try")
                return None
            if conduct == "extend":
                client.extend_lease(task, LEASE_S)
            if conduct == "be late":
                time.sleep(1.2 * LEASE_S)
            result = f"{task.client_id}/{task.lease_id}".encode()
            submission = self._submit(client, task) if task.round else ""
            client.complete_task(task, submission, result)
        except sa.errors.FailedPreconditionError:  # another worker has the task, or has ended it
            self._end_if_ended(client, task.id)
        except sa.errors.NotFoundError:  # ended by another worker, and deleted
            if task.payload != SHORT:
                raise
            self._end(task.id, None)
        else:
            self._end(task.id, Ending("completed", task.client_id, submission, result))

    def _submit(self, client: sa.Client, task: sa.Task) -> str:
        update = {"v": (np.array([1]), np.ones((1, 3), np.float32))}
        client.get_round(self._id).submit(task.client_id, update, weight=1.0, submission_id=task.id)
        return task.id

    def _end_if_ended(self, client: sa.Client, task_id: str) -> None:
        with contextlib.suppress(sa.errors.NotFoundError):
            if not client.get_task(task_id).ended:
                return
        self._end(task_id, None)

    def _check(self, tasks: dict[str, sa.Task], submitted: set[str]) -> int:
        for task_id, kind in self._created.items():
            endings = self._endings[task_id]
            # One that was deleted is created again by a call whose answer was lost.
            if len(endings) > 1 and kind != SHORT:
                raise Failure(f"{task_id} was ended {len(endings)} times: {endings}")
            task = tasks.get(task_id)
            if task is None:
                if kind != SHORT:
                    raise Failure(f"acknowledged, but lost: {task_id}")
                continue
            if not endings:
                raise Failure(f"{task_id} is {task.state}, which nobody was told")
            if Ending.of(task) != endings[-1]:
                raise Failure(f"{task_id} ended as {endings[-1]}, but is {Ending.of(task)} after the restart")
            if task.round and task.state == "completed" and task.client_id not in submitted:
                raise Failure(f"{task_id} is completed, but the submission of {task.client_id} is lost")
        return sum(ending.state == "completed" for endings in self._endings.values() for ending in endings)
