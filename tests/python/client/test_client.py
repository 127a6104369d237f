"""The client against a real server: rounds, submissions, results, and what is refused."""

from __future__ import annotations

import concurrent.futures

import numpy as np
import pytest
import sparseagg as sa
from every_client import SHELLS, one, settled
from sparseagg._internal.wire import encode


@pytest.mark.parametrize("resumable", [False, True])
def test_round_update_in_many_chunks_is_one_submission(server, resumable):
    rng = np.random.default_rng(5)
    keys = rng.integers(0, 5000, 20_000)
    rows = rng.integers(-1000, 1000, (20_000, 3)).astype(np.float32)
    expected = np.zeros((5000, 3))
    np.add.at(expected, keys, rows)
    with sa.Client(server.address, chunk_bytes=10_000) as client:
        opened = client.create_round(one(num_rows=5000, row_width=3))
        submission = opened.submit("a", {"v": (keys, rows)}, resumable=resumable, progress=True)
        assert submission.num_tuples == 20_000
        merged = opened.finish()["v"]
    assert merged.keys.tolist() == np.unique(keys).tolist()
    assert np.array_equal(merged.dense(), expected)


def test_list_rounds_all_oldest_first(client):
    made = [client.create_round(one()).name for _ in range(130)]  # more than a page
    listed = [found.name for found in client.list_rounds()]
    assert [name for name in listed if name in made] == made
    for name in made:
        client.get_round(name).delete()


def test_aggregate_many_chunks_equals_a_round(server):
    rng = np.random.default_rng(6)
    updates = {
        f"client-{i}": {"v": (rng.integers(0, 3000, 4000), rng.standard_normal((4000, 2)).astype(np.float32))}
        for i in range(5)
    }
    spec = one(num_rows=3000, row_width=2, op="coordinate_mean")
    with sa.Client(server.address, chunk_bytes=5000) as client:
        at_once = client.aggregate(updates, spec)["v"]
        opened = client.create_round(spec)
        for name in reversed(updates):
            opened.submit(name, updates[name])
        merged = opened.finish()["v"]
    assert at_once.keys.tobytes() == merged.keys.tobytes()
    assert at_once.values.tobytes() == merged.values.tobytes()


def test_client_many_threads_and_rounds_at_once(client):
    spec = one("float64", num_rows=200, op="sum", return_counts=True)
    opened = [client.create_round(spec) for _ in range(4)]

    def submit(task: tuple[int, int]) -> None:
        which, k = task
        opened[which].submit(f"client-{k}", {"v": (np.arange(k, 200), np.full(200 - k, 0.1 * (which + 1)))})

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(submit, [(which, k) for k in range(50) for which in range(4)]))
    names = sorted(f"client-{k}" for k in range(50))
    for which, one_round in enumerate(opened):
        merged = one_round.finish()["v"]
        assert merged.counts.tolist() == [min(key + 1, 50) for key in range(200)]
        total = 0.0
        for _ in names:
            total += 0.1 * (which + 1)
        assert merged.values[199] == total


@SHELLS
@pytest.mark.parametrize("resumable", [False, True])
def test_submit_raises_what_making_a_chunk_raises(server, monkeypatch, shell, resumable):
    update = fail_after(monkeypatch, 2)
    with settled(shell, server.address, chunk_bytes=1000) as client:
        opened = client.create_round(one(num_rows=1000))
        with pytest.raises(MemoryError, match="no room for this chunk"):
            opened.submit("a", update, resumable=resumable)
        with pytest.raises(MemoryError, match="no room for this chunk"):
            client.aggregate([update], one(num_rows=1000))
        assert opened.refresh().num_submissions == 0


def fail_after(monkeypatch: pytest.MonkeyPatch, slices: int) -> tuple[np.ndarray, np.ndarray]:
    """An update of more slices than that, making one of which fails."""
    made = []

    def failing(*arguments):
        made.append(arguments)
        if len(made) > slices:
            raise MemoryError("no room for this chunk")
        return whole(*arguments)

    whole = encode._slice
    monkeypatch.setattr(encode, "_slice", failing)
    return np.arange(1000), np.ones(1000, np.float32)
