"""Signed ids in tensors that take any 64-bit key: refused as they are, taken as their bits."""

from __future__ import annotations

import numpy as np
import pytest
import sparseagg as sa
from sparseagg._internal.updates.arrays import tensor_data
from sparseagg.history import RowHistory

SPEC = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=0)])
IDS = np.array([-1, 5, np.iinfo(np.int64).min, np.iinfo(np.int64).max], np.int64)
WORDS = (
    r"tensor 'v': key -1 at position {} is negative; keys are unsigned, and signed 64-bit ids keep their bits as "
    r"uint64: keys\.view\(np\.uint64\)$"
)


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, None])
def test_negative_keys_are_refused_with_what_to_write_instead(client, dtype, at):
    keys = [7, 8, 9]
    keys[at] = -1
    update = (keys if dtype is None else np.array(keys, dtype), np.ones(3, np.float32))
    with pytest.raises(sa.InvalidArgumentError, match=WORDS.format(at)):
        sa.aggregate({"a": update}, SPEC)
    with pytest.raises(sa.InvalidArgumentError, match=WORDS.format(at)):
        client.aggregate({"a": update}, SPEC)
    with pytest.raises(sa.InvalidArgumentError, match=WORDS.format(at)):
        tensor_data(SPEC.tensors[0], update)


def test_negative_keys_of_history_are_refused_alike():
    with pytest.raises(sa.InvalidArgumentError, match=r"tensor 'v': key -1 is negative; .* keys\.view"):
        RowHistory({"v": 0}).record(1, {"v": [-1, 3]})


def test_bits_of_signed_ids_come_back(client):
    update = {"v": (IDS.view(np.uint64), np.arange(4, dtype=np.float32))}
    for result in (sa.aggregate([update], SPEC)["v"], client.aggregate([update], SPEC)["v"]):
        ids = result.keys.view(np.int64)
        assert dict(zip(ids.tolist(), result.values.tolist())) == dict(zip(IDS.tolist(), range(4)))
        assert ids.tolist() == [5, IDS.max(), IDS.min(), -1], "in the order of uint64"
        with pytest.raises(sa.errors.FailedPreconditionError, match=r"keys\.view\(np\.int64\)"):
            _ = result.indices
