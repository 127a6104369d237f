"""Weights and options without an effect are refused; defaults are told."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import sparseagg as sa
from golden_cases.case import unchecked
from real_server import ServerProcess
from sparseagg._internal.spec.options import words_of
from sparseagg.v1 import aggregation_pb2 as pb

UPDATE = (np.array([1], np.uint32), np.ones(1, np.float32))
ONE = sa.TensorSpec("v", "float32", num_rows=4)
WORDS = r"weight 3 has no effect: no tensor is weighted by_weight"


def spec_of(*tensors: sa.TensorSpec, **options: Any) -> sa.RoundSpec:
    return sa.RoundSpec(list(tensors or [ONE]), **options)


@pytest.mark.parametrize("op", ["sum", "mean", "coordinate_mean", "union", "min"])
def test_weight_that_no_tensor_uses_is_refused(op: str) -> None:
    spec = spec_of(op=op)
    aggregator = sa.Aggregator(spec)
    for weight in (3, 3.0, np.float32(3)):
        for update in (UPDATE, {"v": ([1], [1.0])}):  # read by the engine, and converted
            with pytest.raises(sa.InvalidArgumentError, match=f"^client 'a': {WORDS}"):
                aggregator.add("a", update, weight)
            for updates in ({"a": (update, weight)}, [(update, weight)], iter([(update, weight)])):
                with pytest.raises(sa.InvalidArgumentError, match=f"^client .*: {WORDS}"):
                    sa.aggregate(updates, spec)
    with sa.Client(":memory:") as client:
        with pytest.raises(sa.InvalidArgumentError, match=f"^client 'a': {WORDS}"):
            client.aggregate({"a": (UPDATE, 3)}, spec)
        opened = client.create_round(spec)
        with pytest.raises(sa.InvalidArgumentError, match=f"^client 'a': {WORDS}"):
            opened.submit("a", UPDATE, weight=3)
        with pytest.raises(sa.InvalidArgumentError, match="weight 0 has no effect"):
            opened.submit("a", UPDATE, weight=0)
        for weight in (None, 1, 1.0):
            opened.submit(f"of {weight!r}", UPDATE, weight=weight)
        assert opened.finish().info.num_submissions == 3


def test_weight_that_one_of_several_tensors_uses_is_taken() -> None:
    spec = spec_of(ONE, sa.TensorSpec("w", "float32", num_rows=4, weighting="by_weight"))
    merged = sa.aggregate([({"v": UPDATE, "w": UPDATE}, 3)], spec)
    assert (merged["v"].values.tolist(), merged["w"].values.tolist()) == ([1.0], [3.0])


UNUSED = {
    "weighting by_weight": (
        {"op": "min", "weighting": "by_weight"},
        "is for sums, means and order statistics, and for return_weights",
    ),
    "fill": ({"fill": 1.0}, "is for the result layouts dense and auto"),
    "dense_threshold": ({"result_layout": "dense", "dense_threshold": 0.5}, "is for the result_layout auto"),
    "prune_zeros": ({"op": "union", "prune_zeros": True}, "is for ops with values"),
    "result_dtype": ({"op": "union", "result_dtype": "float64"}, "is for ops with values"),
    "on_empty fail": ({"on_empty": "fail"}, "is for tensors of layout dense"),
    "mean_divisor": ({"mean_divisor": "submissions"}, "is for the op mean"),
    "fixed_divisor": ({"op": "mean", "fixed_divisor": 2.0}, "is for the op mean and the mean_divisor fixed"),
    "trim_fraction": ({"trim_fraction": 0.1}, "is for the op trimmed_mean"),
    "quantile": ({"op": "median", "quantile": 0.5}, "is for the op quantile"),
    "absent": ({"absent": "skip"}, "is for the ops median, trimmed_mean and quantile"),
}


@pytest.mark.parametrize("option", UNUSED)
def test_option_that_no_tensor_uses_is_refused(option: str) -> None:
    options, text = UNUSED[option]
    words = f"{option} {text}"
    with pytest.raises(sa.InvalidArgumentError, match=f"^{words}"):
        spec_of(**options)
    of_tensor = sa.TensorSpec("w", "float32", num_rows=4, **options)
    with pytest.raises(sa.InvalidArgumentError, match=f"^tensor 'w': {words}"):
        spec_of(ONE, of_tensor)


# Values of the options, of which not one is the default. The options of a mode are those that it needs.
VALUES: dict[str, list[Any]] = {
    "weighting": ["by_weight"],
    "result_layout": ["dense", "auto"],
    "return_counts": [True],
    "return_weights": [True],
    "return_moments": [True],
    "min_contributors": [2],
    "prune_zeros": [True],
    "fill": [1.0],
    "dense_threshold": [0.5],
    "result_dtype": ["float64"],
    "on_nonfinite": ["propagate"],
    "on_empty": ["fail", "keep"],
    "mean_divisor": ["weights", "submissions", "fixed"],
    "fixed_divisor": [2.0],
    "trim_fraction": [0.25],
    "quantile": [0.5],
    "absent": ["skip", "zero"],
    "result_top_k": [3],
    "result_min_norm": [1.0],
}
TENSORS = {"sparse": {}, "dense": {"layout": "dense"}, "integers": {"dtype": "int32"}}
NEEDS = {
    "trimmed_mean": {"trim_fraction": 0.25},
    "quantile": {"quantile": 0.5},
    "binned": {"numerics": "binned"},
}
MODES = [
    (op, numerics, kind)
    for op in words_of("op")
    for numerics in ("canonical", "binned")
    for kind in TENSORS
    if numerics == "canonical" or (op in ("sum", "mean", "coordinate_mean") and kind != "integers")
]


def specs_of_mode(op: str, numerics: str, kind: str) -> Iterator[sa.RoundSpec]:
    """A spec for each value of each option, set by the round and by its tensor; not checked."""
    fields = {"dtype": "float32", "num_rows": 4, **TENSORS[kind]}
    needs = {"op": op, **NEEDS.get(op, {}), **NEEDS.get(numerics, {})}
    for option, values in VALUES.items():
        for value in values:
            options = {**needs, option: value}
            yield unchecked(spec_of, sa.TensorSpec("v", **fields), **options)
            yield unchecked(spec_of, ONE, sa.TensorSpec("w", **fields, **options))


def answer_of(call: Callable[[], object]) -> str:
    try:
        call()
    except sa.InvalidArgumentError as error:
        return str(error)
    return "taken"


def test_every_option_is_among_the_values() -> None:
    assert {*VALUES, "op", "numerics"} == {field.name for field in pb.AggregationSpec.DESCRIPTOR.fields}


@pytest.mark.parametrize("mode", MODES, ids="-".join)
def test_every_option_gets_the_same_answer_everywhere(mode: tuple[str, str, str], server: ServerProcess) -> None:
    refused = set()
    with sa.Client(server.address) as remote, sa.Client(":memory:") as memory:
        for spec in specs_of_mode(*mode):
            assert spec == pickle.loads(pickle.dumps(spec)) == sa.RoundSpec._from_proto(spec._to_proto())
            words = answer_of(lambda spec=spec: dataclasses.replace(spec))
            clients = (memory, remote)
            calls = [lambda spec=spec: sa.Aggregator(spec)]
            calls += [lambda spec=spec, at=at: at.create_round(spec).delete() for at in clients]
            calls += [
                lambda spec=spec, at=at: at.create_stream(spec, buffer=9, one_per_client=True).delete()
                for at in clients
            ]
            if words not in refused:
                calls += [lambda spec=spec, at=at: at.aggregate([], spec) for at in clients if words != "taken"]
                refused.add(words)
            assert [answer_of(call) for call in calls] == [words] * len(calls), spec
    assert {"taken"} < refused


def test_option_of_the_round_that_some_tensor_uses_is_taken() -> None:
    dense = sa.TensorSpec("d", "float32", num_rows=4, layout="dense")
    spec_of(ONE, dense, fill=2.0, on_empty="fail", prune_zeros=True, result_dtype="float64")
    spec_of(sa.TensorSpec("m", "float32", num_rows=4, op="min"), ONE, weighting="by_weight")
    spec_of(op="max", weighting="by_weight", return_weights=True)
    spec_of(on_empty="keep", fill=0.0, prune_zeros=False)  # nothing is promised that does not hold


def test_repr_tells_defaults_and_what_is_set() -> None:
    assert repr(spec_of()) == (
        "RoundSpec(tensors=[TensorSpec(name='v', dtype='float32', num_rows=4, row_width=1)], op='sum', "
        "weighting='uniform', numerics='canonical')"
    )
    tensor = sa.TensorSpec("w", "float32", shape=(2, 3), layout="dense", op="mean")
    assert repr(tensor) == (
        "TensorSpec(name='w', dtype='float32', num_rows=6, row_width=1, shape=(2, 3), layout='dense', op='mean')"
    )
    text = repr(spec_of(op="mean", weighting="by_weight", deadline=3.0, min_submissions=2))
    assert text.endswith("op='mean', weighting='by_weight', numerics='canonical', min_submissions=2, deadline=3.0)")
