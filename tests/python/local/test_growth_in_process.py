"""The cost of rounds in this process grows in proportion to tensors, clients and rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sparseagg as sa
from growth import ONE, ROWS, UPDATE, check_linear, many_rounds, round_of_tensors, spec_of, update_of
from sparseagg._internal.local.aggregate import left_to_sums


def to_convert(num_tensors: int) -> dict[str, Any]:
    return {f"t{i}": ([1, 3], ROWS) for i in range(num_tensors)}


def make_spec(n: int) -> Callable[[], object]:
    return lambda: sa.RoundSpec._from_proto(spec_of(n)._to_proto())


def name_arrays_of_a_model(n: int) -> Callable[[], object]:
    arrays = [np.zeros(2, np.float32) for _ in range(n // 2)]
    model = {f"t{i}": arrays[i // 2] for i in range(n)}  # each array by two names
    names = list(model)
    return lambda: sa.RoundSpec.like(model, sparse=names[::4], elements=names[2::4])


def find_sums(n: int) -> Callable[[], object]:
    spec = spec_of(n)
    return lambda: left_to_sums(spec)


def make_aggregator(n: int) -> Callable[[], object]:
    spec = spec_of(n)
    return lambda: sa.Aggregator(spec)


def aggregate(n: int) -> Callable[[], object]:
    spec, update = spec_of(n), update_of(n)
    return lambda: sa.aggregate([update, update], spec)


def aggregate_within_a_limit(n: int) -> Callable[[], object]:
    spec, update = spec_of(n), update_of(n)
    return lambda: sa.aggregate([update, update], spec, memory_limit=1 << 30)


def convert(n: int) -> Callable[[], object]:
    spec, update = spec_of(n), to_convert(n)
    return lambda: sa.Aggregator(spec).add("a", update)


def merge_aggregators_of_many_tensors(n: int) -> Callable[[], object]:
    spec = spec_of(n)
    return lambda: sa.Aggregator(spec).merge(sa.Aggregator(spec))


def use_a_result(n: int) -> Callable[[], object]:
    spec = spec_of(n)
    result = sa.aggregate([update_of(n)], spec)
    model = {f"t{i}": np.zeros(10, np.float32) for i in range(n)}

    def use() -> None:
        result.add_to(model)
        sa.Aggregator(spec).add("a", result)

    return use


def round_in_memory(n: int) -> Callable[[], object]:
    return round_of_tensors(sa.Client(":memory:"), n)


OF_TENSORS = {
    make_spec: 2000,
    name_arrays_of_a_model: 2000,
    find_sums: 4000,
    make_aggregator: 2000,
    aggregate: 5000,
    aggregate_within_a_limit: 2000,
    convert: 2000,
    merge_aggregators_of_many_tensors: 2000,
    use_a_result: 2000,
    round_in_memory: 2000,
}


@pytest.mark.parametrize("make", OF_TENSORS, ids=lambda make: make.__name__)
def test_cost_is_in_proportion_to_tensors(make):
    check_linear(make, OF_TENSORS[make])


def aggregate_a_list(n: int) -> Callable[[], object]:
    updates = [UPDATE] * n
    return lambda: sa.aggregate(updates, ONE)


def aggregate_a_mapping(n: int) -> Callable[[], object]:
    updates = {i: UPDATE for i in range(n)}
    return lambda: sa.aggregate(updates, ONE, memory_limit=1 << 30)


def fold_within_a_limit(n: int) -> Callable[[], object]:
    keys, rows = np.arange(0, 4000, 2), np.ones(2000, np.float32)
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=4000)])
    return lambda: sa.aggregate(((keys, rows) for _ in range(n)), spec, memory_limit=300_000)


def add_one_by_one(n: int) -> Callable[[], object]:
    def run() -> None:
        aggregator = sa.Aggregator(ONE)
        for i in range(n):
            aggregator.add(i, UPDATE)
        aggregator.finish()

    return run


def merge_one_by_one(n: int) -> Callable[[], object]:
    def run() -> None:
        whole = sa.Aggregator(ONE)
        for i in range(n):
            part = sa.Aggregator(ONE)
            part.add(i, UPDATE)
            whole.merge(part)
        whole.finish()

    return run


def leave_out_all_but_one(n: int) -> Callable[[], object]:
    client = sa.Client(":memory:")

    def run() -> None:
        opened = client.create_round(ONE)
        for i in range(n):
            opened.submit(i, UPDATE)
        assert opened.finish(only=["0"]).info.num_submissions == 1

    return run


def rounds_in_memory(n: int) -> Callable[[], object]:
    return many_rounds(sa.Client(":memory:"), n)


OF_OTHERS = {
    aggregate_a_list: 10_000,
    aggregate_a_mapping: 10_000,
    fold_within_a_limit: 500,
    add_one_by_one: 2000,
    merge_one_by_one: 2000,
    leave_out_all_but_one: 500,
    rounds_in_memory: 500,
}


@pytest.mark.parametrize("make", OF_OTHERS, ids=lambda make: make.__name__)
def test_cost_is_in_proportion_to_clients_and_rounds(make):
    check_linear(make, OF_OTHERS[make])
