"""What meets somebody who tries the package in a shell: errors that name the right word, and short representations."""

from __future__ import annotations

import re
from typing import get_args

import numpy as np
import pytest
import sparseagg as sa
from sparseagg._internal.base import types
from sparseagg._internal.spec import clip_spec, privacy_spec
from sparseagg._internal.wire import formats, values

SPEC = sa.RoundSpec(
    [
        sa.TensorSpec("embedding", "float32", num_rows=100, row_width=4),
        sa.TensorSpec("bias", "float32", num_rows=10, layout="dense"),
    ]
)
UPDATE = {"embedding": ([1], np.ones((1, 4), np.float32)), "bias": np.ones(10, np.float32)}


@pytest.mark.parametrize(
    ("call", "error", "meant"),
    [
        (lambda: sa.RoundSpec([], op="summ"), sa.InvalidArgumentError, "sum"),
        (lambda: sa.RoundSpec([], numerics="fixedpoint"), sa.InvalidArgumentError, "fixed_point"),
        (lambda: sa.RoundSpec([], opp="sum"), TypeError, "op"),
        (lambda: sa.TensorSpec("e", "flot32", num_rows=1), sa.InvalidArgumentError, "float32"),
        (lambda: sa.TensorSpec("e", "float32", num_row=1), TypeError, "num_rows"),
        (lambda: SPEC.tensor("embeding"), sa.InvalidArgumentError, "embedding"),
        (lambda: sa.aggregate([UPDATE], SPEC)["embeding"], KeyError, "embedding"),
        (lambda: sa.aggregate([{"bais": UPDATE["bias"]}], SPEC), sa.InvalidArgumentError, "bias"),
    ],
)
def test_error_names_what_was_meant(call, error, meant):
    with pytest.raises(error, match=f"; did you mean '{meant}'\\?"):
        call()


def test_error_without_a_near_word_suggests_none():
    with pytest.raises(sa.InvalidArgumentError, match=r"known: sum, mean, .*quantile$"):
        sa.RoundSpec([], op="zzz")
    with pytest.raises(sa.InvalidArgumentError, match=r"known: sum, mean, .*quantile$"):
        sa.RoundSpec([], op=7)


@pytest.mark.parametrize("address", [":memory:", "server"])
def test_representations_are_short_lines(address, server):
    with sa.Client(server.address if address == "server" else address) as client:
        opened = client.create_round(SPEC)
        opened.submit("a", UPDATE)
        stream = client.stream(SPEC, buffer=3)
        opened.close()
        result = opened.result()
        aggregator = sa.Aggregator(SPEC)
        shown = {
            repr(client): r"Client\('.*'\)",
            repr(client._inner): r"Client\('.*'\)",
            repr(client.server_info()): r"ServerInfo\(version \d+\.\d+\.\d+.*, CPU.*\)",
            repr(opened): r"Round\('rounds/.*', done\)",
            repr(opened.refresh()): r"RoundInfo\('rounds/.*', done, submissions: 1, refused: 0, tuples: 11, \d+ B\)",
            repr(stream): r"Stream\('streams/.*', version 1\)",
            repr(stream._inner): r"Stream\('streams/.*', version 1\)",
            repr(stream.info): r"StreamInfo\('streams/.*', version 1, buffered: 0 of 3, commits: 0, refused: 0\)",
            repr(result): r"Result\(embedding: 1 rows, bias: 10 rows\)",
            repr(aggregator): r"Aggregator\(embedding, bias\)",
        }
        stream.delete()
        opened.delete()
    for text, pattern in shown.items():
        assert re.fullmatch(pattern, text)
        assert len(text) < 150


@pytest.mark.parametrize(
    ("literal", "words"),
    [
        (types.KeyEncoding, formats.ENCODINGS),
        (types.NarrowEncoding, values.NARROW),
        (types.OnClip, clip_spec._WORDS),
        (types.KeySelection, privacy_spec._WORDS),
        (types.Layout, ("sparse", "dense")),
    ],
)
def test_types_of_arguments_have_the_words_that_are_taken(literal, words):
    assert set(get_args(literal)) == set(words)
