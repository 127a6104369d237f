"""The same calls get the same answers at every address: in memory, at a server of the client's own, at another server.

The texts are a server's, without the number of the chunk, which rounds in memory do not have.
"""

from __future__ import annotations

import asyncio
import re
import time

import numpy as np
import pytest
import sparseagg as sa
from every_client import SEED, SPECS, Settled, digest, merged, one, refusal, updates_of

PATIENCE_S = 60


@pytest.fixture(scope="module", params=["memory", "local", "address"])
def address(request, server) -> str:
    return {"memory": ":memory:", "local": ":local:", "address": server.address}[request.param]


@pytest.fixture(scope="module", params=["blocking", "asyncio"])
def connect(request):
    """Makes a client of either shell; those left are disconnected in the end."""
    loop = asyncio.new_event_loop()
    made: list[Settled] = []

    def make(*arguments, **options) -> Settled:
        shell = sa.Client if request.param == "blocking" else sa.aio.Client
        made.append(Settled(shell(*arguments, **options), loop))
        return made[-1]

    yield make
    for each in made:
        each.disconnect()
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


@pytest.fixture(scope="module")
def any_client(connect, address) -> Settled:
    return connect(address)


ONE = one()
UPDATE = ([1, 2], [1.0, 2.0])


@pytest.mark.parametrize("name", SPECS)
def test_result_has_the_same_bits_at_every_address(any_client, client, name):
    print(f"seed {SEED}")
    spec = SPECS[name]
    expected = digest(merged(client, spec))
    assert digest(merged(any_client, spec)) == expected
    assert digest(any_client.aggregate(updates_of(spec), spec)) == expected


@pytest.mark.parametrize("values", ["float16", "bfloat16", "int8_scaled", {"v": "float16"}])
def test_submitted_values_are_rounded_alike(any_client, client, values):
    print(f"seed {SEED}")
    expected = digest(merged(client, SPECS["float32 canonical"], values=values))
    assert expected != digest(merged(client, SPECS["float32 canonical"]))
    assert digest(merged(any_client, SPECS["float32 canonical"], values=values, encoding="plain")) == expected


def test_result_parts_and_rounded_values_are_alike(any_client, client):
    print(f"seed {SEED}")
    rng = np.random.default_rng(SEED)
    dense = sa.TensorSpec("d", "float32", 150_000, layout="dense")
    spec = sa.RoundSpec([sa.TensorSpec("v", "float64", 1 << 20, 2), dense], return_counts=True)
    keys = rng.permutation(1 << 17)
    rows = rng.standard_normal((len(keys), 2))  # some pages of a result
    rows[keys < 1000] *= 1e300  # the first page alone is beyond the ranges of narrower types
    dense_rows = rng.standard_normal(dense.dimension)
    dense_rows[7] = 1e38
    rounds = [at.create_round(spec) for at in (any_client, client)]
    for each in rounds:
        each.submit("a", {"v": (keys, rows), "d": dense_rows})
        each.end()
    for options in (
        {"tensors": ["d", "v"]},
        {"tensors": ["v"], "keys": (7, 20_000)},
        {"keys": (3, None), "encoding": "plain"},
        {"keys": (0, 0)},
        {"keys": (4, 1 << 64)},
        *({"values": values} for values in ("float32", "float16", "bfloat16", "int8_scaled")),
        {"values": "int8_scaled", "keys": (999, None)},
    ):
        mine, theirs = (each.result(**options) for each in rounds)
        assert list(mine) == list(theirs), options
        assert digest(mine) == digest(theirs), options


def test_submit_again_is_a_duplicate_or_refused(any_client):
    opened = any_client.create_round(one(weighting="by_weight", max_submissions=2))
    first = opened.submit("a", UPDATE, 1.0, submission_id="s")
    assert first == sa.Submission(opened.name, "a", "s", duplicate=False, num_tuples=2, num_bytes=16)
    for again in (UPDATE, {"v": (np.array([1, 2], np.uint64), np.array([1, 2], np.float16))}):
        assert opened.submit("a", again, 1.0) == sa.Submission(opened.name, "a", "s", True, 2, 16)
    for update, weight in ((([1, 2], [1.0, 3.0]), 1.0), (([1, 3], [1.0, 2.0]), 1.0), (UPDATE, 2.0)):
        found = refusal(lambda update=update, weight=weight: opened.submit("a", update, weight))
        assert found == ("AlreadyExists", "client 'a' has committed submission 's' with other content")
    opened.submit("b", UPDATE, 1.0)
    assert opened.wait(PATIENCE_S).state == "done"
    assert opened.submit("a", UPDATE, 1.0).duplicate  # a retry whose first answer was lost
    assert opened.result()["v"].values.tolist() == [2.0, 4.0]
    assert (opened.refresh().num_submissions, opened.info.num_refused) == (2, 3)


