"""A short run of crash_cycles.py; ``make test PARTS=crash`` has the long one."""

from __future__ import annotations

import asyncio
import collections
import json
import subprocess
import sys

import sparseagg as sa
from real_server import REPOSITORY, START_TIMEOUT_S, server_binary

SCRIPT = REPOSITORY / "tests/system/crash_cycles.py"
CYCLES = 32


def test_killed_server_loses_nothing_acknowledged(tmp_path):
    command = [sys.executable, str(SCRIPT), "--cycles", str(CYCLES), "--folder", str(tmp_path)]
    run = subprocess.run(
        [*command, "--server", server_binary()], capture_output=True, text=True, timeout=3 * START_TIMEOUT_S
    )
    assert run.returncode == 0, run.stdout + run.stderr
    figures = json.loads(run.stdout.splitlines()[-1])
    assert figures["cycles"] == CYCLES
    assert figures["kills"] >= CYCLES // 4
    assert figures["sets"] == figures["hashes"] == 1
    assert figures["tasks_completed"] >= 15 * (CYCLES // 4)
    assert figures["versions"] >= CYCLES // 4
    assert figures["model_versions"] == 12 * (CYCLES // 4)
    assert not list(tmp_path.iterdir())


WORKERS, TASKS = 90, 150


async def leased_and_abandoned(address: str) -> tuple[collections.Counter[str], list[sa.Task]]:
    """Every third worker leases a task, says nothing more and is gone; the others go on until all are completed."""
    completions: collections.Counter[str] = collections.Counter()
    async with sa.aio.Client(address) as client:
        await client.create_tasks([sa.NewTask(b"x", labels=["load"], max_attempts=100) for _ in range(TASKS)])

        async def work(number: int) -> None:
            while completions.total() < TASKS:
                task = await client.lease_task(f"worker-{number}", labels=["load"], lease_duration=1, timeout=1)
                if task is not None and number % 3 == 0:
                    return
                if task is not None:
                    await client.complete_task(task)
                    completions[task.name] += 1

        await asyncio.gather(*(work(number) for number in range(WORKERS)))
        return completions, [task async for task in client.list_tasks()]


def test_every_task_is_completed_once_though_a_third_of_the_workers_abandon_theirs(start_server):
    completions, tasks = asyncio.run(leased_and_abandoned(start_server().address))
    assert set(completions.values()) == {1}
    assert [task.state for task in tasks] == ["completed"] * TASKS
    assert sum(task.attempts > 1 for task in tasks) == WORKERS // 3
