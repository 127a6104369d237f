"""The engine in this process within a memory limit: more updates than fit, and the same bits."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import sparseagg as sa
from sparseagg._internal.commands.cli import main

NUM_ROWS = 50_000
CLIENTS = 60
LIMIT = 3 << 20  # a sixth of what the updates take


def spec(**options) -> sa.RoundSpec:
    return sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=NUM_ROWS)], return_counts=True, **options)


def update(client: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(client)
    keys = np.unique(rng.integers(0, NUM_ROWS, 70_000)).astype(np.uint32)
    # Sums of these depend on their order.
    return keys, (rng.standard_normal(len(keys)) * 10.0 ** rng.integers(-9, 9, len(keys))).astype(np.float32)


@pytest.fixture(scope="module")
def expected() -> sa.TensorResult:
    return sa.aggregate([update(client) for client in range(CLIENTS)], spec())["v"]


def assert_same(result: sa.Result, expected: sa.TensorResult) -> None:
    found = result["v"]
    for name in ("keys", "values", "counts"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), strict=True)


def updates_as(kind: str):
    if kind == "list":
        return [update(client) for client in range(CLIENTS)]
    if kind == "iterator":
        return (update(client) for client in range(CLIENTS))
    return {f"{client:020}": update(client) for client in np.random.default_rng(1).permutation(CLIENTS)}


@pytest.mark.parametrize("kind", ["list", "iterator", "mapping in any order"])
def test_limit_leaves_no_trace(expected, kind):
    assert_same(sa.aggregate(updates_as(kind), spec(), memory_limit=LIMIT), expected)


def test_limit_is_kept_after_every_update(expected):
    aggregator = sa.Aggregator(spec(), memory_limit=LIMIT, threads=2)
    held = []
    for client in range(CLIENTS):
        aggregator.add(f"{client:020}", update(client))
        held.append(aggregator.memory_bytes)
    assert max(held) <= LIMIT
    assert np.diff(held).min() < 0, "nothing was folded: this test no longer does what it is for"
    assert_same(aggregator.finish(), expected)


def test_limit_asks_an_iterator_for_one_update_at_a_time():
    aggregator = sa.Aggregator(spec(), memory_limit=LIMIT)
    added = []

    def updates():
        for client in range(5):
            added.append(aggregator.num_submissions)
            yield update(client)

    aggregator.add_all(updates())
    assert added == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", [list, dict])
def test_limit_has_one_batch_converted_at_a_time(kind):
    aggregator = sa.Aggregator(spec(), memory_limit=LIMIT)
    added = []

    class Values:
        """Float64 values, which are converted."""

        def __array__(self, *_, **__):
            added.append(aggregator.num_submissions)
            return np.ones(NUM_ROWS)

    assert NUM_ROWS * 8 > LIMIT / 16
    updates = [(np.arange(NUM_ROWS), Values()) for _ in range(5)]
    aggregator.add_all(updates if kind is list else {f"{i}": update for i, update in enumerate(updates)})
    assert added == [0, 1, 2, 3, 4]


def test_client_out_of_order_is_refused_and_the_others_stand(expected):
    aggregator = sa.Aggregator(spec(), memory_limit=LIMIT)
    for client in range(1, CLIENTS):
        aggregator.add(f"{client:020}", update(client))
    with pytest.raises(sa.errors.FailedPreconditionError, match=r"'0{20}' comes before.*ascending order"):
        aggregator.add(f"{0:020}", update(0))
    assert aggregator.num_submissions == CLIENTS - 1
    assert_same(aggregator.finish(), sa.aggregate([update(client) for client in range(1, CLIENTS)], spec())["v"])


def test_binned_sums_take_any_order():
    binned = spec(numerics="binned")
    everything = updates_as("mapping in any order")
    aggregator = sa.Aggregator(binned, memory_limit=LIMIT)
    for client, data in everything.items():
        aggregator.add(client, data)
        assert aggregator.memory_bytes <= LIMIT
    assert_same(aggregator.finish(), sa.aggregate(everything, binned)["v"])


def test_rows_beyond_the_limit_are_refused():
    with pytest.raises(sa.errors.ResourceExhaustedError, match=r"client '0{19}0', .*beyond the memory_limit 100000"):
        sa.aggregate([update(0)], spec(), memory_limit=100_000)


def test_dense_result_beyond_the_limit_is_refused_beforehand():
    dense = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=1 << 50)], result_layout="dense")
    with pytest.raises(sa.errors.ResourceExhaustedError, match="beyond the memory_limit 1000"):
        sa.Aggregator(dense, memory_limit=1000)


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "1GiB", 1 << 63])
def test_what_is_no_limit_is_refused(limit):
    with pytest.raises(sa.InvalidArgumentError, match="memory_limit must be a number of bytes"):
        sa.Aggregator(spec(), memory_limit=limit)


# Prints by how many bytes the merge raised the process's peak, of updates that take 240 MB. Their makers' own memory is
# in the peak before.
PEAK = """
import json, sys
import numpy as np
import sparseagg as sa

