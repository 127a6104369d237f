"""Bounds on submissions hold alike at every address."""

from __future__ import annotations

import sparseagg as sa
from every_client import one, refusal

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
