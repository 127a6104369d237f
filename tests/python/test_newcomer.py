"""What meets somebody who tries the package in a shell: errors that name the right word, and short representations."""

from __future__ import annotations

import inspect
import re
from typing import get_args

import numpy as np
import pytest
import sparseagg as sa
from sparseagg._internal.base import types
from sparseagg._internal.base.fields import words
from sparseagg._internal.wire import columns, encode
from sparseagg.v1 import aggregation_pb2 as pb

SPEC = sa.RoundSpec(
    [
        sa.TensorSpec("embedding", "float32", num_rows=100, row_width=4),
        sa.TensorSpec("bias", "float32", num_rows=10, layout="dense"),
    ]
)
UPDATE = {"embedding": ([1], np.ones((1, 4), np.float32)), "bias": np.ones(10, np.float32)}
AS_OF = r"as of \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"


@pytest.mark.parametrize(
    ("call", "error", "meant"),
    [
        (lambda: sa.RoundSpec([], op="summ"), sa.InvalidArgumentError, "sum"),
        (lambda: sa.RoundSpec([], numerics="bined"), sa.InvalidArgumentError, "binned"),
        (lambda: sa.TensorSpec("e", "flot32", num_rows=1), sa.InvalidArgumentError, "float32"),
        (lambda: SPEC.tensor("embeding"), sa.InvalidArgumentError, "embedding"),
        (lambda: sa.aggregate([UPDATE], SPEC)["embeding"], KeyError, "embedding"),
        (lambda: sa.aggregate([{"bais": UPDATE["bias"]}], SPEC), sa.InvalidArgumentError, "bias"),
    ],
)
def test_error_names_what_was_meant(call, error, meant):
    with pytest.raises(error, match=f"; did you mean '{meant}'\\?"):
        call()


WITHOUT_BOUND = sa.RoundSpec([sa.TensorSpec("w", "float32", num_rows=0)])


@pytest.mark.parametrize(
    ("call", "way_out"),
    [
        (lambda: sa.RoundSpec([], op="average"), "did you mean 'mean'"),
        (lambda: sa.RoundSpec({"w": (10, 2)}), "RoundSpec.like makes one of arrays"),
        (lambda: sa.RoundSpec(SPEC.tensors[0]), "must be a list of TensorSpec"),
        (lambda: sa.TensorSpec("w", "float32", 10), "; (10,) has one axis"),
        (lambda: sa.aggregate([UPDATE], UPDATE), "create_round(like=update) makes one of an update"),
        (lambda: sa.aggregate([{**UPDATE, "embedding": ([1, 2], np.ones((4, 2)))}], SPEC), "have shape (2, 4)"),
        (lambda: sa.aggregate([{"w": (np.array([True]), [1.0])}], WITHOUT_BOUND), "np.flatnonzero(mask)"),
        (lambda: sa.aggregate([{"w": ([1], [1j])}], WITHOUT_BOUND), "values.astype('float32')"),
        (lambda: sa.Aggregator(SPEC).add(UPDATE, "a"), "it comes before the update"),
        (lambda: sa.Aggregator(SPEC).add("a", (UPDATE, 1.0)), "the weight is an argument of its own"),
        (lambda: sa.TopK(), "TopK(fraction=0.01)"),
        (lambda: np.asarray(sa.aggregate([{"w": ([1], [1.0])}])["w"]), ".keys and .values have its rows"),
        (lambda: sa.aggregate([UPDATE], SPEC)["bias"].add_to(np.zeros(10, int)), "give one of floats"),
    ],
)
def test_error_has_a_way_out_on_one_line(call, way_out):
    with pytest.raises(sa.SparseaggError) as refused:
        call()
    assert way_out in str(refused.value)
    assert "\n" not in str(refused.value)


def test_error_without_a_near_word_suggests_none():
    with pytest.raises(sa.InvalidArgumentError, match=r"known: sum, mean, .*quantile$"):
        sa.RoundSpec([], op="zzz")
    with pytest.raises(sa.InvalidArgumentError, match=r"known: sum, mean, .*quantile$"):
        sa.RoundSpec([], op=7)