def test_submit_of_a_dense_array_again_as_keys_is_a_duplicate(any_client):
    opened = any_client.create_round(one(dimension=4))
    opened.submit("a", np.ones(4))
    assert opened.submit("a", ([0, 1, 2, 3], np.ones(4))).duplicate
    assert opened.submit("b", {}).num_tuples == 0
    assert opened.submit("b", {"v": ([], [])}).duplicate


def test_create_round_again_is_the_same_round_or_refused(any_client):
    first = any_client.create_round(ONE)
    assert re.fullmatch(r"rounds/[A-Za-z0-9._-]{1,128}", first.name)
    assert any_client.create_round(ONE).id != first.id
    first.submit("a", UPDATE)
    again = any_client.create_round(one(), first.id)
    assert (again.name, again.info.num_submissions) == (first.name, 1)
    assert any_client.get_round(first.name).info.create_time == first.info.create_time
    expected = "AlreadyExists", "round 'ID' exists already, with another spec"
    assert refusal(lambda: any_client.create_round(one("int32"), first.id)) == expected
    for bad in ("a b", "x" * 129, "ä"):
        text = f"round_id '{bad}' is not 1 to 128 of A-Z a-z 0-9 . _ -"
        assert refusal(lambda bad=bad: any_client.create_round(ONE, bad)) == ("InvalidArgument", text)


def test_rounds_are_listed_oldest_first_and_deleted(any_client):
    rounds = [any_client.create_round(ONE) for _ in range(3)]
    names = {each.name for each in rounds}
    assert [each.name for each in any_client.list_rounds() if each.name in names] == [each.name for each in rounds]
    rounds[1].delete()
    left = [rounds[0].name, rounds[2].name]
    assert [each.name for each in any_client.list_rounds() if each.name in names] == left
    gone = rounds[1]
    calls = (gone.refresh, gone.delete, gone.close, gone.wait, gone.result, gone.cancel)
    for call in (*calls, lambda: gone.submit("a", UPDATE), lambda: any_client.get_round(gone.id)):
        assert refusal(call) == ("NotFound", "no round 'ID'")
    with pytest.raises(sa.InvalidArgument, match=r"^'rounds/no such' is no"):
        any_client.get_round("no such")


BAD_SPECS = {
    "no tensors": (sa.RoundSpec([]), "the spec has no tensors"),
    "two of one name": (sa.RoundSpec([sa.TensorSpec("v", "int32", 1)] * 2), "tensor 'v' is given twice"),
    "modular": (one("uint32"), "tensor 'v': dtype uint32 needs modular = true: its sums wrap"),
    "fixed point": (one(numerics="fixed_point"), "tensor 'v': fixed_point needs value_bound"),
    "bound": (one(value_bound=1.0), "value_bound is for fixed_point numerics; canonical sums have none"),
    "minimum": (one(min_submissions=3, max_submissions=2), "min_submissions 3 is beyond max_submissions 2"),
    "deadline": (one(deadline=0), "deadline is not positive"),
    "result_ttl": (one(result_ttl=0), "result_ttl is not positive"),
}


@pytest.mark.parametrize("name", BAD_SPECS)
def test_bad_spec_is_refused_in_the_same_words(any_client, name):
    spec, text = BAD_SPECS[name]
    assert refusal(lambda: any_client.create_round(spec)) == ("InvalidArgument", text)
    assert refusal(lambda: any_client.aggregate([], spec)) == ("InvalidArgument", text)


