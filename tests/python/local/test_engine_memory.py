"""How long the engine holds arrays, what it copies, and when it lets go of the interpreter."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest
import sparseagg as sa
from every_client import one
from test_engine import floats
from test_engine_inputs import Exporter, of_bytes


def sorted_update(rng: np.random.Generator, dtype: Any = np.uint32) -> tuple[np.ndarray, np.ndarray]:
    keys = np.arange(0, 2_000_000, 2, dtype=dtype)
    return keys, rng.random(len(keys), dtype=np.float32)


# Prints by how much resident memory grows while 128 MB of input become 8 MB of result.
_MERGE = """
import pathlib, re, sys
import numpy as np
import sparseagg as sa

def resident(name):
    status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.search(name + r":\\s+(\\d+) kB", status)[1]) << 10

def update(count):
    values = np.empty(count, np.float32)
    values.fill(0.5)
    return np.arange(0, 2 * count, 2, dtype=sys.argv[1]), values

spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=2_000_000)])
sa.aggregate([update(1000)], spec)  # what is made once
updates = [update(1_000_000) for _ in range(16)]
pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
before = resident("VmRSS")
result = sa.aggregate(updates, spec, threads=2)["v"]
print(resident("VmHWM") - before)
for array in (result.keys, result.values):
    assert not array.flags.owndata
    assert array.flags.writeable
    assert len(array) == 1_000_000
"""


@pytest.mark.parametrize("dtype", ["uint32", "int32"])
def test_engine_copies_keys_once_and_neither_values_nor_result(dtype):
    merge = subprocess.run([sys.executable, "-c", _MERGE, dtype], check=True, capture_output=True, text=True)
    # The keys, the result, and less than as much again: one copy of it, or of one update, would be more.
    assert 64_000_000 + 8_000_000 <= int(merge.stdout) < 64_000_000 + 16_000_000


# Prints what becomes of an aggregator of two tensors when there is no memory for a while: of each update that comes
# meanwhile, and of merging it with one like it, which have both merged rows before.
_SHORT_OF_MEMORY = """
import pathlib, re, resource, sys
import numpy as np
import sparseagg as sa

COUNT, WIDTH = 500_000, 8
spec = sa.RoundSpec([sa.TensorSpec(name, "int32", num_rows=0, row_width=WIDTH) for name in "ab"])
rows = np.ones((COUNT, WIDTH), np.int32)

def keys(client):
    return np.arange(COUNT, dtype=np.uint64) * 16 + client

def tell(what, *arguments):
    try:
        return what(*arguments) or "ok"
    except sa.SparseaggError as error:
        return type(error).__name__

def limit(bytes_more):
    kilobytes = re.search(r"VmSize:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text(encoding="ascii"))[1]
    most = (int(kilobytes) << 10) + bytes_more if bytes_more else resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))

def sums(aggregator):
    result = aggregator.finish()
    return len(result["a"]), int(result["a"].values.sum()), int(result["b"].values.sum())

adding, left, right = (sa.Aggregator(spec, threads=1) for _ in range(3))
columns = [keys(client) for client in range(8)]
for client in range(4):
    (left, right)[client % 2].add(f"{client}", {name: (columns[client], rows) for name in "ab"})
    (left, right)[client % 2].add(f"{client} again", {name: (columns[client], rows) for name in "ab"})
