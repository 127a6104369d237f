"""Batches of tiny submissions without end: they fill the memory for rounds, and no more than that."""

from __future__ import annotations

import concurrent.futures

import numpy as np
import sparseagg as sa
from siege import LIMIT, Watch

THREADS = 6
SUBMISSIONS = 16_000  # of a batch
PATIENCE_S = 120
SPEC = sa.RoundSpec([sa.TensorSpec("t", "float32", num_rows=100)])


def test_batches_stay_within_the_memory_limit(start_server) -> None:
    server = start_server("--memory-limit", str(LIMIT))
    watch = Watch(server.process.pid)
    update = {"t": (np.arange(SUBMISSIONS + 1), np.zeros(SUBMISSIONS, np.uint32), np.ones(SUBMISSIONS, np.float32))}

    def fill(thread: int, name: str) -> int:
        """Submits until the server is full; returns how many submissions count."""
        counted = 0
        with sa.Client(server.address, timeout=PATIENCE_S) as client:
            opened = client.get_round(name)
            for batch in range(1000):
                receipt = opened.submit_batch([f"{thread}-{batch}-{i}" for i in range(SUBMISSIONS)], update)
                counted += receipt.num_submissions
                if receipt.refused:
                    assert {type(error) for error in receipt.refused.values()} == {sa.errors.ResourceExhaustedError}
                    return counted
        raise AssertionError("the server is never full")

    with sa.Client(server.address, timeout=PATIENCE_S) as client:
        opened = client.create_round(SPEC)
        with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
            counted = sum(pool.map(fill, range(THREADS), [opened.name] * THREADS))
        assert opened.refresh().num_submissions == counted
        assert opened.finish()["t"].values.tolist() == [counted]
        opened.delete()
        again = client.create_round(SPEC)
        assert again.submit_batch(["a"], {"t": ([0, 1], [1], [1.0])}).num_submissions == 1
    watch.stop()
    print(f"\n{counted} submissions, peak {watch.most >> 20} MiB of {LIMIT >> 20}")
    assert watch.most <= LIMIT * 1.1
    assert server.stop() == 0