WEIGHTED = one(weighting="by_weight")
BOUNDED = one(numerics="fixed_point", value_bound=1.0, max_submissions=2)
DENSE = one(layout="dense")
LIMIT = "the submission has {}, (beyond|more than) {}"
BAD_UPDATES = {
    "key": (ONE, ([1, 10], [1.0, 1.0]), None, "InvalidArgument", "position 1: key 10 is not below the dimension 10"),
    "NaN": (ONE, ([1], [np.nan]), None, "InvalidArgument", "position 0: value nan is not finite"),
    "no values": (ONE, ([1], None), None, "InvalidArgument", "1 keys without values"),
    "no weight": (WEIGHTED, UPDATE, None, "InvalidArgument", "the weight is missing"),
    "weight": (WEIGHTED, UPDATE, -1.0, "InvalidArgument", "weight -1 is negative"),
    "bound": (BOUNDED, ([1], [2.0]), None, "InvalidArgument", "key 1: term 2 is beyond value_bound 1"),
    "dense": (DENSE, {}, None, "InvalidArgument", "layout dense needs all 10 rows, not 0"),
    "overflow": (one("int64"), ([1, 1], [2**62] * 2), None, "OutOfRange", "key 1: the sum of this submission's own"),
    "tuples": (
        one(max_tuples_per_submission=1), UPDATE, None,
        "ResourceExhausted", LIMIT.format(2, "max_tuples_per_submission 1"),
    ),
    "bytes": (
        one(max_bytes_per_submission=15), UPDATE, None,
        "ResourceExhausted", LIMIT.format(16, "max_bytes_per_submission 15"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_UPDATES)
def test_bad_update_is_refused_in_the_same_words_and_the_round_unharmed(any_client, name):
    spec, update, weight, error, text = BAD_UPDATES[name]
    opened = any_client.create_round(spec)
    found, said = refusal(lambda: opened.submit("it's", update, weight))
    assert found == error
    # A submission's limits concern no tensor; a server names the one at which it has reached them.
    assert re.match(f"(tensor 'v'[:,] )?{text}", said), said
    assert (opened.refresh().state, opened.info.num_submissions, opened.info.num_refused) == ("open", 0, 1)
    found, said = refusal(lambda: any_client.aggregate({"it's": (update, weight)}, spec))
    assert found == error
    assert re.match(f"client 'it's': (tensor 'v'[:,] )?{text}", said), said


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"client_id": ""}, "client_id has 0 bytes; 1 to 256 are allowed"),
        ({"client_id": "ä" * 129}, "client_id has 258 bytes; 1 to 256 are allowed"),
        ({"submission_id": "x" * 257}, "submission_id has 257 bytes; 1 to 256 are allowed"),
        ({"encoding": "zip"}, "unknown encoding 'zip'; known: auto, plain"),
        ({"values": "int4"}, "unknown values 'int4'; known: float32, float16, bfloat16, int8_scaled"),
        ({"update": {"w": UPDATE}}, "unknown tensor 'w'; this round has 'v'"),
        (
            {"update": ([1], [1e6]), "values": "float16"},
            "tensor 'v': value 1000000.0 at position 0 does not fit float16",
        ),
    ],
)
def test_bad_argument_of_submit_is_refused_in_the_same_words(any_client, options, text):
    opened = any_client.create_round(ONE)
    options = {"client_id": "a", "update": UPDATE, **options}
    assert refusal(lambda: opened.submit(**options)) == ("InvalidArgument", text)


def test_round_that_is_full_closes_itself(any_client):
    opened = any_client.create_round(one(max_submissions=2))
    opened.submit("a", UPDATE)
    opened.submit("b", UPDATE)
    assert opened.wait(PATIENCE_S).state == "done"
    text = "rounds/ID is done: there are max_submissions 2 submissions already"
    assert refusal(lambda: opened.submit("c", UPDATE)) == ("RoundClosed", text)
    assert refusal(lambda: opened.cancel("late")) == ("FailedPrecondition", "the round is DONE")
    assert opened.result()["v"].values.tolist() == [2.0, 4.0]
    found = refusal(lambda: any_client.aggregate([UPDATE] * 3, one(max_submissions=2)))
    text = "client '00000000000000000002': there are max_submissions 2 submissions already"
    assert found == ("FailedPrecondition", text)


