"""A batch counts as its submissions would, one by one, at every address."""

from __future__ import annotations

import numpy as np
import pytest
import sparseagg as sa
from every_client import one


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
