"""Rounds live and end alike at every address."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest
import sparseagg as sa
from every_client import ONE, PATIENCE_S, UPDATE, one, refusal


def test_create_round_again_is_the_same_round_or_refused(any_client):
    first = any_client.create_round(ONE)
    assert re.fullmatch(r"rounds/[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", first.name)
    assert any_client.create_round(ONE).name != first.name
    round_id = first.name.removeprefix("rounds/")
    first.submit("a", UPDATE)
    again = any_client.create_round(one(), round_id)
    assert (again.name, again.info.num_submissions) == (first.name, 1)
    assert any_client.get_round(first.name).info.create_time == first.info.create_time
    expected = "AlreadyExistsError", "round 'ID' exists already, with another spec"
    assert refusal(lambda: any_client.create_round(one("int32"), round_id)) == expected


# The last ones would be others, or nothing, in a URL, a terminal or a shell.
@pytest.mark.parametrize(
    "bad", ["a b", "x" * 129, "x" * 257, "ä", ".", "..", ".a", "-a", "a/b", "\x1b[2J", "a\n", "\x9b"]
)
def test_round_id_that_urls_and_shells_cannot_carry_is_refused(any_client, bad):
    shown = f"'{bad}'" if bad.isprintable() and len(bad) <= 256 else f"of {len(bad.encode())} bytes"
    text = f"round_id {shown} is not 1 to 128 of A-Z a-z 0-9 . _ - that begin with a letter, a digit or _"
    assert refusal(lambda: any_client.create_round(ONE, bad)) == ("InvalidArgumentError", text)
    assert refusal(lambda: any_client.get_round(bad)) == ("InvalidArgumentError", text)


def test_round_ids_that_urls_and_shells_carry_are_taken(any_client):
    for good in ("_", "0", "a.", "a..b", "A-z.0_9", "x" * 128):
        assert any_client.create_round(ONE, good).name == f"rounds/{good}"
        assert any_client.get_round(good).name == f"rounds/{good}"
        any_client.get_round(good).delete()


def test_rounds_are_listed_oldest_first_and_deleted(any_client):
    rounds = [any_client.create_round(ONE) for _ in range(130)]  # more than a page
    names = {each.name for each in rounds}
    assert [each.name for each in any_client.list_rounds() if each.name in names] == [each.name for each in rounds]
    rounds[1].delete()
    left = [each.name for each in (rounds[0], *rounds[2:])]
    assert [each.name for each in any_client.list_rounds() if each.name in names] == left
    gone = rounds[1]
    calls = (gone.refresh, gone.delete, gone.start_merge, gone.wait, gone.result, gone.finish, gone.cancel)
    for call in (*calls, lambda: gone.submit("a", UPDATE), lambda: any_client.get_round(gone.name)):
        assert refusal(call) == ("NotFoundError", "no round 'ID'")


def test_round_that_is_full_closes_itself(any_client):
    opened = any_client.create_round(one(max_submissions=2))
    opened.submit("a", UPDATE)
    opened.submit("b", UPDATE)
    assert opened.wait(PATIENCE_S).state == "done"
    text = "rounds/ID: the round is DONE: there are max_submissions 2 submissions already"
    assert refusal(lambda: opened.submit("c", UPDATE)) == ("RoundClosedError", text)
    assert refusal(lambda: opened.cancel("late")) == ("FailedPreconditionError", "the round is DONE")
    assert opened.result()["v"].values.tolist() == [2.0, 4.0]
    found = refusal(lambda: any_client.aggregate([UPDATE] * 3, one(max_submissions=2)))
    text = "client '00000000000000000002': there are max_submissions 2 submissions already"
    assert found == ("FailedPreconditionError", text)


def test_round_at_its_deadline_closes_itself(any_client):
    opened = any_client.create_round(one(deadline=0.2))
    opened.submit("a", UPDATE)
    assert opened.wait(PATIENCE_S).state == "done"
    assert (opened.info.close_time - opened.info.create_time).total_seconds() >= 0.19
    assert opened.result()["v"].values.tolist() == [1.0, 2.0]
    assert refusal(lambda: opened.submit("b", UPDATE)) == ("RoundClosedError", "rounds/ID: the round is DONE")


def test_round_that_has_ended_is_removed_after_its_time(any_client):
    opened = any_client.create_round(one(result_ttl=0.2))
    opened.start_merge()
    info = opened.wait()
    assert (info.expire_time - info.end_time).total_seconds() == pytest.approx(0.2)
    give_up = time.monotonic() + PATIENCE_S
    while opened.name in [each.name for each in any_client.list_rounds()]:
        assert time.monotonic() < give_up
    assert refusal(opened.refresh) == ("NotFoundError", "no round 'ID'")


def test_round_below_its_minimum_fails(any_client):
    opened = any_client.create_round(one(min_submissions=2))
    opened.submit("a", UPDATE)
    reason = "FAILED_PRECONDITION: closed with 1 submissions, below min_submissions 2"
    assert opened.start_merge().state in ("finalizing", "failed")
    for call in (opened.finish, opened.result):
        assert refusal(call) == ("RoundFailedError", f"rounds/ID failed: {reason}")
    assert opened.wait().state == "failed"
    assert opened.info.state_reason == reason
    assert refusal(lambda: opened.submit("b", UPDATE)) == (
        "RoundClosedError",
        f"rounds/ID: the round is FAILED: {reason}",
    )
    assert refusal(opened.cancel) == ("FailedPreconditionError", f"the round is FAILED: {reason}")
    found = refusal(lambda: any_client.aggregate([UPDATE], one(min_submissions=2)))
    assert found == ("FailedPreconditionError", "closed with 1 submissions, below min_submissions 2")


def test_round_whose_merge_fails_says_why(any_client):
    updates = {"a": ([1], [2**62]), "b": ([1], [2**62])}
    opened = any_client.create_round(one("int64"))
    for client_id, update in updates.items():
        opened.submit(client_id, update)
    text = "tensor 'v', key 1: the sum overflows int64"
    assert refusal(opened.finish) == ("RoundFailedError", f"rounds/ID failed: OUT_OF_RANGE: {text}")
    assert refusal(lambda: any_client.aggregate(updates, one("int64"))) == ("OutOfRangeError", text)
    unweighted = any_client.create_round(one(op="mean", weighting="by_weight"))
    unweighted.submit("a", UPDATE, 0.0)
    text = "tensor 'v': the weights of all submissions add up to 0, so there is no mean"
    assert refusal(unweighted.finish) == ("RoundFailedError", f"rounds/ID failed: FAILED_PRECONDITION: {text}")


def test_round_that_is_cancelled_has_no_result(any_client):
    opened = any_client.create_round(ONE)
    opened.submit("a", UPDATE)
    text = "reason has 1026 bytes; up to 1024 are allowed"
    assert refusal(lambda: opened.cancel("ä" * 513)) == ("InvalidArgumentError", text)
    assert opened.cancel("enough").state == "cancelled"
    assert opened.cancel("twice").state_reason == "enough"
    assert opened.wait().state == "cancelled"
    assert opened.start_merge().state == "cancelled"
    for call in (opened.finish, opened.result):
        assert refusal(call) == ("RoundFailedError", "rounds/ID cancelled: enough")
    for client_id in ("a", "b"):
        expected = "RoundClosedError", "rounds/ID: the round is CANCELLED: enough"
        assert refusal(lambda client_id=client_id: opened.submit(client_id, UPDATE)) == expected
    assert any_client.create_round(ONE).cancel().state_reason == "no reason given"
    assert any_client.create_round(ONE).cancel("ä" * 512).state_reason == "ä" * 512


def test_round_that_is_open_has_no_result(any_client):
    opened = any_client.create_round(ONE)
    text = "rounds/ID is still open; finish() or start_merge() closes it"
    for call in (opened.wait, opened.result):
        assert refusal(lambda call=call: call(timeout=0.02)) == ("DeadlineExceededError", text)
    opened.finish()
    assert refusal(lambda: opened.submit("a", UPDATE)) == ("RoundClosedError", "rounds/ID: the round is DONE")
    assert len(opened.finish()["v"]) == 0


def test_round_info_tells_counts_times_and_results(any_client):
    spec = sa.RoundSpec(
        [sa.TensorSpec("v", "bfloat16", num_rows=10, row_width=2), sa.TensorSpec("w", "int32", num_rows=5)],
        result_layout="dense",
        deadline=1000,
    )
    opened = any_client.create_round(spec)
    assert opened.spec == opened.info.spec == sa.RoundSpec._from_proto(spec._to_proto())
    assert (opened.info.state, opened.info.close_time, opened.info.end_time) == ("open", None, None)
    opened.submit("a", {"v": ([1, 2], np.ones((2, 2))), "w": ([3], [7])})
    opened.submit("b", {"w": np.arange(5)})
    info = opened.refresh()
    assert (info.num_submissions, info.num_tuples, info.num_bytes) == (2, 8, 2 * (4 + 4) + (4 + 4) + 5 * 4)
    assert (info.num_refused, info.num_uploads, info.state_reason) == (0, 0, "")
    opened.start_merge()
    before, info = info, opened.wait()
    assert info.create_time == before.create_time <= info.close_time <= info.end_time
    assert info.timeline.open >= before.timeline.open > 0
    assert info.timeline.finish > 0
    assert (info.state, info.engine) == ("done", any_client.server_info().engine)
    shapes = [
        (each.name, each.num_keys, each.layout, each.dtype, each.row_width, each.num_rows) for each in info.results
    ]
    assert shapes == [("v", 10, "dense", "bfloat16", 2, 10), ("w", 5, "dense", "int64", 1, 5)]
    assert opened.result().info == info
    alone = any_client.aggregate([{"w": np.arange(5)}], spec).info
    assert (alone.name, alone.state, alone.num_submissions) == ("", "done", 1)


def test_server_info_describes_engine_and_encodings(any_client, client):
    mine, theirs = any_client.server_info(), client.server_info()
    for field in ("api_versions", "engine", "key_encodings", "value_encodings"):
        assert getattr(mine, field) == getattr(theirs, field), field
    # Rounds in this process have neither tasks nor certificates, and export no submissions.
    assert set(theirs.features) - set(mine.features) <= {
        "Tasks",
        "RoundSpec.certificate",
        "ExportSubmissions",
        "RoundSpec.cluster",
        "ExportPartial",
        "PutResultRange",
        "CreateBackup",
    }
    assert set(mine.features) <= set(theirs.features)
    assert mine.version
    assert mine.engine_description


def test_closed_client_says_so(connect, address):
    left = connect(address)
    opened = left.create_round(ONE)
    left.close()
    left.close()
    calls = [left.server_info, lambda: left.aggregate([UPDATE], ONE), lambda: left.create_round(ONE), left.list_rounds]
    calls += [lambda: left.get_round(opened.name), opened.start_merge, opened.result, opened.finish, opened.delete]
    for call in (*calls, *(lambda r=resumable: opened.submit("a", UPDATE, resumable=r) for resumable in (False, True))):
        assert refusal(lambda call=call: list(call())) == ("FailedPreconditionError", "this client is closed")


def test_a_round_like_an_update(any_client):
    update = {"w": ([7, 9], np.array([[1, 2], [3, 4]], np.float32))}
    rnd = any_client.create_round(like=(update, 1.0), op="mean")
    assert rnd.spec == sa.RoundSpec(
        [sa.TensorSpec("w", "float32", num_rows=0, row_width=2)], op="mean", weighting="by_weight"
    )
    rnd.submit("a", update, 1.0)
    rnd.submit("b", {"w": ([9], [[5, 8]])}, 3.0)
    result = rnd.finish()["w"]
    assert (result.keys.tolist(), result.values.tolist()) == ([7, 9], [[0.25, 0.5], [4.5, 7.0]])
    assert any_client.aggregate([update, update])["w"].values.tolist() == [[2, 4], [6, 8]]
