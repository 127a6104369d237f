"""The submissions of a round are listed, withdrawn and chosen alike at every address."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import sparseagg as sa
from every_client import ONE, SEED, SPECS, UPDATE, digest, one, refusal, updates_of


def test_submissions_are_listed_in_the_order_of_the_fold(any_client):
    opened = any_client.create_round(ONE)
    assert opened.submissions() == []
    for client_id in ("ö", 10, 9, "a"):
        opened.submit(client_id, UPDATE, submission_id=f"of {client_id}")
    opened.submit("a", UPDATE)  # again
    listed = opened.submissions()
    assert [each.client_id for each in listed] == ["10", "9", "a", "ö"]
    expected = sa.types.Submission(opened.name, "a", "of a", duplicate=False, num_tuples=2, num_bytes=16, weight=1.0)
    assert dataclasses.replace(listed[2], content_hash="") == expected
    assert opened.withdraw(9)
    opened.start_merge()
    assert [each.client_id for each in opened.submissions()] == ["10", "a", "ö"]
    ended = any_client.create_round(ONE)
    ended.submit("a", UPDATE)
    ended.cancel()
    assert ended.submissions() == []


def test_more_submissions_than_a_page_are_listed(any_client):
    opened = any_client.create_round(ONE)
    for number in range(1100):
        opened.submit(number, {})
    assert [each.client_id for each in opened.submissions()] == sorted(map(str, range(1100)))


def test_withdrawn_submission_has_never_been(any_client):
    opened = any_client.create_round(one(op="mean", weighting="by_weight", return_counts=True))
    for client_id, weight in (("a", 1.0), ("b", 3.0), ("c", 2.0)):
        opened.submit(client_id, ([len(client_id), 5], [weight, 1.0]), weight)
    assert opened.withdraw("b") is True
    assert opened.withdraw("b") is False
    assert opened.withdraw("nobody") is False
    assert (opened.refresh().num_submissions, opened.info.num_tuples, opened.info.num_bytes) == (2, 4, 32)
    opened.submit("b", ([7], [1.0]), 1.0)  # other content than before
    opened.withdraw("c")
    merged = opened.finish()["v"]
    assert (merged.keys.tolist(), merged.values.tolist()) == ([1, 5, 7], [0.5, 0.5, 0.5])
    assert merged.counts.tolist() == [1, 1, 1]


def test_round_closed_with_only_some_clients_has_their_bits(any_client, client):
    print(f"seed {SEED}")
    for name in ("float32 canonical", "float64 mean by weight", "binned sparse", "int32 sum"):
        spec, updates = SPECS[name], updates_of(SPECS[name])
        chosen = sorted(updates)[::2]
        expected = digest(client.aggregate({each: updates[each] for each in chosen}, spec))
        opened = any_client.create_round(spec)
        for client_id, (update, weight) in updates.items():
            opened.submit(client_id, update, weight)
        assert digest(opened.finish(only=[*chosen, chosen[0]])) == expected, name
        assert opened.info.num_submissions == len(chosen)
        assert digest(opened.finish(only=chosen)) == expected, "again"
        assert [each.client_id for each in opened.submissions()] == chosen


def test_close_with_only_what_cannot_be_changes_nothing(any_client):
    opened = any_client.create_round(one(min_submissions=2))
    for client_id in "abc":
        opened.submit(client_id, UPDATE)
    text = "client 'd' has no committed submission in the round"
    assert refusal(lambda: opened.finish(only=["a", "d"])) == ("FailedPreconditionError", text)
    assert (opened.refresh().state, opened.info.num_submissions) == ("open", 3)
    for only, text in (
        ([], "only has no client id; None is for all clients, and Round.cancel for a round of none"),
        ("ab", "only must be a list of client ids, or None for all clients, got 'ab'"),
        (5, "only must be a list of client ids, or None for all clients, got 5"),
        ([1.5], "a client id must be a string or an integer, got 1.5"),
    ):
        assert refusal(lambda only=only: opened.finish(only=only)) == ("InvalidArgumentError", text)
        assert refusal(lambda only=only: opened.start_merge(only=only)) == ("InvalidArgumentError", text)
    assert opened.start_merge(only=["a", "b"]).num_submissions == 2
    opened.wait()
    text = "the round is DONE and counts 2 submissions, not only the 1 of the list"
    assert refusal(lambda: opened.finish(only=["a"])) == ("FailedPreconditionError", text)
    text = "client 'c' has no committed submission in the round, which is closed"
    assert refusal(lambda: opened.finish(only=["a", "c"])) == ("FailedPreconditionError", text)
    assert opened.finish()["v"].values.tolist() == [2.0, 4.0]
    too_few = any_client.create_round(one(min_submissions=2))
    for client_id in "ab":
        too_few.submit(client_id, UPDATE)
    reason = "FAILED_PRECONDITION: closed with 1 submissions, below min_submissions 2"
    assert refusal(lambda: too_few.finish(only=["a"])) == ("RoundFailedError", f"rounds/ID failed: {reason}")


def test_withdrawal_after_the_close_is_too_late(any_client):
    opened = any_client.create_round(ONE)
    opened.submit("a", UPDATE)
    opened.start_merge()
    opened.wait()
    assert refusal(lambda: opened.withdraw("a")) == ("RoundClosedError", "rounds/ID: the round is DONE")
    with pytest.raises(sa.RoundClosedError) as caught:
        opened.submit("b", UPDATE)
    assert caught.value.state == "done"
    cancelled = any_client.create_round(ONE)
    cancelled.submit("a", UPDATE)
    cancelled.cancel("enough")
    assert refusal(lambda: cancelled.withdraw("a")) == ("RoundClosedError", "rounds/ID: the round is CANCELLED: enough")
    for call in (cancelled.start_merge, cancelled.finish):
        assert refusal(lambda call=call: call(only=["a"])) == ("RoundFailedError", "rounds/ID cancelled: enough")
    cancelled.delete()
    for call in (cancelled.submissions, lambda: cancelled.withdraw("a")):
        assert refusal(call) == ("NotFoundError", "no round 'ID'")


def test_submissions_that_were_merged_on_arrival_stay(any_client):
    spec = one("float32", 1 << 24, numerics="binned", max_submissions=10)
    opened = any_client.create_round(spec)
    for client_id in "ab":
        opened.submit(client_id, (np.arange(1 << 22, dtype=np.uint32), np.ones(1 << 22, np.float32)))
    found, text = refusal(lambda: opened.withdraw("a"))
    assert found == "FailedPreconditionError"
    expected = "tensor 'v': its submissions have been merged as they arrived, since their order does not matter"
    assert text.startswith(expected), text
    assert refusal(lambda: opened.finish(only=["a"])) == (found, text)
    assert opened.refresh().num_submissions == 2
    opened.start_merge(only=["a", "b"])
    assert opened.wait().state == "done"


# ---- a batch counts as its submissions would, one by one, at every address


def test_batch_refuses_one_client_and_takes_the_others(any_client):
    opened = any_client.create_round(one("float32", 10))
    opened.submit("taken", ([1], [5.0]))
    receipt = opened.submit_batch(["a", "bad", "taken"], {"v": ([0, 1, 2, 3], [1, 2, 3], [1.0, np.inf, 1.0])})
    assert receipt.num_submissions == 1
    assert {name: type(error).__name__ for name, error in receipt.refused.items()} == {
        "bad": "InvalidArgumentError",
        "taken": "AlreadyExistsError",
    }
    assert "inf" in str(receipt.refused["bad"])
    assert opened.finish()["v"].values.tolist() == [6.0]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((["a"], {"v": ([0, 1, 2], [1, 2], [1.0, 2.0])}), "offsets of 1 clients must be 2 integers"),
        ((["a"], {"v": ([0, 1], [1, 2], [1.0, 2.0])}), "must ascend from 0 to the number of keys, 2"),
        ((["a", "b"], {"v": ([0, 2, 1], [1], [1.0])}), "must ascend"),
        ((["a"], {"v": ([1], [1.0])}), r"must be \(offsets, keys, rows\)"),
        ((["a"], [1]), "must be a mapping from tensor names"),
        ((["a"], {"w": ([0, 1], [1], [1.0])}), "'w'"),
        ((["a\nb"], {"v": ([0, 1], [1], [1.0])}), "control character"),
        (([1.5], {"v": ([0, 1], [1], [1.0])}), "a client id must be a string or an integer"),
        ((["a"], {"v": ([0, 1], [1], [1.0])}, [1, 2]), "weights of 1 clients must be 1 numbers"),
    ],
)
def test_batch_that_does_not_fit_is_refused_before_it_is_sent(any_client, arguments, text):
    opened = any_client.create_round(one("float32", 10))
    with pytest.raises(sa.InvalidArgumentError, match=text):
        opened.submit_batch(*arguments)
    assert opened.refresh().num_submissions == 0


# ---- bounds on submissions hold alike at every address


THREE_FOUR = ([2, 1], [4.0, 3.0])  # of norm 5


def clipped(**bounds) -> sa.RoundSpec:
    return one(clip=sa.ClipSpec(**bounds))


def test_refused_submission_changes_nothing_and_may_come_again(any_client):
    opened = any_client.create_round(clipped(l2=4.0, on_clip="reject"))
    opened.submit("a", ([1], [1.0]))
    text = "client 'b': the L2 norm 5 of the submission is beyond clip.l2 4"
    assert refusal(lambda: opened.submit("b", THREE_FOUR)) == ("InvalidArgumentError", text)
    opened.submit("b", ([1, 2], [1.0, 2.0]))
    result = opened.finish()
    assert result["v"].values.tolist() == [2.0, 2.0]
    assert result.info.num_refused == 1
    assert result.info.clip == sa.types.ClipSummary(0, 0, 0, 0, (0,) * 16)


def test_refusals_name_value_and_number(any_client):
    opened = any_client.create_round(clipped(linf=3.5, on_clip="reject"))
    text = "client 'a': tensor 'v', key 2: value 4 is beyond clip.linf 3.5"
    assert refusal(lambda: opened.submit("a", THREE_FOUR)) == ("InvalidArgumentError", text)
    opened = any_client.create_round(clipped(max_keys=1, on_clip="reject"))
    text = "client 'a': tensor 'v': 2 keys are beyond clip.max_keys 1"
    assert refusal(lambda: opened.submit("a", THREE_FOUR)) == ("ResourceExhaustedError", text)


def test_withdrawn_submission_is_not_counted(any_client):
    opened = any_client.create_round(clipped(l2=2.5, max_keys=1))
    opened.submit("a", THREE_FOUR)
    opened.submit("b", ([7], [1.0]))
    counts = opened.refresh().clip
    assert (counts.num_clipped, counts.num_l2, counts.num_max_keys, counts.factors[0]) == (1, 1, 1, 1)
    assert opened.withdraw("a")
    assert opened.refresh().clip.num_clipped == 0
    assert opened.finish()["v"].keys.tolist() == [7]
