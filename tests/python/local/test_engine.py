"""The engine in this process (aggregate, Aggregator), held to the reference, the golden vectors and the server."""

from __future__ import annotations

import functools
import json
import subprocess
import sys

import golden
import numpy as np
import pytest
import sparseagg as sa
from every_client import digest, one
from golden_cases import cases
from google.protobuf import json_format
from random_rounds import is_weighted
from sparseagg._internal.client.result_reader import ResultReader
from sparseagg._internal.wire.columns import Page
from sparseagg.v1 import aggregation_pb2 as pb

GOLDEN = {case["name"]: case for case in json.loads(golden.PATH.read_text(encoding="utf-8"))["cases"]}


# Golden submissions that are spoilt or rounded on their way over the wire have no counterpart here.
GOLDEN_CASES = [
    case
    for case in cases()
    if all(client.spoil is None for client in case.clients) and not case.wire.values and not case.result.values
]


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize("case", GOLDEN_CASES, ids=lambda case: case.name)
def test_engine_gives_the_golden_results(case):
    entry = GOLDEN[case.name]
    code, text = entry.get("expectedCode", 0), entry.get("expectedMessageContains", "").rpartition("chunk")[0]

    def check(call) -> None:
        with pytest.raises(sa.SparseaggError) as refused:
            call()
        assert refused.value.code.value[0] == code
        assert text in str(refused.value)

    if not case.clients:
        check(lambda: sa.Aggregator(case.spec))
        return
    aggregator = sa.Aggregator(case.spec)
    for client in case.clients:
        # A server ignores a weight that no tensor uses; here it would be refused.
        is_used = client.id == case.refused or is_weighted(case.spec.tensors, case.spec.weighting)
        add = functools.partial(aggregator.add, client.id, client.tensors, client.weight if is_used else None)
        if client.id == case.refused:
            check(add)
        else:
            add()
    if code and case.refused is None:
        check(aggregator.finish)
        return
    result = aggregator.finish()
    reader = ResultReader()
    for page in entry["expected"]:
        reader.add(Page.of(json_format.ParseDict(page, pb.ResultPage())))
    assert digest(result) == digest(reader.result(result.info))


def test_engine_list_positions_are_ids_in_the_order_of_numbers():
    # As text, "10" would come before "9"; and 1e30 swallows the ones that come before −1e30.
    spec = one("float64", 1)
    values = [1e30, -1e30, *[1.0] * 9]
    updates = [(np.array([0]), np.array([value])) for value in values]
    assert sa.aggregate(updates, spec)["v"].values.tolist() == [9.0]
    assert sa.aggregate(iter(updates), spec)["v"].values.tolist() == [9.0]
    assert sa.aggregate(updates[2:] + updates[:2], spec)["v"].values.tolist() == [0.0]


def test_engine_takes_tensors_in_any_order():
    tensors = [sa.TensorSpec(name, "float32", num_rows=10) for name in "abc"]
    update = {"c": (np.array([3]), floats(3)), "a": (np.array([1]), floats(1))}
    result = sa.aggregate([update, update], sa.RoundSpec(tensors))
    assert {name: (t.keys.tolist(), t.values.tolist()) for name, t in result.items()} == {
        "a": ([1], [2]),
        "b": ([], []),
        "c": ([3], [6]),
    }


def test_engine_limits_of_the_spec_hold():
    add = [(np.array([1, 2]), floats(1, 2)), (np.array([1]), floats(1))]
    with pytest.raises(sa.errors.FailedPreconditionError, match="max_submissions 1"):
        sa.aggregate(add, one(max_submissions=1))
    with pytest.raises(sa.errors.FailedPreconditionError, match="min_submissions 3"):
        sa.aggregate(add, one(min_submissions=3))
    with pytest.raises(sa.InvalidArgumentError, match="min_submissions 3"):
        sa.Aggregator(one(min_submissions=3, max_submissions=2))
    with pytest.raises(sa.errors.ResourceExhaustedError, match="max_tuples_per_submission 1"):
        sa.aggregate(add, one(max_tuples_per_submission=1))
    with pytest.raises(sa.errors.ResourceExhaustedError, match="max_bytes_per_submission 15"):
        sa.aggregate(add, one(max_bytes_per_submission=15))
    assert len(sa.aggregate(add, one(max_bytes_per_submission=16, max_submissions=2))["v"]) == 2


MERGE_BY_MANY_THREADS = """
import os, sys, threading
import numpy as np, sparseagg as sa

threads = 4 * os.cpu_count()
spec = sa.RoundSpec([sa.TensorSpec("t", "float32", num_rows=1 << 22)])
updates = [(np.arange(1 << 22, dtype=np.uint32), np.ones(1 << 22, np.float32))] * 4
most = 0
merging = threading.Thread(target=lambda: [sa.aggregate(updates, spec, threads=threads) for _ in range(3)])
merging.start()
while merging.is_alive():
    most = max(most, len(os.listdir("/proc/self/task")))
print(most - threads)
"""


def test_more_threads_than_cores_are_there_and_nothing_is_said_of_it() -> None:
    done = subprocess.run([sys.executable, "-c", MERGE_BY_MANY_THREADS], capture_output=True, text=True, check=True)
    assert (int(done.stdout) >= 0, done.stderr) == (True, "")
