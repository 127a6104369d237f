"""The cost of rounds in this process grows in proportion to tensors, clients and rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sparseagg as sa
from growth import ONE, ROWS, UPDATE, check_linear, many_rounds, round_of_tensors, spec_of, update_of
from sparseagg._internal.local.aggregate import left_to_sums

Work = Callable[[int], Callable[[], object]]


def of_spec(use: Callable[[sa.RoundSpec, int], object]) -> Work:
    """Uses a spec of n tensors, which is made before."""

    def make(n: int) -> Callable[[], object]:
        spec = spec_of(n)
        return lambda: use(spec, n)

    return make


def of_update(use: Callable[[sa.RoundSpec, Any], object], make_update: Callable[[int], Any] = update_of) -> Work:
    """Uses a spec of n tensors and an update."""

    def make(n: int) -> Callable[[], object]:
        spec, update = spec_of(n), make_update(n)
        return lambda: use(spec, update)

    return make


def name_arrays_of_a_model(n: int) -> Callable[[], object]:
    arrays = [np.zeros(2, np.float32) for _ in range(n // 2)]
    model = {f"t{i}": arrays[i // 2] for i in range(n)}  # each array by two names
    names = list(model)
    return lambda: sa.RoundSpec.like(model, sparse=names[::4], elements=names[2::4])


def use_a_result(n: int) -> Callable[[], object]:
    spec = spec_of(n)
    result = sa.aggregate([update_of(n)], spec)
    model = {f"t{i}": np.zeros(10, np.float32) for i in range(n)}

    def use() -> None:
        result.add_to(model)
        sa.Aggregator(spec).add("a", result)

    return use


# The work for n tensors, and a number of them.
OF_TENSORS: dict[str, tuple[Work, int]] = {
    "make a spec": (lambda n: lambda: sa.RoundSpec._from_proto(spec_of(n)._to_proto()), 2000),
    "name arrays of a model": (name_arrays_of_a_model, 2000),
    "find sums": (of_spec(lambda spec, _: left_to_sums(spec)), 4000),
    "make an aggregator": (of_spec(lambda spec, _: sa.Aggregator(spec)), 2000),
    "aggregate": (of_update(lambda spec, update: sa.aggregate([update, update], spec)), 5000),
    "within a limit": (of_update(lambda spec, update: sa.aggregate([update] * 2, spec, memory_limit=1 << 30)), 2000),
    "convert": (
        of_update(
            lambda spec, update: sa.Aggregator(spec).add("a", update),
            lambda n: {f"t{i}": ([1, 3], ROWS) for i in range(n)},
        ),
        2000,
    ),
    "merge aggregators": (of_spec(lambda spec, _: sa.Aggregator(spec).merge(sa.Aggregator(spec))), 2000),
    "use a result": (use_a_result, 2000),
    "round in memory": (lambda n: round_of_tensors(sa.Client(":memory:"), n), 2000),
}


@pytest.mark.parametrize("name", OF_TENSORS)
def test_cost_is_in_proportion_to_tensors(name):
    check_linear(*OF_TENSORS[name])


def add_one_by_one(n: int) -> None:
    aggregator = sa.Aggregator(ONE)
    for i in range(n):
        aggregator.add(i, UPDATE)
    aggregator.finish()


def merge_one_by_one(n: int) -> None:
    whole = sa.Aggregator(ONE)
    for i in range(n):
        part = sa.Aggregator(ONE)
        part.add(i, UPDATE)
        whole.merge(part)
    whole.finish()


def leave_out_all_but_one(n: int) -> None:
    with sa.Client(":memory:") as client:
        opened = client.create_round(ONE)
        for i in range(n):
            opened.submit(i, UPDATE)
        assert opened.finish(only=["0"]).info.num_submissions == 1


def fold_within_a_limit(n: int) -> None:
    keys, rows = np.arange(0, 4000, 2), np.ones(2000, np.float32)
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=4000)])
    sa.aggregate(((keys, rows) for _ in range(n)), spec, memory_limit=300_000)


# The work for n clients or rounds.
OF_OTHERS: dict[str, tuple[Callable[[int], object], int]] = {
    "aggregate a list": (lambda n: sa.aggregate([UPDATE] * n, ONE), 10_000),
    "aggregate a mapping": (lambda n: sa.aggregate(dict.fromkeys(range(n), UPDATE), ONE, memory_limit=1 << 30), 10_000),
    "fold within a limit": (fold_within_a_limit, 500),
    "add one by one": (add_one_by_one, 2000),
    "merge one by one": (merge_one_by_one, 2000),
    "leave out all but one": (leave_out_all_but_one, 500),
    "rounds in memory": (lambda n: many_rounds(sa.Client(":memory:"), n)(), 500),
}


@pytest.mark.parametrize("name", OF_OTHERS)
def test_cost_is_in_proportion_to_clients_and_rounds(name):
    work, number = OF_OTHERS[name]
    check_linear(lambda n: lambda: work(n), number)
