"""Sparse arrays with inconsistent pointers and indices are refused, and no reader follows them."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse
import sparseagg as sa
from fake_libraries import FakeTorch
from sparseagg._internal.updates.arrays import tensor_data

DAMAGE = pathlib.Path(__file__).parents[1] / "support" / "foreign_damage.py"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_damaged_scipy_is_read_right_or_refused(seed):
    command = [sys.executable, str(DAMAGE), "scipy", str(seed), "1500"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-300:]}\n{done.stderr[-1000:]}"


def csr(pointers, indices, values):
    matrix = scipy.sparse.csr_matrix((3, 2), dtype=np.float32)
    matrix.indptr, matrix.indices, matrix.data = np.array(pointers), np.array(indices), np.array(values)
    return matrix


@pytest.mark.parametrize(
    ("pointers", "indices", "words"),
    [
        ([0, 9, 9, 9], [0], r"must end at 1 entries; got 9"),
        ([0, 1 << 62, 1, 1], [0], r"must not descend"),
        ([1, 1, 1, 1], [0], r"must begin with 0; got 1"),
        ([0, 1, 1], [0], r"has 3 entries, but 3 lines need 4"),
        ([0, 1, 1, 1], [2], r"indices must be in \[0, 2\); got 2 at position 0"),
        ([0, 1, 1, 1], [-1], r"indices must be in \[0, 2\); got -1 at position 0"),
        ([0.0, 1.0, 1.0, 1.0], [0], r"must be integers, got float64"),
    ],
)
def test_inconsistent_pointers_are_refused(pointers, indices, words):
    given = [csr(pointers, indices, [5.0]), FakeTorch(csr=(pointers, indices, [5.0]), shape=(3, 2))]
    for matrix in given:
        with pytest.raises(sa.InvalidArgumentError, match=f"tensor 'v': cannot read .*{words}"):
            tensor_data(sa.TensorSpec("v", "float32", num_rows=3, row_width=2), matrix)


def test_scipy_room_behind_the_last_entry_is_not_read():
    data = tensor_data(
        sa.TensorSpec("v", "float32", num_rows=3, row_width=2), csr([0, 1, 1, 2], [1, 0, 7], [5.0, 6.0, 7.0])
    )
    assert (data.keys.tolist(), data.values.tolist()) == ([0, 2], [[0.0, 5.0], [6.0, 0.0]])
