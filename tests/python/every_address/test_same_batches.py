"""A batch counts as its submissions would, one by one, at every address."""

from __future__ import annotations

import numpy as np
import pytest
import sparseagg as sa
from every_client import SEED, digest, one

CLIENTS = [f"client {number}" for number in np.random.default_rng(SEED).permutation(40)]


def columns(spec: sa.RoundSpec, num_clients: int = len(CLIENTS)) -> dict[str, tuple]:
    rng = np.random.default_rng([SEED, num_clients])
    made = {}
    for tensor in spec.tensors:
        counts = rng.integers(0, 9, num_clients)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        keys = rng.integers(0, tensor.num_rows or 1 << 63, offsets[-1])
        rows = rng.standard_normal((offsets[-1], tensor.row_width)).astype(tensor.dtype)
        made[tensor.name] = (offsets, keys, None if tensor.op == "union" else rows)
    return made


def one_by_one(opened, spec: sa.RoundSpec, batch: dict[str, tuple], weights) -> sa.Result:
    for at, client_id in enumerate(CLIENTS):
        update = {}
        for name, (offsets, keys, rows) in batch.items():
            part = slice(offsets[at], offsets[at + 1])
            if part.stop > part.start:
                update[name] = keys[part], None if rows is None else rows[part]
        opened.submit(client_id, update, None if weights is None else weights[at])
    return opened.finish()


SPECS = {
    "float32": one("float32", 500, 3, return_counts=True),
    "hashed": one("float64", 0, 1),
    "weighted": one("float32", 500, 2, op="mean", weighting="by_weight", return_weights=True),
    "two": sa.RoundSpec(
        [sa.TensorSpec("v", "float32", num_rows=50), sa.TensorSpec("u", "float32", num_rows=99, op="union")]
    ),
}


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("chunk_bytes", [None, 700])
def test_batch_has_the_bits_of_its_submissions(connect, address, client, name, chunk_bytes):
    print(f"seed {SEED}")
    spec = SPECS[name]
    batch = columns(spec)
    weights = np.random.default_rng(SEED).random(len(CLIENTS)) if name == "weighted" else None
    expected = one_by_one(client.create_round(spec), spec, batch, weights)
    opened = connect(address, chunk_bytes=chunk_bytes).create_round(spec)
    receipt = opened.submit_batch(CLIENTS, batch, weights)
    assert (receipt.num_submissions, receipt.num_duplicates, receipt.refused) == (len(CLIENTS), 0, {})
    assert receipt.num_tuples == sum(len(keys) for _, keys, _ in batch.values())
    again = opened.submit_batch(CLIENTS, batch, weights)
    assert (again.num_submissions, again.num_duplicates) == (len(CLIENTS), len(CLIENTS))
    assert digest(opened.finish()) == digest(expected)


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
