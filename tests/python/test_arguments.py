"""Arguments that cannot be sent are refused as InvalidArgument, with the argument's name and its value."""

from __future__ import annotations

import fractions
import math
from typing import Any

import numpy as np
import pytest
import sparseagg as sa

TENSOR = sa.TensorSpec("v", "float32", 10)
SPEC = sa.RoundSpec([TENSOR], weighting="by_weight")
UPDATE = {"v": ([1], [1.0])}
SURROGATE = "\udcff"  # as in the name of a file that is not in UTF-8
WEIGHTS = [10**400, fractions.Fraction(10**400), 10**5000]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"deadline": 1e20}, r"deadline .* not 1e\+20"),
        ({"deadline": math.inf}, "deadline .* not inf"),
        ({"deadline": math.nan}, "deadline .* not nan"),
        ({"deadline": "60s"}, "deadline is a number of seconds or a timedelta, not '60s'"),
        ({"result_ttl": 10**400}, "result_ttl .* not 1000"),
        ({"min_submissions": "x"}, "min_submissions cannot be 'x'"),
        ({"max_submissions": -1}, "max_submissions cannot be -1"),
        ({"max_tuples_per_submission": 10**30}, "max_tuples_per_submission cannot be 1000"),
        ({"max_bytes_per_submission": 1.5}, r"max_bytes_per_submission cannot be 1\.5"),
        ({"min_contributors": -1}, "min_contributors cannot be -1"),
        ({"fill": 10**400}, "fill cannot be 1000"),
        ({"value_bound": 10**5000}, "value_bound cannot be int with more digits"),
    ],
)
def test_spec_of_what_no_field_can_hold_names_field_and_value(options: dict[str, Any], text: str) -> None:
    spec = sa.RoundSpec([TENSOR], **options)
    for use in (spec.to_proto, lambda: sa.Aggregator(spec)):
        with pytest.raises(sa.InvalidArgument, match=text):
            use()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"name": SURROGATE}, r"tensor '\\udcff': name cannot be '\\udcff'"),
        ({"name": 5}, "tensor 5: name cannot be 5"),
        ({"dimension": -1}, "tensor 'v': dimension cannot be -1"),
        ({"dimension": 2**64}, "tensor 'v': dimension cannot be 18446744073709551616"),
        ({"width": 1.5}, r"tensor 'v': width cannot be 1\.5"),
        ({"fill": 10**400}, "tensor 'v': fill cannot be 1000"),
    ],
)
def test_tensor_of_what_no_field_can_hold_names_field_and_value(options: dict[str, Any], text: str) -> None:
    tensor = sa.TensorSpec(**{"name": "v", "dtype": "float32", "dimension": 10, **options})
    with pytest.raises(sa.InvalidArgument, match=text):
        tensor.to_proto()


@pytest.mark.parametrize(
    ("tensors", "text"), [(TENSOR, "not TensorSpec"), (["v"], r"not \['v'\]"), ("v", "not 'v'"), (None, "not None")]
)
def test_spec_of_no_tensors_says_so(tensors: Any, text: str) -> None:
    with pytest.raises(sa.InvalidArgument, match=f"tensors is a list of TensorSpec, {text}"):
        sa.RoundSpec(tensors)


def test_spec_takes_tensors_of_an_iterator() -> None:
    assert sa.RoundSpec(tensor for tensor in [TENSOR]).tensors == (TENSOR,)


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2", 1025, 10**10, 10**5000], ids=range(8))
def test_aggregator_of_what_is_no_number_of_threads_says_so(threads: Any) -> None:
    with pytest.raises(sa.InvalidArgument, match="threads is a number of threads from 1 to 1024"):
        sa.Aggregator(SPEC, threads=threads)


@pytest.mark.parametrize("weight", WEIGHTS, ids=["int", "fraction", "long"])
def test_weight_beyond_float64_is_refused(client: sa.Client, weight: Any) -> None:
    opened = client.create_round(SPEC)
    for use in (
        lambda: opened.submit("a", UPDATE, weight),
        lambda: client.aggregate([(UPDATE, weight)], SPEC),
        lambda: sa.Aggregator(SPEC).add("a", UPDATE, weight),
        lambda: sa.aggregate([(UPDATE, weight)], SPEC),
    ):
        with pytest.raises(sa.InvalidArgument, match="a weight is a number that float64 can hold, not"):
            use()


@pytest.mark.parametrize(("client_id", "text"), [(SURROGATE, r"not '\\udcff'"), (5, "not 5"), (None, "not None")])
def test_client_id_that_is_no_text_is_refused(client: sa.Client, client_id: Any, text: str) -> None:
    opened = client.create_round(SPEC)
    for use in (
        lambda: opened.submit(client_id, UPDATE, 1.0),
        lambda: client.aggregate({client_id: (UPDATE, 1.0)}, SPEC),
        lambda: sa.Aggregator(SPEC).add(client_id, UPDATE, 1.0),
        lambda: sa.aggregate({client_id: (UPDATE, 1.0)}, SPEC),
        lambda: sa.aggregate({client_id: (UPDATE, 1.0)}, SPEC, memory_limit=1 << 20),
    ):
        with pytest.raises(sa.InvalidArgument, match=f"a client id is a string.* {text}"):
            use()


@pytest.mark.parametrize(("name", "text"), [(SURROGATE, r"not '\\udcff'"), (5, "not 5"), (np.int64(5), "not .*5")])
def test_names_that_are_no_text_are_refused(client: sa.Client, name: Any, text: str) -> None:
    opened = client.create_round(SPEC)
    for use, what in (
        (lambda: client.get_round(name), "a round's name"),
        (lambda: client.create_round(SPEC, name), "a round's id"),
        (lambda: opened.submit("a", UPDATE, 1.0, submission_id=name), "a submission id"),
        (lambda: opened.cancel(name), "a reason"),
        (lambda: sa.Client("localhost:1", token=name), "a token"),
    ):
        with pytest.raises(sa.InvalidArgument, match=f"{what} is a string.* {text}"):
            use()