def test_what_the_server_described_says_as_of_when():
    with sa.Client(":memory:") as client:
        rnd = client.create_round(SPEC)
        before = repr(rnd)
        rnd.submit("a", UPDATE)
        assert repr(rnd) == before, "repr never calls the server"
        assert re.search(f"open, submissions: 0, {AS_OF}", before)
        assert f"state, {before[before.index('as of') : -1]}" in rnd._repr_html_()
        described = rnd.info
        assert "submissions: 1, as of" in repr(client.get_round(rnd.name))
        assert rnd.refresh().as_of >= described.as_of
        assert rnd.info != described
        rnd.cancel()
        assert rnd.info == rnd.refresh(), "when it was read is no part of what it says"


@pytest.mark.parametrize("address", [":memory:", "server"])
def test_representations_are_short_lines(address, server):
    with sa.Client(server.address if address == "server" else address) as client:
        of_tasks = {}
        if address == "server":
            client.create_tasks([sa.NewTask(id="task-7", payload=b"secret")])
            of_tasks = {
                repr(client.get_task("task-7")): rf"Task\('tasks/task-7', open, attempts: 0 of 10, {AS_OF}\)",
                repr(client.lease_task("w")): (
                    rf"Task\('tasks/task-7', leased, client 'w', attempts: 1 of 10, {AS_OF}\)"
                ),
            }
            client.cancel_tasks(["task-7"])
        opened = client.create_round(SPEC)
        opened.submit("a", UPDATE)
        stream = client.create_stream(SPEC, buffer=3)
        opened.start_merge()
        result = opened.result()
        aggregator = sa.Aggregator(SPEC)
        shown = {
            repr(client): r"Client\('.*'\)",
            repr(client._inner): r"Client\('.*'\)",
            repr(client.server_info()): r"ServerInfo\(version \d+\.\d+\.\d+.*, CPU.*\)",
            repr(opened): rf"Round\('rounds/.*', done, submissions: 1, {AS_OF}\)",
            repr(opened.refresh()): (
                rf"RoundInfo\('rounds/.*', done, submissions: 1, refused: 0, tuples: 11, \d+ B, {AS_OF}\)"
            ),
            repr(stream): rf"Stream\('streams/.*', version 1, {AS_OF}\)",
            repr(stream._inner): rf"Stream\('streams/.*', version 1, {AS_OF}\)",
            repr(stream.info): (
                rf"StreamInfo\('streams/.*', version 1, buffered: 0 of 3, commits: 0, refused: 0, {AS_OF}\)"
            ),
            **of_tasks,
            repr(result): r"Result\(embedding: 1 rows, bias: 10 rows\)",
            repr(aggregator): r"Aggregator\(embedding, bias\)",
        }
        stream.delete()
        opened.delete()
    for text, pattern in shown.items():
        assert re.fullmatch(pattern, text)
        assert len(text) < 150


def test_unknown_argument_is_refused_by_name():
    for call in (lambda: sa.RoundSpec([], opp="sum"), lambda: sa.TensorSpec("e", "float32", opp="sum")):
        with pytest.raises(TypeError, match="'opp'"):
            call()


def test_every_option_is_in_the_signatures_that_help_shows():
    options = [field.name for field in pb.AggregationSpec.DESCRIPTOR.fields]
    for cls in (sa.RoundSpec, sa.TensorSpec):
        parameters = inspect.signature(cls).parameters
        assert sorted(list(parameters)[-len(options) :]) == sorted(options)
        assert (parameters["op"].annotation, parameters["op"].default) == ("Op | None", None)
        assert not any(each.kind is each.VAR_KEYWORD for each in parameters.values())


@pytest.mark.parametrize(
    ("literal", "words"),
    [
        (types.KeyEncoding, encode.ENCODINGS),
        (types.NarrowEncoding, columns.NARROW),
        (types.OnClip, words(pb.ClipPolicy.DESCRIPTOR)),
        (types.KeySelection, words(pb.KeySelection.DESCRIPTOR)),
        (types.Layout, ("sparse", "dense")),
    ],
)
def test_types_of_arguments_have_the_words_that_are_taken(literal, words):
    assert set(get_args(literal)) == set(words)
