"""``sum`` beside torch's ``coalesce`` of all updates, one after another."""

from __future__ import annotations

import numpy as np
import pytest
import sparseagg as sa
import torch
from random_gradients import NUM_CASES, Case, random_case


def coalesced(case: Case) -> torch.Tensor:
    keys = np.concatenate([keys for keys, _ in case.updates])
    rows = np.concatenate([rows for _, rows in case.updates])
    shape = (case.num_rows, case.row_width)
    return torch.sparse_coo_tensor(torch.from_numpy(keys[None]), torch.from_numpy(rows), shape).coalesce()


def summed(case: Case, **options) -> sa.TensorResult:
    spec = sa.RoundSpec([sa.TensorSpec("v", case.dtype, num_rows=case.num_rows, row_width=case.row_width)], **options)
    updates = []
    for keys, rows in case.updates:
        shape = (case.num_rows, case.row_width)
        updates.append({"v": torch.sparse_coo_tensor(torch.from_numpy(keys[None]), torch.from_numpy(rows), shape)})
    return sa.aggregate(updates, spec)["v"]


@pytest.mark.parametrize("seed", range(NUM_CASES))
def test_sums_are_those_of_coalesce(seed: int) -> None:
    print(f"seed {seed}")
    case = random_case(seed)
    theirs, ours = coalesced(case), summed(case)
    assert ours.keys.tolist() == theirs.indices()[0].tolist()
    our_rows, their_rows = ours.values.reshape(-1, case.row_width), theirs.values().numpy()
    if case.is_exact:
        np.testing.assert_array_equal(our_rows, their_rows)
    else:  # theirs: each of n additions rounds to the dtype
        n = sum(len(keys) for keys, _ in case.updates)
        sizes = coalesced(case._replace(updates=[(keys, np.abs(rows)) for keys, rows in case.updates])).values().numpy()
        assert (np.abs(our_rows - their_rows) <= n * np.finfo(case.dtype).eps * sizes).all()
    back = ours.to_torch()
    assert back.is_coalesced()
    np.testing.assert_array_equal(back.to_dense().numpy(), ours.dense())


def test_sums_are_taken_in_the_dtype_there_and_in_float64_here() -> None:
    case = Case(
        "float32", 1, 1, [(np.zeros(1, np.int64), np.full((1, 1), v, np.float32)) for v in (2.0**24, 1, 1)], True
    )
    assert coalesced(case).values().tolist() == [[2.0**24]]
    assert summed(case).values.tolist() == [2.0**24 + 2]


def test_bfloat16_stops_growing_there_and_is_exact_here() -> None:
    ones = torch.sparse_coo_tensor(
        torch.zeros((1, 4096), dtype=torch.int64), torch.ones(4096, dtype=torch.bfloat16), (1,)
    )
    assert ones.coalesce().values().tolist() == [256.0]
    spec = sa.RoundSpec([sa.TensorSpec("v", "bfloat16", num_rows=1)])
    assert np.asarray(sa.aggregate([ones], spec)["v"].values, np.float64).tolist() == [4096.0]


def test_values_that_are_not_finite_are_summed_there_and_refused_here() -> None:
    case = Case("float32", 2, 1, [(np.array([1]), np.array([[np.inf]], np.float32))], True)
    assert coalesced(case).values().tolist() == [[np.inf]]
    with pytest.raises(sa.InvalidArgumentError, match="inf"):
        summed(case)
    assert summed(case, on_nonfinite="propagate").values.tolist() == [np.inf]


def test_cancelled_keys_stay_in_both() -> None:
    updates = [(np.array([1]), np.full((1, 1), value, np.float32)) for value in (1.0, -1.0)]
    case = Case("float32", 2, 1, updates, True)
    assert coalesced(case).indices()[0].tolist() == summed(case).keys.tolist() == [1]