limit((64 + 16) << 20)  # room for the copies of keys, and hardly more
told = [tell(adding.add, f"{client}", {name: (columns[client], rows) for name in "ab"}) for client in range(8)]
limit(1 << 20)  # no room for the rows that the one takes from the other: it takes them as they lie
merged = tell(left.merge, right)
limit(None)
print(*told, adding.num_submissions, tell(adding.add, "7", {}))
print(merged, tell(right.finish), *sums(left))
print(*sums(adding))
"""


def test_lack_of_memory_loses_nothing_and_counts_nothing_that_was_refused():
    ran = subprocess.run([sys.executable, "-c", _SHORT_OF_MEMORY], check=True, capture_output=True, text=True)
    added, merged, sums = ran.stdout.splitlines()
    *told, num_submissions, again = added.split()
    counted = told.count("ok")
    assert told == ["ok"] * counted + ["ResourceExhaustedError"] * (8 - counted)
    assert counted >= 4  # no merge succeeds, from the second update on
    assert (int(num_submissions), again) == (counted, "AlreadyExistsError" if counted == 8 else "ok")
    assert merged == f"ok FailedPreconditionError {4 * 500_000} {4 * 2 * 8 * 500_000} {4 * 2 * 8 * 500_000}"
    assert sums == f"{counted * 500_000} {counted * 8 * 500_000} {counted * 8 * 500_000}"


def test_aggregator_reads_values_where_they_are():
    keys, values = np.array([1, 2], np.uint32), floats(1, 2)
    aggregator = sa.Aggregator(one())
    aggregator.add("in place", (keys, values))
    aggregator.add("through dlpack", (Exporter(keys), Exporter(values)))
    aggregator.add("copied", (keys, values), copy=True)
    values[0] = 5  # which is not allowed; it shows whose memory is used
    assert aggregator.finish()["v"].values.tolist() == [5 + 5 + 1, 2 + 2 + 2]


@pytest.mark.parametrize("how", ["refused", "unsorted", "dropped", "finished", "merged"])
def test_arrays_are_held_as_long_as_they_are_needed(how):
    keys = {"unsorted": [2, 1], "refused": [1, 11]}.get(how, [1, 2])
    update = {"v": (np.array(keys, np.uint32), floats(1, 2))}
    alive = weakref.ref(update["v"][1])
    aggregator, other = sa.Aggregator(one()), sa.Aggregator(one())
    if how == "refused":
        with pytest.raises(sa.InvalidArgumentError):
            aggregator.add("a", update)
    else:
        aggregator.add("a", update)
    del update
    gc.collect()
    assert (alive() is None) == (how in ("refused", "unsorted"))
    if how == "merged":
        other.merge(aggregator)
        gc.collect()
        assert alive() is not None
        assert other.finish()["v"].values.tolist() == [1, 2]
    elif how == "finished":
        aggregator.finish()
    elif how == "dropped":
        del aggregator
    gc.collect()
    assert alive() is None


def test_binned_sums_let_go_of_arrays_as_it_merges_them():
    rng = np.random.default_rng(2)
    spec = one(num_rows=2_000_000, numerics="binned")
    aggregator = sa.Aggregator(spec)
    first = sorted_update(rng)
    alive = weakref.ref(first[1])
    aggregator.add("0", first)
    del first
    for i in range(1, 12):
        aggregator.add(str(i), sorted_update(rng))
    gc.collect()
    assert alive() is None
    assert len(aggregator.finish()["v"]) == 1_000_000


@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
def test_engine_releases_keys_when_it_has_copied_them(dtype):
    keys, values = sorted_update(np.random.default_rng(3), dtype)
    alive = weakref.ref(keys), weakref.ref(values)
    aggregator = sa.Aggregator(one(num_rows=2_000_000))
    aggregator.add("0", (keys, values))
    del keys, values
    gc.collect()
    assert [reference() is not None for reference in alive] == [False, True]
    assert aggregator.memory_bytes >= 1_000_000 * (4 + 4)  # the copied keys and the borrowed values
    assert len(aggregator.finish()["v"]) == 1_000_000


ATTEMPTS = 100


OF_BYTES = {
    "of bytes": (of_bytes, True),
    "a part of bytes": (lambda keys: of_bytes(np.append(keys, keys))[len(keys) :], True),
    "of bytes, with another type": (lambda keys: of_bytes(keys.astype(np.uint64)), False),
    # NumPy leaves a large array in the bytes that it was unpickled from, and writes to it.
    "unpickled": (lambda keys: pickle.loads(pickle.dumps(keys)), False),
    "of a bytearray": (lambda keys: np.frombuffer(memoryview(bytearray(keys)), keys.dtype), False),
    "in its own memory": (lambda keys: keys.copy(), False),
}


@pytest.mark.parametrize("case", OF_BYTES)
def test_engine_holds_keys_that_nobody_can_change_and_copies_others(case):
    make, is_held = OF_BYTES[case]
    keys, values = make(np.arange(0, 4000, 2, dtype=np.uint32)), np.ones(2000, np.float32)
    memory = keys.base.obj if isinstance(keys.base, memoryview) else keys
    while isinstance(memory, np.ndarray) and memory.base is not None:
        memory = memory.base.obj if isinstance(memory.base, memoryview) else memory.base
    before = sys.getrefcount(memory)
    aggregator = sa.Aggregator(one(num_rows=4000))
    aggregator.add("0", (keys, values))
    assert (sys.getrefcount(memory) > before) == is_held
    assert aggregator.memory_bytes >= 2000 * (4 + 4)
    if keys.flags.writeable:
        keys[:] = 1 << 31  # the merge would write there
    del keys
    gc.collect()
    assert aggregator.finish()["v"].keys.tolist() == list(range(0, 4000, 2))


def released(work: Any, prepare: Any) -> bool:
    """Whether another thread of Python gets to run while `work` does.

    With an endless switch interval a thread gives way only where it releases the GIL itself. So if the main thread ever
    finds the other one between its two marks, then `work` has released it. When the work is short the main thread may
    wake up late, hence the attempts; without a release none of them can succeed.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)
    try:
        for _ in range(ATTEMPTS):
            argument = prepare()
            marks: list[str] = []
            begun = threading.Event()

            def run() -> None:
                begun.set()  # noqa: B023
                marks.append("begun")  # noqa: B023
                work(argument)  # noqa: B023
                marks.append("ended")  # noqa: B023

            thread = threading.Thread(target=run)
            thread.start()
            begun.wait()
            seen = list(marks)
            thread.join()
            if seen == ["begun"]:
                return True
    finally:
        sys.setswitchinterval(interval)
    return False


