"""Tasks whose round is a stream: a lease carries the base version, and the worker submits with it."""

from __future__ import annotations

import numpy as np
import pytest
import sparseagg as sa

SPEC = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=10)], op="sum")
UPDATE = {"v": (np.array([1, 2], np.uint32), np.ones(2, np.float32))}


def test_leases_carry_the_latest_version(client):
    stream = client.stream(SPEC, buffer=1, stream_id="with-tasks")
    client.create_tasks([sa.NewTask(id=f"stream-task-{i}", round=stream) for i in range(2)])
    first = client.lease_task("w", lease_id="1", timeout=60)
    assert (first.round, first.base_version) == ("rounds/with-tasks", 0)
    with pytest.raises(sa.errors.FailedPreconditionError, match="no committed submission"):
        client.complete_task(first, "x")
    stream.submit("w", UPDATE, base_version=first.base_version, submission_id="x")
    client.complete_task(first, "x")
    stream.watch()
    second = client.lease_task("w", lease_id="2", timeout=60)
    assert second.base_version == 1
    client.fail_task(second, "no", retry=False)
    stream.delete()


def test_a_worker_submits_to_a_stream(server, client):
    stream = client.stream(SPEC, buffer=2, stream_id="of-a-worker")
    client.create_tasks([sa.NewTask(id=f"worker-task-{i}", round=stream, labels=["w"]) for i in range(2)])
    done = sa.worker(client, lambda _: sa.Outcome(UPDATE), "w", labels=["w"], max_tasks=2)
    assert done == 2
    [version] = stream.watch()
    assert [each.submission_id for each in stream.round(version.version).submissions()] == [
        "worker-task-0",
        "worker-task-1",
    ]
    stream.delete()
