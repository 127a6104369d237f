"""The aggregator in this process: merged, used by several threads, and spent."""

from __future__ import annotations

import concurrent.futures
import subprocess
import sys
import threading
import types

import numpy as np
import pytest
import sparseagg as sa
from every_client import digest, one
from test_engine import floats


def test_aggregator_merge_refuses_what_does_not_fit():
    a, b = sa.Aggregator(one()), sa.Aggregator(one())
    a.add("x", (np.array([1]), floats(1)))
    b.add("x", (np.array([1]), floats(1)))
    with pytest.raises(sa.errors.AlreadyExistsError, match="'x'"):
        a.merge(b)
    with pytest.raises(sa.InvalidArgumentError, match="itself"):
        a.merge(a)
    with pytest.raises(sa.InvalidArgumentError, match="'v'"):
        a.merge(sa.Aggregator(one(num_rows=11)))
    with pytest.raises(sa.InvalidArgumentError, match="'v'"):
        a.merge(sa.Aggregator(one(op="mean")))
    with pytest.raises(sa.InvalidArgumentError, match="NoneType"):
        a.merge(None)
    w = sa.TensorSpec("w", "float32", num_rows=10)
    with pytest.raises(sa.InvalidArgumentError, match="'w'"):
        a.merge(sa.Aggregator(sa.RoundSpec([*one().tensors, w])))
    with pytest.raises(sa.InvalidArgumentError, match="order"):
        sa.Aggregator(sa.RoundSpec([*one().tensors, w])).merge(sa.Aggregator(sa.RoundSpec([w, *one().tensors])))
    # Said in another place, it is the same.
    b = sa.Aggregator(sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=10, op="sum")]))
    b.add("y", (np.array([1]), floats(2)))
    a.merge(b)
    assert a.finish()["v"].values.tolist() == [3.0]


def test_aggregator_adds_from_several_threads():
    rng = np.random.default_rng(8)
    spec = one(num_rows=5000)
    updates = {f"c{i}": (rng.integers(0, 5000, 500), rng.random(500).astype(np.float32)) for i in range(64)}
    aggregator = sa.Aggregator(spec, threads=2)
    todo = list(updates.items())

    def work() -> None:
        while True:
            try:
                name, update = todo.pop()
            except IndexError:
                return
            aggregator.add(name, update)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert aggregator.memory_bytes > 0
    assert digest(aggregator.finish()) == digest(sa.aggregate(updates, spec))


class SlowList(list):
    """Its length takes a while, so that other threads come in between."""

    def __len__(self) -> int:
        for _ in range(10_000):
            pass
        return super().__len__()


def test_aggregator_add_all_by_several_threads_gives_positions_once():
    aggregator = sa.Aggregator(one(), threads=1)
    update = (np.array([1], np.uint32), floats(1))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(aggregator.add_all, SlowList([update])) for _ in range(200)]:
                done.result()
    finally:
        sys.setswitchinterval(interval)
    assert aggregator.finish()["v"].values.tolist() == [200]


def test_aggregator_below_its_minimum_takes_more_and_one_that_is_spent_says_so():
    first, second = sa.Aggregator(one(min_submissions=2)), sa.Aggregator(one(min_submissions=2))
    for name, aggregator in (("a", first), ("b", second)):
        aggregator.add(name, (np.array([1]), floats(1)))
        with pytest.raises(sa.errors.FailedPreconditionError, match="there are 1 submissions, below min_submissions 2"):
            aggregator.finish()
    first.merge(second)
    with pytest.raises(sa.errors.FailedPreconditionError, match="finished or merged away"):
        second.finish()
    assert first.finish()["v"].values.tolist() == [2]
    with pytest.raises(sa.errors.FailedPreconditionError, match="finished or merged away"):
        first.finish()


class Module:
    """A torch module as far as we look at one; a step of training overwrites its gradients."""

    def __init__(self) -> None:
        self.weight = types.SimpleNamespace(grad=np.zeros(3, np.float32))

    def named_parameters(self):
        return [("v", self.weight)]

    def step(self, value: float) -> Module:
        self.weight.grad[:] = value
        return self


def test_gradients_of_a_module_are_those_of_the_step_they_were_given_at(client):
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=3)])
    module = Module()
    aggregator = sa.Aggregator(spec)
    for step in range(3):
        aggregator.add(f"c{step}", module.step(step))
    results = [aggregator.finish()]
    for aggregate in (client.aggregate, sa.aggregate):
        results.append(aggregate((module.step(step) for step in range(3)), spec))
        results.append(aggregate(((module.step(step), 1.0) for step in range(3)), spec))
    for result in results:
        assert result["v"].values.tolist() == [3.0] * 3