def test_round_at_its_deadline_closes_itself(any_client):
    opened = any_client.create_round(one(deadline=0.2))
    opened.submit("a", UPDATE)
    assert opened.wait(PATIENCE_S).state == "done"
    assert (opened.info.close_time - opened.info.create_time).total_seconds() >= 0.19
    assert opened.result()["v"].values.tolist() == [1.0, 2.0]
    assert refusal(lambda: opened.submit("b", UPDATE)) == ("RoundClosed", "rounds/ID is done")


def test_round_that_has_ended_is_removed_after_its_time(any_client):
    opened = any_client.create_round(one(result_ttl=0.2))
    info = opened.end()
    assert (info.expire_time - info.end_time).total_seconds() == pytest.approx(0.2)
    give_up = time.monotonic() + PATIENCE_S
    while opened.name in [each.name for each in any_client.list_rounds()]:
        assert time.monotonic() < give_up
    assert refusal(opened.refresh) == ("NotFound", "no round 'ID'")


def test_round_below_its_minimum_fails(any_client):
    opened = any_client.create_round(one(min_submissions=2))
    opened.submit("a", UPDATE)
    reason = "FAILED_PRECONDITION: closed with 1 submissions, below min_submissions 2"
    for call in (opened.close, opened.end, opened.result):
        assert refusal(call) == ("RoundFailed", f"rounds/ID failed: {reason}")
    assert opened.wait().state == "failed"
    assert opened.info.state_reason == reason
    assert refusal(lambda: opened.submit("b", UPDATE)) == ("RoundClosed", f"rounds/ID is failed: {reason}")
    assert refusal(opened.cancel) == ("FailedPrecondition", f"the round is FAILED: {reason}")
    found = refusal(lambda: any_client.aggregate([UPDATE], one(min_submissions=2)))
    assert found == ("FailedPrecondition", "closed with 1 submissions, below min_submissions 2")


def test_round_whose_merge_fails_says_why(any_client):
    updates = {"a": ([1], [2**62]), "b": ([1], [2**62])}
    opened = any_client.create_round(one("int64"))
    for client_id, update in updates.items():
        opened.submit(client_id, update)
    text = "tensor 'v', key 1: the sum overflows int64"
    assert refusal(opened.close) == ("RoundFailed", f"rounds/ID failed: OUT_OF_RANGE: {text}")
    assert refusal(lambda: any_client.aggregate(updates, one("int64"))) == ("OutOfRange", text)
    unweighted = any_client.create_round(one(op="mean", weighting="by_weight"))
    unweighted.submit("a", UPDATE, 0.0)
    text = "tensor 'v', key 1: the weights of all submissions add up to 0, so there is no mean"
    assert refusal(unweighted.close) == ("RoundFailed", f"rounds/ID failed: FAILED_PRECONDITION: {text}")


def test_round_that_is_cancelled_has_no_result(any_client):
    opened = any_client.create_round(ONE)
    opened.submit("a", UPDATE)
    text = "reason has 1026 bytes; up to 1024 are allowed"
    assert refusal(lambda: opened.cancel("ä" * 513)) == ("InvalidArgument", text)
    assert opened.cancel("enough").state == "cancelled"
    assert opened.cancel("twice").state_reason == "enough"
    assert opened.wait().state == "cancelled"
    for call in (opened.close, opened.end, opened.result):
        assert refusal(call) == ("RoundFailed", "rounds/ID cancelled: enough")
    for client_id in ("a", "b"):
        expected = "RoundClosed", "rounds/ID is cancelled: enough"
        assert refusal(lambda client_id=client_id: opened.submit(client_id, UPDATE)) == expected
    assert any_client.create_round(ONE).cancel().state_reason == "no reason given"


def test_round_that_is_open_has_no_result(any_client):
    opened = any_client.create_round(ONE)
    text = "rounds/ID is open, and has a result only when it has ended"
    assert refusal(opened.result) == ("FailedPrecondition", text)
    assert refusal(lambda: opened.wait(timeout=0.02)) == ("DeadlineExceeded", "rounds/ID is still open")
    opened.close()
    assert refusal(lambda: opened.submit("a", UPDATE)) == ("RoundClosed", "rounds/ID is done")
    assert len(opened.close()["v"]) == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tensors": ["w"]}, "unknown tensor 'w'; this round has 'v'"),
        ({"tensors": []}, "tensors has no name; None is for all tensors"),
        ({"keys": (3, 1)}, "the key range ends at 1, before it begins at 3"),
        ({"values": "int32"}, "unknown values 'int32'; known: float32, float16, bfloat16, int8_scaled"),
        ({"encoding": "zip"}, "unknown encoding 'zip'; known: auto, plain"),
    ],
)
def test_bad_argument_of_result_is_refused_in_the_same_words(any_client, options, text):
    opened = any_client.create_round(ONE)
    opened.end()
    assert refusal(lambda: opened.result(**options)) == ("InvalidArgument", text)


