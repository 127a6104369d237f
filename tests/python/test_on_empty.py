"""Rounds without submissions: sparse tensors have no rows; dense ones fail, or keep what there was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sparseagg as sa

TENSORS = [sa.TensorSpec("e", "float32", shape=(5, 2)), sa.TensorSpec("w", "float32", shape=(4, 1), layout="dense")]


@pytest.fixture(params=["aggregate", ":memory:", "server"])
def empty_round(request: pytest.FixtureRequest, server: Any) -> Any:
    """Returns the result of a round of a spec without submissions."""

    def run(spec: sa.RoundSpec) -> sa.Result:
        if request.param == "aggregate":
            return sa.aggregate([], spec)
        with sa.Client(server.address if request.param == "server" else request.param) as client:
            return client.create_round(spec).finish()

    return run


def test_dense_tensor_without_submissions_fails_by_name(empty_round: Any) -> None:
    for spec in (sa.RoundSpec(TENSORS, op="mean"), sa.RoundSpec(TENSORS, result_layout="sparse", on_empty="fail")):
        with pytest.raises(sa.errors.FailedPreconditionError, match="tensor 'w': there are no submissions"):
            empty_round(spec)


def test_dense_tensor_without_submissions_may_keep_what_there_was(empty_round: Any) -> None:
    result = empty_round(sa.RoundSpec(TENSORS, op="mean", on_empty="keep", return_counts=True))
    merged = result["w"]
    assert (merged.layout, len(merged), merged.shape, merged.counts.tolist()) == ("sparse", 0, (4, 1), [])
    model = {"e": np.ones((5, 2)), "w": np.ones((4, 1))}
    result.add_to(model, alpha=-0.1)
    assert all((array == 1).all() for array in model.values())


def test_sparse_tensor_without_submissions_has_no_rows(empty_round: Any) -> None:
    assert len(empty_round(sa.RoundSpec(TENSORS[:1]))["e"]) == 0
    assert (
        empty_round(sa.RoundSpec(TENSORS[:1], result_layout="dense", fill=3.0))["e"].dense().tolist()
        == [[3.0, 3.0]] * 5
    )
