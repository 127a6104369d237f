"""What is refused is refused in the same words at every address.

The texts are a server's, without the number of the chunk, which rounds in memory do not have.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
import sparseagg as sa
from every_client import ONE, UPDATE, one, refusal
from golden_cases.case import unchecked

INVALID, RANGE, EXHAUSTED = "InvalidArgumentError", "OutOfRangeError", "ResourceExhaustedError"
BAD_SPECS = {
    "no tensors": (lambda: sa.RoundSpec([]), "the spec has no tensors"),
    "two of one name": (
        lambda: sa.RoundSpec([sa.TensorSpec("v", "int32", num_rows=1)] * 2),
        "tensor 'v' is given twice",
    ),
    "modular": (lambda: one("uint32"), "tensor 'v': dtype uint32 needs modular = true: its sums wrap"),
    "cut of a union": (
        lambda: sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=9, op="union", result_top_k=3)]),
        "tensor 'v': result_top_k is for rows with values, and union has none",
    ),
    "moments of a median": (
        lambda: one(op="median", return_moments=True),
        "tensor 'v': return_moments is for the ops sum, mean and coordinate_mean, not median",
    ),
    "binned without effect": (
        lambda: one("int32", numerics="binned"),
        "binned numerics have no effect: no tensor has a sum or mean of floats",
    ),
    "binned integers": (
        lambda: sa.RoundSpec([sa.TensorSpec("v", "int32", num_rows=9, numerics="binned")]),
        "tensor 'v': binned numerics are for sums and means of floats, not for the op sum of int32",
    ),
    "binned median": (
        lambda: sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=9, op="median", numerics="binned")]),
        "tensor 'v': binned numerics are for sums and means of floats, not for the op median of float32",
    ),
    "binned moments": (
        lambda: one(numerics="binned", layout="dense", return_moments=True),
        "tensor 'v': return_moments needs canonical numerics: the squares are float64 sums in order of client id",
    ),
    "too many for binned": (
        lambda: one(numerics="binned", layout="dense", max_submissions=2**20),
        "tensor 'v': binned sums of float32 take max_submissions up to 1048575, not 1048576",
    ),
    "too many for binned float64": (
        lambda: one("float64", numerics="binned", layout="dense", max_submissions=2**24),
        "tensor 'v': binned sums of float64 take max_submissions up to 16777215, not 16777216",
    ),
    "too many for weights": (
        lambda: one(op="max", weighting="by_weight", return_weights=True, max_submissions=2**24),
        "tensor 'v': binned sums of weights take max_submissions up to 16777215, not 16777216",
    ),
    "bound": (lambda: one(clip=sa.ClipSpec(l2=0.0)), "clip.l2 0 is not in [2^-500, 2^500]"),
    "no bound": (
        lambda: one(clip=sa.ClipSpec(on_clip="reject")),
        "clip has on_clip and no bound: l2, linf or max_keys",
    ),
    "bound of no value": (
        lambda: one("float16", clip=sa.ClipSpec(linf=1e-9)),
        "tensor 'v': clip.linf is below all values of float16 but 0",
    ),
    "no divisor": (lambda: one(op="mean", mean_divisor="fixed"), "tensor 'v': mean_divisor fixed needs fixed_divisor"),
    "divisor": (
        lambda: one(op="mean", mean_divisor="fixed", fixed_divisor=-1.0),
        "tensor 'v': fixed_divisor -1 is not in [2^-900, 2^900]",
    ),
    "minimum": (lambda: one(min_submissions=3, max_submissions=2), "min_submissions 3 is beyond max_submissions 2"),
}
# Rounds of ":memory:" take no partials at all.
BAD_PARTIALS = {
    "partials of canonical sums": (
        lambda: one(layout="dense", accept_partials=True),
        "accept_partials: tensor 'v' sums floats in the order of the clients, so that no partial keeps the bits: "
        "export its submissions, or sum with binned numerics",
    ),
}
BAD_TIMES = {
    "deadline": (lambda: one(deadline=0), "deadline is not positive"),
    "result_ttl": (lambda: one(result_ttl=0), "result_ttl is not positive"),
}


@pytest.mark.parametrize("name", [*BAD_SPECS, *BAD_TIMES])
def test_bad_spec_is_refused_in_the_same_words(any_client, name):
    make, text = {**BAD_SPECS, **BAD_TIMES}[name]
    spec = unchecked(make)
    assert refusal(lambda: any_client.create_round(spec)) == (INVALID, text)
    assert refusal(lambda: any_client.aggregate([], spec)) == (INVALID, text)


@pytest.mark.parametrize("name", [*BAD_SPECS, *BAD_PARTIALS])
def test_bad_spec_is_refused_by_its_constructor_and_by_the_engine(name):
    make, text = {**BAD_SPECS, **BAD_PARTIALS}[name]
    assert refusal(make) == (INVALID, text)
    assert refusal(lambda: sa.aggregate([], unchecked(make))) == (INVALID, text)


WEIGHTED = one(weighting="by_weight")
DENSE = one(layout="dense")
LIMIT = "the submission has {}, (beyond|more than) {}"
BAD_UPDATES = {
    "key": (ONE, ([1, 10], [1.0, 1.0]), None, INVALID, "position 1: key 10 is not below num_rows 10"),
    "NaN": (ONE, ([1], [np.nan]), None, INVALID, "key 1, position 0: value nan is not finite"),
    "no values": (ONE, ([1], None), None, INVALID, "1 keys without values"),
    "infinity": (ONE, ([1], [-np.inf]), None, INVALID, "key 1, position 0: value -inf is not finite"),
    "no weight": (WEIGHTED, UPDATE, None, INVALID, "the weight is missing"),
    "no number": (WEIGHTED, UPDATE, np.nan, INVALID, "weight nan is not finite"),
    "weight": (WEIGHTED, UPDATE, -1.0, INVALID, "weight -1 is negative"),
    "dense": (DENSE, {}, None, INVALID, "layout dense needs all 10 rows, not 0"),
    "overflow": (one("int64"), ([1, 1], [2**62] * 2), None, RANGE, "key 1: the sum of this submission's own"),
    "tuples": (
        one(max_tuples_per_submission=1), UPDATE, None,
        EXHAUSTED, LIMIT.format(2, "max_tuples_per_submission 1"),
    ),
    "bytes": (
        one(max_bytes_per_submission=15), UPDATE, None,
        EXHAUSTED, LIMIT.format(16, "max_bytes_per_submission 15"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_UPDATES)
def test_bad_update_is_refused_in_the_same_words_and_the_round_unharmed(any_client, name):
    spec, update, weight, error, text = BAD_UPDATES[name]
    opened = any_client.create_round(spec)
    for resumable in (False, True):
        found, said = refusal(lambda r=resumable: opened.submit("it's", update, weight, resumable=r))
        assert found == error
        # A submission's limits concern no tensor; a server names the one at which it has reached them.
        assert re.match(f"client \"it's\": (tensor 'v'[:,] )?{text}", said), said
    assert (opened.refresh().state, opened.info.num_submissions, opened.info.num_refused) == ("open", 0, 2)
    for listed in opened.info.recent_refusals:
        assert (listed.client_id, listed.code) == ("it's", getattr(sa.errors, error).code.name)
        assert re.match(f"(tensor 'v'[:,] )?(chunk 0[:,] )?{text}", listed.reason), listed
    found, said = refusal(lambda: any_client.aggregate({"it's": (update, weight)}, spec))
    assert found == error
    assert re.match(f"client 'it's': (tensor 'v'[:,] )?{text}", said), said


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"client_id": ""}, "client '': client_id has 0 bytes; 1 to 256 are allowed"),
        ({"client_id": "ä" * 129}, f"client '{'ä' * 129}': client_id has 258 bytes; 1 to 256 are allowed"),
        ({"submission_id": "x" * 257}, "client 'a': submission_id has 257 bytes; 1 to 256 are allowed"),
        ({"client_id": "a\x1b[2J"}, r"client 'a\x1b[2J': client_id has the control character U+001B at byte 1"),
        ({"client_id": "ä\x9b"}, r"client 'ä\x9b': client_id has the control character U+009B at byte 2"),
        ({"submission_id": "\0"}, "client 'a': submission_id has the control character U+0000 at byte 0"),
        ({"key_encoding": "zip"}, "unknown key_encoding 'zip'; known: auto, plain"),
        ({"value_encoding": "int4"}, "unknown value_encoding 'int4'; known: float32, float16, bfloat16, int8_scaled"),
        ({"update": {"w": UPDATE}}, "client 'a': unknown tensor 'w'; this round has 'v'"),
        (
            {"update": ([1], [1e6]), "value_encoding": "float16"},
            "client 'a': tensor 'v', key 1, position 0: value 1000000.0 does not fit float16",
        ),
    ],
)
def test_bad_argument_of_submit_is_refused_in_the_same_words(any_client, options, text):
    opened = any_client.create_round(ONE)
    options = {"client_id": "a", "update": UPDATE, **options}
    assert refusal(lambda: opened.submit(**options)) == (INVALID, text)


def test_client_id_with_a_control_character_is_refused_in_the_same_words(any_client):
    opened = any_client.create_round(ONE)
    opened.submit("a", UPDATE)
    text = "has the control character U+000A at byte 1"
    assert refusal(lambda: opened.finish(only=["a", "b\n"])) == (INVALID, f"only_client_ids {text}")
    assert refusal(lambda: opened.withdraw("b\n")) == (INVALID, f"client_id {text}")
    found, said = refusal(lambda: any_client.aggregate({"b\n": UPDATE}, ONE))
    assert found == INVALID
    assert said.endswith(f"client_id {text}")
    assert said.isprintable()
    assert opened.refresh().state == "open"
    for good in ("a/b:c d", "..", "ö", "\u2028", " "):  # never part of a path
        opened.submit(good, UPDATE, submission_id=good)


def test_name_of_a_tensor_with_a_control_character_is_refused_in_the_same_words(any_client):
    for name, text in [
        ("a\x1b[2J", "the name of a tensor has the control character U+001B at byte 1"),
        ("x" * 257, "the name of a tensor has 257 bytes; 1 to 256 are allowed"),
        ("", "the name of a tensor has 0 bytes; 1 to 256 are allowed"),
    ]:
        spec = unchecked(sa.RoundSpec, [sa.TensorSpec(name, "float32", num_rows=10)])
        assert refusal(lambda spec=spec: any_client.create_round(spec)) == (INVALID, text)
    any_client.create_round(sa.RoundSpec([sa.TensorSpec("model/dense/kernel:0 ä", "float32", num_rows=10)]))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tensors": ["w"]}, "unknown tensor 'w'; this round has 'v'"),
        ({"tensors": []}, "tensors has no name; None is for all tensors"),
        ({"tensors": ["v", "v"]}, "tensors names one of them twice: ['v', 'v']"),
        ({"keys": (3, 1)}, "the key range ends at 1, before it begins at 3"),
        ({"value_encoding": "int32"}, "unknown value_encoding 'int32'; known: float32, float16, bfloat16, int8_scaled"),
        ({"key_encoding": "zip"}, "unknown key_encoding 'zip'; known: auto, plain"),
    ],
)
def test_bad_argument_of_result_is_refused_in_the_same_words(any_client, options, text):
    opened = any_client.create_round(ONE)
    opened.start_merge()
    opened.wait()
    assert refusal(lambda: opened.result(**options)) == (INVALID, text)