def test_round_info_tells_counts_times_and_results(any_client):
    spec = sa.RoundSpec(
        [sa.TensorSpec("v", "bfloat16", 10, 2), sa.TensorSpec("w", "int32", 5)], result="dense", deadline=1000
    )
    opened = any_client.create_round(spec)
    assert opened.spec == opened.info.spec == sa.RoundSpec.from_proto(spec.to_proto())
    assert (opened.info.state, opened.info.close_time, opened.info.end_time) == ("open", None, None)
    opened.submit("a", {"v": ([1, 2], np.ones((2, 2))), "w": ([3], [7])})
    opened.submit("b", {"w": np.arange(5)})
    info = opened.refresh()
    assert (info.num_submissions, info.num_tuples, info.num_bytes) == (2, 8, 2 * (4 + 4) + (4 + 4) + 5 * 4)
    assert (info.num_refused, info.num_uploads, info.state_reason) == (0, 0, "")
    before, info = info, opened.end()
    assert info.create_time == before.create_time <= info.close_time <= info.end_time
    assert info.timeline.open >= before.timeline.open > 0
    assert info.timeline.finish > 0
    assert (info.state, info.engine) == ("done", any_client.server_info().engine)
    shapes = [(each.name, each.num_keys, each.layout, each.dtype, each.width, each.dimension) for each in info.results]
    assert shapes == [("v", 10, "dense", "bfloat16", 2, 10), ("w", 5, "dense", "int64", 1, 5)]
    assert opened.result().info == info
    alone = any_client.aggregate([{"w": np.arange(5)}], spec).info
    assert (alone.name, alone.state, alone.num_submissions) == ("", "done", 1)


def test_server_info_describes_engine_and_encodings(any_client, client):
    mine, theirs = any_client.server_info(), client.server_info()
    for field in ("api_versions", "engine", "key_encodings", "value_encodings"):
        assert getattr(mine, field) == getattr(theirs, field), field
    # Rounds in this process have no tasks.
    assert set(theirs.features) - set(mine.features) <= {"Tasks"}
    assert set(mine.features) <= set(theirs.features)
    assert mine.version
    assert mine.engine_description


def test_disconnected_client_says_so(connect, address):
    left = connect(address)
    opened = left.create_round(ONE)
    left.disconnect()
    left.close()
    calls = (left.server_info, lambda: left.aggregate([UPDATE], ONE), lambda: left.create_round(ONE), left.list_rounds)
    for call in (*calls, lambda: opened.submit("a", UPDATE), opened.close, opened.result, opened.delete):
        assert refusal(lambda call=call: list(call())) == ("FailedPrecondition", "this client is disconnected")


def test_submissions_are_listed_in_the_order_of_the_fold(any_client):
    opened = any_client.create_round(ONE)
    assert opened.submissions() == []
    for client_id in ("ö", 10, 9, "a"):
        opened.submit(client_id, UPDATE, submission_id=f"of {client_id}")
    opened.submit("a", UPDATE)  # again
    listed = opened.submissions()
    assert [each.client_id for each in listed] == ["10", "9", "a", "ö"]
    assert listed[2] == sa.Submission(opened.name, "a", "of a", duplicate=False, num_tuples=2, num_bytes=16)
    assert opened.withdraw(9)
    opened.end()
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
    merged = opened.close()["v"]
    assert (merged.keys.tolist(), merged.values.tolist()) == ([1, 5, 7], [0.5, 0.5, 0.5])
    assert merged.counts.tolist() == [1, 1, 1]


