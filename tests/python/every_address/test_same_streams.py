"""Streams: versions, staleness, cuts, retries and withdrawals, at every address and in both shells."""

from __future__ import annotations

import uuid

import numpy as np
import pytest
import sparseagg as sa
from sparseagg import errors

TENSOR = sa.TensorSpec("v", "float32", num_rows=100, row_width=4)
SPEC = sa.RoundSpec([TENSOR], op="mean")
WEIGHTED = sa.RoundSpec([TENSOR], op="mean", weighting="by_weight")


def update(seed: int):
    rng = np.random.default_rng(seed)
    keys = np.sort(rng.choice(100, 9, replace=False)).astype(np.uint32)
    return keys, rng.normal(size=(9, 4)).astype(np.float32)


@pytest.fixture
def open_stream(any_client):
    made = []

    def make(spec=SPEC, **options):
        made.append(any_client.create_stream(spec, stream_id=uuid.uuid4().hex, **options))
        return made[-1]

    yield make
    for stream in made:
        stream.delete()


def test_base_versions_out_of_range(open_stream):
    stream = open_stream(buffer=1, staleness=sa.staleness.constant(), max_staleness=1)
    with pytest.raises(errors.InvalidArgumentError, match="base_version 1 is in the future"):
        stream.submit("c", {"v": update(0)}, base_version=1)
    for base in (0, 1):
        stream.submit("c", {"v": update(0)}, base_version=base)
    with pytest.raises(errors.StaleError, match="stale by 2") as raised:
        stream.submit("c", {"v": update(0)}, base_version=0)
    assert raised.value.staleness == 2
    assert stream.refresh().num_refused == 2
    receipt = stream.submit_batch(["a"], {"v": ([0, 1], [1], np.ones((1, 4), np.float32))}, base_version=0)
    assert isinstance(receipt.refused["a"], errors.StaleError)
    assert receipt.refused["a"].staleness == 2
    assert stream.info.staleness_counts == (2, 0)


def test_retries_are_duplicates_before_and_after_the_cut(open_stream):
    stream = open_stream(buffer=2)
    first = stream.submit("a", {"v": update(0)}, base_version=0, submission_id="x")
    again = stream.submit("a", {"v": update(0)}, base_version=0, submission_id="x")
    assert (first.duplicate, again.duplicate) == (False, True)
    assert again.stream == first.stream
    stream.submit("b", {"v": update(0)}, base_version=0, submission_id="x")
    late = stream.submit("a", {"v": update(0)}, base_version=0, submission_id="x")
    assert (late.duplicate, late.stream) == (True, first.stream)
    assert stream.refresh().num_buffered == 0
    with pytest.raises(errors.AlreadyExistsError, match="with other content; send another update under another id"):
        stream.submit("a", {"v": update(1)}, base_version=0, submission_id="x")


def test_one_per_client(open_stream):
    stream = open_stream(buffer=3, one_per_client=True)
    stream.submit("a", {"v": update(0)}, base_version=0)
    with pytest.raises(errors.AlreadyExistsError):
        stream.submit("a", {"v": update(1)}, base_version=0)
    assert stream.refresh().num_buffered == 1


def test_cut_and_watch(open_stream):
    stream = open_stream(buffer=100)
    assert stream.cut().version == 1  # it has no commit
    assert stream.watch(timeout=0.01) == []
    stream.submit("a", {"v": update(0)}, base_version=0)
    assert stream.cut(version=1).version == 2
    assert stream.cut(version=1).version == 2  # it was cut before
    [version] = stream.watch()
    assert (version.version, version.cause, version.num_submissions, version.state) == (1, "call", 1, "done")
    assert version.cut_time is not None
    with pytest.raises(errors.InvalidArgumentError, match="after_version 2 is in the future"):
        stream.watch(after=2)


def test_timer_cuts(open_stream):
    stream = open_stream(buffer=100, max_interval=0.02)
    stream.submit("a", {"v": update(0)}, base_version=0)
    [version] = stream.watch()
    assert version.cause == "timer"


def test_withdrawal_moves_no_other_commit(open_stream):
    stream = open_stream(buffer=2)
    stream.submit("a", {"v": update(0)}, base_version=0, submission_id="x")
    assert [stream.withdraw("a", "x") for _ in range(2)] == [True, False]
    for name in ("b", "c"):
        assert stream.submit(name, {"v": update(1)}, base_version=0).stream.version == 1
    listed = stream.round(1).submissions()
    assert [each.client_id for each in listed] == ["b", "c"]
    stream.submit("b", {"v": update(2)}, base_version=1, submission_id="y")
    stream.cut()
    with pytest.raises(errors.FailedPreconditionError, match="version 2, which was cut"):
        stream.withdraw("b", "y")


def test_ids_are_shared_with_rounds(any_client, open_stream):
    stream = open_stream(buffer=2)
    name = stream.name.removeprefix("streams/")
    with pytest.raises(errors.AlreadyExistsError, match="is a stream"):
        any_client.create_round(SPEC, name)
    with pytest.raises(errors.NotFoundError, match="there is a stream of this id"):
        any_client.get_round(name)
    version = stream.round(1)
    for refused in (version.start_merge, version.seal, version.cancel):
        with pytest.raises(errors.FailedPreconditionError, match="version of the stream"):
            refused()
    with pytest.raises(errors.FailedPreconditionError, match="is a version of a stream"):
        version.submit("a", {"v": update(0)})
    again = any_client.get_stream(name)
    assert again.info.buffer == 2


@pytest.mark.parametrize(
    ("spec", "options", "text"),
    [
        (sa.RoundSpec([TENSOR], op="mean", max_submissions=3), {}, "max_submissions"),
        (sa.RoundSpec([TENSOR], op="mean", deadline=9), {}, "deadline"),
        (sa.RoundSpec([TENSOR], op="mean", min_submissions=9), {}, "min_submissions"),
        (sa.RoundSpec([TENSOR], op="max"), {"staleness": [1, 0.5]}, "op max ignores weights"),
        (sa.RoundSpec([TENSOR], op="mean", min_contributors=2), {}, "needs one_per_client"),
    ],
)
def test_specs_without_meaning(any_client, spec, options, text):
    with pytest.raises(errors.InvalidArgumentError, match=text):
        any_client.create_stream(spec, buffer=4, **options)
