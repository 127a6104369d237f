"""Tasks: both clients, and the worker."""

from __future__ import annotations

import asyncio

import pytest
import sparseagg as sa

SPEC = sa.RoundSpec([sa.TensorSpec("v", dtype="float32", num_rows=10)])
ONE = {"v": ([1], [1.0])}


@pytest.fixture
def tasks_server(start_server):
    """A server without tasks of other tests."""
    return start_server()


@pytest.fixture
def at(tasks_server):
    with sa.Client(tasks_server.address) as connected:
        yield connected


def test_a_task_is_created_leased_extended_and_completed(at):
    names = at.create_tasks([sa.NewTask(b"work", labels=["gpu"], priority=2, id="one"), sa.NewTask()], "me")
    assert names[0] == "tasks/one"
    assert at.lease_task("c", labels=["cpu"], timeout=0).name == names[1]
    task = at.lease_task("c", labels=["gpu"], lease_duration=20, timeout=0)
    assert (task.id, task.payload, task.state, task.attempts, task.owner) == ("one", b"work", "leased", 1, "me")
    assert at.extend_lease(task, 40).lease_remaining > 20
    assert at.complete_task(task, result=b"done").state == "completed"
    assert at.get_task("one").result == b"done"
    assert [each.name for each in at.list_tasks(state="completed")] == ["tasks/one"]
    assert at.cancel_tasks([names[1]], reason="why") == 1
    assert at.get_task(names[1]).state_reason == "why"
    assert at.lease_task("c", timeout=0.1) is None


def test_many_tasks_are_created_in_several_calls(at):
    names = at.create_tasks(sa.NewTask(b"x" * 2000) for _ in range(1500))
    assert len(set(names)) == 1500
    assert [task.name for task in at.list_tasks()] == names
    assert at.cancel_tasks(names) == 1500


def test_wrong_arguments_are_refused(at):
    with pytest.raises(sa.InvalidArgumentError, match="payload must be bytes, got 'text'"):
        at.create_tasks([sa.NewTask("text")])
    with pytest.raises(sa.InvalidArgumentError, match="labels must be a list of strings, got 'gpu'"):
        at.create_tasks([sa.NewTask(labels="gpu")])
    with pytest.raises(sa.InvalidArgumentError, match="tasks must be a list of NewTask"):
        at.create_tasks([b"work"])
    with pytest.raises(sa.InvalidArgumentError, match="state must be one of open"):
        list(at.list_tasks(state="done"))
    with pytest.raises(sa.errors.NotFoundError, match="no task 'none'"):
        at.get_task("none")
    with pytest.raises(sa.InvalidArgumentError, match="a task must be what lease_task has returned"):
        at.complete_task("tasks/none")


def test_worker_submits_to_the_round_and_completes(at):
    rnd = at.create_round(SPEC)
    at.create_tasks([sa.NewTask(round=rnd, labels=[f"client:{k}"]) for k in range(3)])
    for k in range(3):
        done = at.work(lambda _: sa.Outcome(ONE, result=b"r"), f"c{k}", labels=[f"client:{k}"], max_tasks=1)
        assert done == 1
    listed = list(at.list_tasks(in_round=rnd))
    assert [task.state for task in listed] == ["completed"] * 3
    assert {each.submission_id for each in rnd.submissions()} == {task.submission_id for task in listed}
    assert rnd.finish()["v"].values.tolist() == [3.0]


def test_tasks_of_a_stream_are_found_by_the_stream(at):
    stream = at.create_stream(SPEC, buffer=2, stream_id="nightly-tasks")
    at.create_tasks([sa.NewTask(round=stream, priority=-(2**31)), sa.NewTask(round=stream.name)])
    assert len(list(at.list_tasks(in_round=stream))) == 2
    assert at.cancel_tasks(in_round=stream.name) == 2
    stream.delete()


def test_worker_renews_its_lease_while_the_handler_works(at):
    at.create_tasks([sa.NewTask(id="long")])

    def handle(task):
        # Longer than the lease, which is renewed after a third of it: its end moves away.
        renewals = 0
        before = at.get_task("long").lease_remaining or 0.0
        while renewals < 6:
            now = at.get_task("long").lease_remaining or 0.0
            renewals += now > before
            before = now
        return b"done"

    assert at.work(handle, "c", lease_duration=0.6, max_tasks=1) == 1
    assert at.get_task("long").attempts == 1


def test_worker_gives_a_task_back_when_the_handler_raises(at):
    at.create_tasks([sa.NewTask(id="hard", max_attempts=2)])

    def fail(task):
        raise ValueError(f"attempt {task.attempts}")

    assert at.work(fail, "c", idle_timeout=0.1) == 0
    task = at.get_task("hard")
    assert (task.state, task.attempts) == ("failed", 2)
    assert "ValueError: attempt 2" in task.state_reason


def test_worker_without_an_update_for_the_round_fails_the_task(at):
    rnd = at.create_round(SPEC)
    (name,) = at.create_tasks([sa.NewTask(round=rnd)])
    assert at.work(lambda _: None, "c", idle_timeout=0.1) == 0
    assert at.get_task(name).state_reason == "nothing to submit"


def test_asyncio_client_and_worker(tasks_server):
    async def run():
        async with sa.aio.Client(tasks_server.address) as client:
            waiting = asyncio.create_task(client.lease_task("first", timeout=30))
            # A lease may end before its renewal comes, on a machine that is busy.
            await client.create_tasks([sa.NewTask(payload, max_attempts=1000) for payload in (b"1", b"2")])
            task = await waiting
            await client.fail_task(task, "not me", retry=True)

            async def handle(each):
                await asyncio.sleep(0.3)
                return each.payload

            done = await asyncio.gather(
                *(client.work(handle, f"w{i}", lease_duration=0.2, max_tasks=1) for i in range(2))
            )
            return done, sorted([task.result async for task in client.list_tasks(state="completed")])

    assert asyncio.run(run()) == ([1, 1], [b"1", b"2"])


def test_rounds_in_this_process_have_no_tasks():
    with sa.Client(":memory:") as client, pytest.raises(sa.errors.UnimplementedError, match="has no tasks"):
        client.create_tasks([sa.NewTask()])


# ---- tasks whose round is a stream: a lease carries the base version, and the worker submits with it ----


def test_a_worker_submits_to_a_stream(server, client):
    stream = client.create_stream(SPEC, buffer=2, stream_id="of-a-worker")
    client.create_tasks([sa.NewTask(id=f"worker-task-{i}", round=stream, labels=["w"]) for i in range(2)])
    done = client.work(lambda _: sa.Outcome(ONE), "w", labels=["w"], max_tasks=2)
    assert done == 2
    [version] = stream.watch()
    assert [each.submission_id for each in stream.round(version.version).submissions()] == [
        "worker-task-0",
        "worker-task-1",
    ]
    stream.delete()