def test_engine_releases_the_gil():
    rng = np.random.default_rng(4)
    spec = one(num_rows=2_000_000)
    updates = [sorted_update(rng) for _ in range(4)]

    def filled() -> sa.Aggregator:
        aggregator = sa.Aggregator(spec, threads=1)
        aggregator.add_all(updates)
        return aggregator

    assert released(lambda aggregator: aggregator.add("a", updates[0]), lambda: sa.Aggregator(spec, threads=1))
    assert released(lambda aggregator: aggregator.add_all(updates), lambda: sa.Aggregator(spec, threads=1))
    # The extension's own, for the properties that finish() asks for give way as well.
    assert released(lambda aggregator: aggregator._engine.finish([]), filled)
    assert not released(lambda numbers: sum(numbers), lambda: range(100))  # the method itself can fail


# Prints by how much resident memory falls when what a merge has freed is given back.
_RELEASE = """
import pathlib, re
import numpy as np
import sparseagg as sa

def resident():
    status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.search(r"VmRSS:\\s+(\\d+) kB", status)[1]) << 10

spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=8_000_000)])
result = sa.aggregate([np.ones(8_000_000, np.float32)] * 2, spec)["v"]
values = result.values
del result
before = resident()
sa.release_memory()
kept = resident()
assert values.tolist() == [2.0] * 8_000_000
del values
freed = resident()
sa.release_memory()
print(before - kept, freed - resident())
"""


def test_release_memory_gives_back_what_merges_have_freed_and_nothing_else():
    release = subprocess.run([sys.executable, "-c", _RELEASE], check=True, capture_output=True, text=True)
    result_bytes = 4 * 8_000_000
    in_use, freed = map(int, release.stdout.split())
    assert in_use < result_bytes / 2
    assert freed > result_bytes / 2
