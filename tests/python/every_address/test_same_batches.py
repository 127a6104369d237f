"""A batch counts as its submissions would, one by one, at every address."""

from __future__ import annotations

import numpy as np
import pytest
import sparseagg as sa
from every_client import SEED, digest, one

CLIENTS = [f"client {number}" for number in np.random.default_rng(SEED).permutation(40)]
SPEC = sa.RoundSpec(
    [sa.TensorSpec("v", "float32", num_rows=50, row_width=2), sa.TensorSpec("u", "float32", num_rows=99, op="union")],
    op="mean",
    weighting="by_weight",
)


@pytest.mark.parametrize("chunk_bytes", [None, 700])
def test_batch_has_the_bits_and_receipts_of_its_submissions(connect, address, chunk_bytes):
    """Of other specs, and held to the reference: test_differential.py."""
    print(f"seed {SEED}")
    rng = np.random.default_rng(SEED)
    counts = rng.integers(0, 9, (2, len(CLIENTS)))
    v, u = (np.split(rng.integers(0, 50, sum(each)), np.cumsum(each)[:-1]) for each in counts)
    weights = rng.random(len(CLIENTS))
    rows = [rng.standard_normal((len(keys), 2)).astype(np.float32) for keys in v]
    updates = {name: ({"v": (v[at], rows[at]), "u": (u[at], None)}, weights[at]) for at, name in enumerate(CLIENTS)}
    offsets = [np.concatenate([[0], np.cumsum(each)]) for each in counts]
    columns = {"v": (offsets[0], np.concatenate(v), np.concatenate(rows)), "u": (offsets[1], np.concatenate(u), None)}
    opened = connect(address, chunk_bytes=chunk_bytes).create_round(SPEC)
    for duplicates in (0, len(CLIENTS)):
        receipt = opened.submit_batch(CLIENTS, columns, weights)
        assert (receipt.num_submissions, receipt.num_duplicates, receipt.refused) == (len(CLIENTS), duplicates, {})
    assert receipt.num_tuples == counts.sum()
    assert digest(opened.finish()) == digest(sa.aggregate(updates, SPEC))


def test_batch_refuses_one_client_and_takes_the_others(any_client):
    opened = any_client.create_round(one("float32", 10))
    opened.submit("taken", ([1], [5.0]))
    receipt = opened.submit_batch(["a", "bad", "taken"], {"v": ([0, 1, 2, 3], [1, 2, 3], [1.0, np.inf, 1.0])})
    assert receipt.num_submissions == 1
    assert {name: type(error).__name__ for name, error in receipt.refused.items()} == {
        "bad": "InvalidArgumentError",
        "taken": "AlreadyExistsError",
    }
    assert "inf" in str(receipt.refused["bad"])
    assert opened.finish()["v"].values.tolist() == [6.0]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((["a"], {"v": ([0, 1, 2], [1, 2], [1.0, 2.0])}), "offsets of 1 clients must be 2 integers"),
        ((["a"], {"v": ([0, 1], [1, 2], [1.0, 2.0])}), "must ascend from 0 to the number of keys, 2"),
        ((["a", "b"], {"v": ([0, 2, 1], [1], [1.0])}), "must ascend"),
        ((["a"], {"v": ([1], [1.0])}), r"must be \(offsets, keys, rows\)"),
        ((["a"], [1]), "must be a mapping from tensor names"),
        ((["a"], {"w": ([0, 1], [1], [1.0])}), "'w'"),
        ((["a\nb"], {"v": ([0, 1], [1], [1.0])}), "control character"),
        (([1.5], {"v": ([0, 1], [1], [1.0])}), "a client id must be a string or an integer"),
        ((["a"], {"v": ([0, 1], [1], [1.0])}, [1, 2]), "weights of 1 clients must be 1 numbers"),
    ],
)
def test_batch_that_does_not_fit_is_refused_before_it_is_sent(any_client, arguments, text):
    opened = any_client.create_round(one("float32", 10))
    with pytest.raises(sa.InvalidArgumentError, match=text):
        opened.submit_batch(*arguments)
    assert opened.refresh().num_submissions == 0