def updates():
    for client in range(60):
        keys = np.arange(client % 3, 1_000_000, 2, dtype=np.uint32)
        yield keys, np.full(len(keys), client + 0.5, np.float32)

def peak():
    with open("/proc/self/status") as status:  # getrusage counts what the parent had, too
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM:"))

for _ in updates():
    pass
before = peak()
spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=1_000_000)])
result = sa.aggregate(updates(), spec, memory_limit=int(sys.argv[1]) or None)
print(json.dumps([peak() - before, float(result["v"].values.sum())]))
"""


def peak_of(limit: int) -> tuple[int, float]:
    ran = subprocess.run([sys.executable, "-c", PEAK, str(limit)], capture_output=True, text=True, check=True)
    grown, total = json.loads(ran.stdout)
    return grown, total


def test_process_stays_within_the_limit_and_the_working_memory_of_merges():
    working_memory = 64 << 20
    limit = 80 << 20
    grown, total = peak_of(limit)
    unlimited, expected_total = peak_of(0)
    assert total == expected_total
    assert unlimited > limit + working_memory, "the updates fit: this test no longer does what it is for"
    assert grown <= limit + working_memory


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [f"{client:02}.npz" for client in range(20)]
    for client, name in enumerate(names):
        keys, values = update(client)
        np.savez(name, **{"v.keys": keys, "v.values": values})
    return names


def test_command_merges_more_files_than_fit_in_any_order(files):
    assert main(["merge", *files, "--num-rows", str(NUM_ROWS), "-o", "expected.npz"]) == 0
    limited = ["--num-rows", str(NUM_ROWS), "--memory-limit", "3 MiB", "--weights", ",".join(["1"] * len(files))]
    assert main(["merge", *reversed(files), *limited, "-o", "limited.npz"]) == 0
    with np.load("expected.npz") as expected, np.load("limited.npz") as found:
        assert expected.files == found.files
        for name in expected.files:
            np.testing.assert_array_equal(expected[name], found[name], strict=True)


@pytest.mark.parametrize("size", ["many", "3 MB", "-1", "1.5GiB"])
def test_command_refuses_what_is_no_size(files, size, capsys):
    with pytest.raises(SystemExit):
        main(["merge", *files, f"--memory-limit={size}", "-o", "merged.npz"])
    assert "a size must be a number of bytes, or of KiB" in capsys.readouterr().err


def test_command_says_what_a_limit_has_no_room_for(files, capsys):
    assert main(["merge", *files, "--num-rows", str(NUM_ROWS), "--memory-limit", "100KiB", "-o", "merged.npz"]) == 1
    assert "beyond the memory_limit 102400" in capsys.readouterr().err


OVERCOMMIT = pathlib.Path("/proc/sys/vm/overcommit_memory")


@pytest.mark.skipif(
    not OVERCOMMIT.exists() or OVERCOMMIT.read_text().strip() == "1", reason="this system promises any memory"
)
def test_dense_result_beyond_all_memory_is_refused_without_a_limit():
    of_64_tib = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=2**44)], result_layout="dense")
    with pytest.raises(sa.errors.ResourceExhaustedError, match="memory"):
        sa.aggregate([([1], [1.0])], of_64_tib)