CHANGES = {
    "shuffled": lambda keys: np.random.default_rng(3).shuffle(keys),
    "beyond num_rows": lambda keys: keys.__setitem__(-1, 2**32 - 1),
    "all the same": lambda keys: keys.fill(7),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("result", ["sparse", "dense"])
@pytest.mark.parametrize("numerics", [{}, {"numerics": "binned"}])
@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
def test_keys_count_as_they_were_when_they_were_added(change, result, numerics, dtype):
    rng = np.random.default_rng(4)
    spec = one(num_rows=100_000, result_layout=result, **numerics)
    rows = rng.uniform(-1, 1, 50_000).astype(np.float32)
    keys = {f"c{i}": np.sort(rng.choice(100_000, 50_000, replace=False)).astype(dtype) for i in range(4)}
    expected = sa.aggregate({name: (column, rows) for name, column in keys.items()}, spec)
    aggregator = sa.Aggregator(spec, threads=2)
    for name, column in keys.items():
        aggregator.add(name, (column, rows))
        change(column)
    assert digest(aggregator.finish()) == digest(expected)


def test_an_iterator_may_fill_the_same_keys_again_if_it_is_read_one_by_one():
    keys = np.arange(50_000, dtype=np.uint32)

    def updates():
        yield keys, floats(*range(50_000))
        keys[:] = keys[::-1].copy()
        yield np.arange(3), floats(1, 2, 3)

    result = sa.aggregate(updates(), one(num_rows=60_000), memory_limit=1 << 30)["v"]
    assert result.values[:5].tolist() == [1.0, 3.0, 5.0, 3.0, 4.0]


# Merges updates of keys that another thread overwrites meanwhile, by keys that ascend and by keys that do not.
_OVERWRITTEN = """
import sys
import threading
import numpy as np
import sparseagg as sa

SIZE = 100_000
spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=2 * SIZE)])
values = np.ones(SIZE, np.float32)
keys = [np.arange(0, 2 * SIZE, 2, dtype=sys.argv[1]) for _ in range(4)]
rng = np.random.default_rng(5)
anything = rng.integers(0, 2**32, SIZE).astype(sys.argv[1])
others = [keys[0] + 1, rng.permutation(keys[0]), anything, keys[0].copy()]
if sys.argv[1] == "int64":
    others.append(anything - 2**20)
WORDS = ("is not below num_rows", "is not in [0, 200000)", "keys changed during the call")
stop = threading.Event()

def overwrite():
    while not stop.is_set():
        for other in others:
            for array in keys:
                array[:] = other

def outcome(merge):
    try:
        return len(merge()["v"]) > 0
    except sa.InvalidArgumentError as error:
        return any(words in str(error) for words in WORDS)

def added():
    aggregator = sa.Aggregator(spec, threads=2)
    for name, column in zip("abcd", keys):
        aggregator.add(name, (column, values))
    return aggregator.finish()

writer = threading.Thread(target=overwrite)
writer.start()
try:
    for _ in range(40):
        assert outcome(lambda: sa.aggregate([(column, values) for column in keys], spec, threads=2))
        assert outcome(added)
finally:
    stop.set()
    writer.join()
"""


@pytest.mark.parametrize("dtype", ["uint32", "int64"])
def test_keys_that_another_thread_overwrites_are_merged_or_refused(dtype):
    subprocess.run([sys.executable, "-c", _OVERWRITTEN, dtype], check=True, timeout=120)


def test_aggregator_result_beyond_the_memory_says_how_large_it_is():
    def finish(_):
        raise MemoryError("std::bad_alloc")

    small = sa.TensorSpec("small", "float32", num_rows=9)
    told = f"; the dense result of tensor 'v' alone takes {2**45} bytes"
    for dtype, result, more in (("float64", "dense", told), ("int32", "dense", told), ("float64", "auto", "")):
        aggregator = sa.Aggregator(
            sa.RoundSpec([small, sa.TensorSpec("v", dtype, num_rows=2**40, row_width=4)], result_layout=result)
        )
        aggregator._engine = types.SimpleNamespace(finish=finish)  # there may be machines that have so much
        with pytest.raises(sa.errors.ResourceExhaustedError, match=f"^out of memory: std::bad_alloc{more}$"):
            aggregator.finish()


def test_withdrawal_after_a_memory_limit_has_made_sums_is_refused():
    limited = sa.Aggregator(sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=1 << 20)]), memory_limit=64 << 20)
    keys = np.arange(1 << 20, dtype=np.uint32)
    for name in "abcdefghijkl":
        limited.add(name, (keys, np.ones(len(keys), np.float32)))
    with pytest.raises(sa.errors.FailedPreconditionError, match="merged to stay within the memory_limit"):
        limited.withdraw("l")
    assert limited.num_submissions == 12
