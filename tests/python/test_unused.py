"""Weights and options without an effect are refused; defaults are told."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import sparseagg as sa

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
    "value_bound": ({"value_bound": 1.0}, "is for fixed_point numerics"),
    "weight_bound": ({"weight_bound": 1.0}, "is for fixed_point numerics"),
    "on_bound clip": ({"on_bound": "clip"}, "is for fixed_point numerics"),
    "weighting by_weight": (
        {"op": "min", "weighting": "by_weight"},
        "is for sums, means and order statistics, and for return_weights",
    ),
    "fill": ({"fill": 1.0}, 'is for the result layouts "dense" and "auto"'),
    "dense_threshold": ({"result_layout": "dense", "dense_threshold": 0.5}, 'is for the result_layout "auto"'),
    "prune_zeros": ({"op": "union", "prune_zeros": True}, "is for ops with values"),
    "result_dtype": ({"op": "union", "result_dtype": "float64"}, "is for ops with values"),
    "on_empty fail": ({"on_empty": "fail"}, 'is for tensors of layout "dense"'),
}
FIXED = {"numerics": "fixed_point", "value_bound": 1.0, "max_submissions": 9}


@pytest.mark.parametrize("option", UNUSED)
def test_option_that_no_tensor_uses_is_refused(option: str) -> None:
    options, text = UNUSED[option]
    words = f"{option} {text}"
    specs = [(spec_of(**options), f"^{words}")]
    of_tensor = sa.TensorSpec("w", "float32", num_rows=4, **options)
    specs.append((spec_of(ONE, of_tensor), f"^tensor 'w': {words}"))
    for spec, pattern in specs:
        with sa.Client(":memory:") as client:
            for call in (client.create_round, sa.Aggregator, lambda spec: client.aggregate([], spec)):
                with pytest.raises(sa.InvalidArgumentError, match=pattern):
                    call(spec)


def test_bounds_are_for_floats_and_weights_that_are_there() -> None:
    integers = sa.TensorSpec("n", "int32", num_rows=4)
    with pytest.raises(sa.InvalidArgumentError, match=r"^value_bound is for sums and means of floats"):
        sa.Aggregator(spec_of(integers, **FIXED))
    with pytest.raises(sa.InvalidArgumentError, match=r"^weight_bound is for the weighting by_weight"):
        sa.Aggregator(spec_of(**FIXED, weight_bound=2.0))
    sa.Aggregator(spec_of(integers, ONE, **FIXED, on_bound="clip"))
    sa.Aggregator(spec_of(**FIXED, weighting="by_weight", weight_bound=2.0))


def test_option_of_the_round_that_some_tensor_uses_is_taken() -> None:
    dense = sa.TensorSpec("d", "float32", num_rows=4, layout="dense")
    sa.Aggregator(spec_of(ONE, dense, fill=2.0, on_empty="fail", prune_zeros=True, result_dtype="float64"))
    sa.Aggregator(spec_of(sa.TensorSpec("m", "float32", num_rows=4, op="min"), ONE, weighting="by_weight"))
    sa.Aggregator(spec_of(op="max", weighting="by_weight", return_weights=True))
    sa.Aggregator(spec_of(on_empty="keep", fill=0.0, prune_zeros=False))  # nothing is promised that does not hold


def test_spec_of_another_client_is_read_whatever_it_has() -> None:
    spec = spec_of(fill=1.0, dense_threshold=0.5, op="union", prune_zeros=True)
    assert sa.RoundSpec.from_proto(spec.to_proto()) == spec
    assert pickle.loads(pickle.dumps(spec)) == spec


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
