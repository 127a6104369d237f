#!/usr/bin/env python3
"""A load test of leases: many workers at one task store, a third of which abandon their lease in mid-task.

    tests/system/lease_load.py --server build/dev/service/sparseagg-server
    tests/system/lease_load.py --server … --open-tasks 100000 --waiting 10000
    tests/system/lease_load.py --server … --workers 64 --tasks 20000 --abandon-every 0 --work-ms 0    # the peak rate

Starts a server and creates tasks. Each worker is one coroutine with calls of its own; workers share some connections.
Every third worker (--abandon-every) leases a task, says nothing more and is gone, as if it were killed. The others
lease, work for some milliseconds (--work-ms) and complete, until no task is left. Checks that

- every task is completed, exactly once;
- an abandoned task is leased again within the lease's duration and --slack.

With --open-tasks and --waiting, as many tasks that nobody has the labels for, and as many calls that wait for tasks
which never come, are there meanwhile; their memory is measured before, and the processor time of a quiet while.

Prints a JSON object with the figures in the last line. Exits 1 if a check fails.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import dataclasses
import json
import os
import pathlib
import random
import sys
import time
from typing import Any

import grpc
import sparseagg as sa
from google.protobuf import duration_pb2
from sparseagg._internal.client.channels import make_stub
from sparseagg.v1 import tasks_pb2 as pb

CHANNELS = 16
QUIET_S = 10.0
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass
class Figures:
    """What the workers have seen."""

    completions: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    completed: int = 0
    abandoned: dict[str, float] = dataclasses.field(default_factory=dict)  # when the lease began, by task
    handed_on: list[float] = dataclasses.field(default_factory=list)  # seconds from that to the next lease
    leases: int = 0


def resident_bytes(server: sa.Server) -> int:
    """The resident memory of the server."""
    return int(pathlib.Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * PAGE_BYTES


def cpu_seconds(server: sa.Server) -> float:
    """The processor time of the server so far."""
    fields = pathlib.Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def seconds(length: float) -> duration_pb2.Duration:
    """A duration as a message."""
    message = duration_pb2.Duration()
    message.FromNanoseconds(int(length * 1e9))
    return message


async def create(stub: Any, number: int, label: str, prefix: str) -> float:
    """Creates tasks; returns the seconds that it took."""
    begin = time.monotonic()
    for first in range(0, number, 1000):
        tasks = [
            pb.NewTask(task_id=f"{prefix}-{i}", spec=pb.TaskSpec(payload=b"x" * 100, labels=[label], max_attempts=100))
            for i in range(first, min(first + 1000, number))
        ]
        await stub.CreateTasks(pb.CreateTasksRequest(tasks=tasks, owner="load"))
    return time.monotonic() - begin


async def work(stub: Any, number: int, options: argparse.Namespace, figures: Figures) -> None:
    """One worker, until no task is left or it abandons its first one."""
    rng = random.Random(options.seed * 1_000_003 + number)
    abandons = options.abandon_every and number % options.abandon_every == 0
    client = f"worker-{number}"
    while figures.completed < options.tasks:
        request = pb.LeaseTaskRequest(
            client_id=client,
            lease_id="lease",
            labels=["load"],
            lease_duration=seconds(options.lease),
            timeout=seconds(min(2.0, options.lease)),
        )
        answer = await stub.LeaseTask(request)
        if not answer.HasField("task"):
            continue
        task, now = answer.task, time.monotonic()
        figures.leases += 1
        if task.name in figures.abandoned:
            figures.handed_on.append(now - figures.abandoned.pop(task.name))
        if abandons:
            figures.abandoned[task.name] = now
            return
        if options.work_ms:
            await asyncio.sleep(rng.uniform(0, options.work_ms / 1000))
        await stub.CompleteTask(pb.CompleteTaskRequest(name=task.name, client_id=client, lease_id="lease"))
        figures.completions[task.name] += 1
        figures.completed += 1


async def wait_idle(stub: Any, number: int) -> None:
    """One call that waits for a task which never comes, again and again."""
    while True:
        await stub.LeaseTask(pb.LeaseTaskRequest(client_id=f"idle-{number}", labels=["idle"], timeout=seconds(60)))


async def run_load(server: sa.Server, options: argparse.Namespace) -> dict[str, Any]:
    """Runs all; returns the figures and the problems."""
    channels = [
        grpc.aio.insecure_channel(server.address, [("grpc.use_local_subchannel_pool", 1)]) for _ in range(CHANNELS)
    ]
    stubs = [make_stub(channel) for channel in channels]
    result: dict[str, Any] = {}
    await stubs[0].ListTasks(pb.ListTasksRequest())
    empty = resident_bytes(server)
    idle: list[asyncio.Task[None]] = []
    if options.open_tasks:
        took = await create(stubs[0], options.open_tasks, "nobody", "open")
        result["create_per_second"] = round(options.open_tasks / took)
        result["bytes_per_open_task"] = round((resident_bytes(server) - empty) / options.open_tasks)
    if options.waiting:
        before = resident_bytes(server)
        idle = [asyncio.create_task(wait_idle(stubs[i % CHANNELS], i)) for i in range(options.waiting)]
        await asyncio.sleep(QUIET_S)
        result["bytes_per_waiting_lease"] = round((resident_bytes(server) - before) / options.waiting)
        cpu, begin = cpu_seconds(server), time.monotonic()
        await asyncio.sleep(QUIET_S)
        result["idle_cpu_percent"] = round(100 * (cpu_seconds(server) - cpu) / (time.monotonic() - begin), 1)

    cpu = cpu_seconds(server)
    await create(stubs[0], options.tasks, "load", "load")
    figures, begin = Figures(), time.monotonic()
    workers = [work(stubs[i % CHANNELS], i, options, figures) for i in range(options.workers)]
    await asyncio.wait_for(asyncio.gather(*workers), options.timeout)
    elapsed = time.monotonic() - begin
    states: collections.Counter[int] = collections.Counter()
    token = ""
    while True:
        page = await stubs[0].ListTasks(pb.ListTasksRequest(page_size=1000, page_token=token))
        states.update(task.state for task in page.tasks if task.name.startswith("tasks/load-"))
        token = page.next_page_token
        if not token:
            break
    for each in idle:
        each.cancel()
    for channel in channels:
        await channel.close()
    problems = []
    if states != {pb.TASK_STATE_COMPLETED: options.tasks}:
        problems.append(f"the states of the tasks are {dict(states)}")
    if len(figures.completions) != options.tasks or any(n != 1 for n in figures.completions.values()):
        problems.append(f"{len(figures.completions)} tasks were completed {figures.completed} times")
    latest = max(figures.handed_on, default=0.0)
    if latest > options.lease + options.slack:
        problems.append(f"an abandoned task was leased again after {latest:.3f} s, the lease lasted {options.lease} s")
    return {
        **result,
        "workers": options.workers,
        "abandoned": len(figures.handed_on) + len(figures.abandoned),
        "tasks": options.tasks,
        "leases": figures.leases,
        "seconds": round(elapsed, 2),
        "tasks_per_second": round(options.tasks / elapsed),
        "server_cpu_us_per_task": round(1e6 * (cpu_seconds(server) - cpu) / options.tasks),
        "handed_on_median_s": round(sorted(figures.handed_on)[len(figures.handed_on) // 2], 3) if latest else None,
        "handed_on_latest_s": round(latest, 3),
        "lease_s": options.lease,
        "problems": problems,
    }


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True, help="the server's binary")
    parser.add_argument("--workers", type=int, default=2000)
    parser.add_argument("--tasks", type=int, default=6000)
    parser.add_argument("--lease", type=float, default=5.0, help="duration of a lease in seconds (%(default)s)")
    parser.add_argument(
        "--slack",
        type=float,
        default=1.0,
        help="seconds that may pass between the end of an abandoned lease and the next lease of its task (%(default)s)",
    )
    parser.add_argument("--abandon-every", type=int, default=3, help="of so many workers one abandons; 0: none does")
    parser.add_argument("--work-ms", type=float, default=20.0, help="longest work at a task (%(default)s)")
    parser.add_argument("--open-tasks", type=int, default=0, help="open tasks that nobody may have")
    parser.add_argument("--waiting", type=int, default=0, help="calls that wait for nothing")
    parser.add_argument("--timeout", type=float, default=300.0, help="of the load test in seconds (%(default)s)")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    parser.add_argument("flags", nargs="*", help="flags of the server, behind --")
    options = parser.parse_args()
    print(f"lease_load: seed {options.seed}", flush=True)
    with sa.Server(program=options.server, options=["--log-level", "error", *options.flags]) as server:
        figures = asyncio.run(run_load(server, options))
    print(json.dumps(figures))
    return 1 if figures["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