def test_round_closed_with_only_some_clients_has_their_bits(any_client, client):
    print(f"seed {SEED}")
    for name in ("float32 canonical", "float64 mean by weight", "float32 fixed point", "int32 sum"):
        spec, updates = SPECS[name], updates_of(SPECS[name])
        chosen = sorted(updates)[::2]
        expected = digest(client.aggregate({each: updates[each] for each in chosen}, spec))
        opened = any_client.create_round(spec)
        for client_id, (update, weight) in updates.items():
            opened.submit(client_id, update, weight)
        assert digest(opened.close(only=[*chosen, chosen[0]])) == expected, name
        assert opened.info.num_submissions == len(chosen)
        assert digest(opened.close(only=chosen)) == expected, "again"
        assert [each.client_id for each in opened.submissions()] == chosen


def test_close_with_only_what_cannot_be_changes_nothing(any_client):
    opened = any_client.create_round(one(min_submissions=2))
    for client_id in "abc":
        opened.submit(client_id, UPDATE)
    text = "client 'd' has no committed submission in the round"
    assert refusal(lambda: opened.close(only=["a", "d"])) == ("FailedPrecondition", text)
    assert (opened.refresh().state, opened.info.num_submissions) == ("open", 3)
    for only, text in (
        ([], "only has no client id; None is for all clients, and Round.cancel for a round of none"),
        ("ab", "only is a list of client ids, or None for all clients, not 'ab'"),
        (5, "only is a list of client ids, or None for all clients, not 5"),
        ([1.5], "a client id is a string or an integer, not 1.5"),
    ):
        assert refusal(lambda only=only: opened.close(only=only)) == ("InvalidArgument", text)
        assert refusal(lambda only=only: opened.end(only=only)) == ("InvalidArgument", text)
    assert opened.end(only=["a", "b"]).num_submissions == 2
    text = "the round is DONE and counts 2 submissions, not only the 1 of the list"
    assert refusal(lambda: opened.close(only=["a"])) == ("FailedPrecondition", text)
    text = "client 'c' has no committed submission in the round, which is closed"
    assert refusal(lambda: opened.close(only=["a", "c"])) == ("FailedPrecondition", text)
    assert opened.close()["v"].values.tolist() == [2.0, 4.0]
    too_few = any_client.create_round(one(min_submissions=2))
    for client_id in "ab":
        too_few.submit(client_id, UPDATE)
    reason = "FAILED_PRECONDITION: closed with 1 submissions, below min_submissions 2"
    assert refusal(lambda: too_few.close(only=["a"])) == ("RoundFailed", f"rounds/ID failed: {reason}")


def test_withdrawal_after_the_close_is_too_late(any_client):
    opened = any_client.create_round(ONE)
    opened.submit("a", UPDATE)
    opened.end()
    assert refusal(lambda: opened.withdraw("a")) == ("RoundClosed", "rounds/ID is done")
    with pytest.raises(sa.RoundClosed) as caught:
        opened.submit("b", UPDATE)
    assert caught.value.state == "done"
    cancelled = any_client.create_round(ONE)
    cancelled.submit("a", UPDATE)
    cancelled.cancel("enough")
    assert refusal(lambda: cancelled.withdraw("a")) == ("RoundClosed", "rounds/ID is cancelled: enough")
    for call in (cancelled.close, cancelled.end):
        assert refusal(lambda call=call: call(only=["a"])) == ("RoundFailed", "rounds/ID cancelled: enough")
    cancelled.delete()
    for call in (cancelled.submissions, lambda: cancelled.withdraw("a")):
        assert refusal(call) == ("NotFound", "no round 'ID'")


def test_submissions_that_were_merged_on_arrival_stay(any_client):
    spec = one("float32", 1 << 24, numerics="fixed_point", value_bound=4.0, max_submissions=10)
    opened = any_client.create_round(spec)
    for client_id in "ab":
        opened.submit(client_id, (np.arange(1 << 22, dtype=np.uint32), np.ones(1 << 22, np.float32)))
    found, text = refusal(lambda: opened.withdraw("a"))
    assert found == "FailedPrecondition"
    expected = "tensor 'v': its submissions have been merged as they arrived, since their order does not matter"
    assert text.startswith(expected), text
    assert refusal(lambda: opened.close(only=["a"])) == (found, text)
    assert opened.refresh().num_submissions == 2
    assert opened.end(only=["a", "b"]).state == "done"
