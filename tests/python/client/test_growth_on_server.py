"""The cost of rounds on a server grows in proportion to tensors, chunks, clients, rounds and tasks: the server's, and
the client's of most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import sparseagg as sa
from growth import ONE, UPDATE, check_linear, cpu_clock, many_rounds, round_of_tensors
from real_server import ServerProcess

FLAGS = ("--max-tensors", "0", "--max-open-rounds", "0")


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server on disk with room for many tensors and rounds."""
    folder = tmp_path_factory.mktemp("server")
    kept = ("--data-dir", str(folder / "data"), "--durability", "memory")
    running = ServerProcess(folder / "log", *FLAGS, *kept)
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def connected(roomy: ServerProcess) -> Iterator[sa.Client]:
    with sa.Client(roomy.address) as client:
        yield client


def round_of_chunks(client: sa.Client, n: int) -> Callable[[], object]:
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=1 << 20)])
    keys = np.random.default_rng(1).permutation(1 << 20)[: 100 * n]
    update = (keys, np.ones(len(keys), np.float32))
    cutting = sa.Client(client.address, chunk_bytes=900)

    def run() -> None:
        opened = cutting.create_round(spec)
        opened.submit("a", update)
        opened.finish()
        opened.delete()

    return run


def round_of_clients(client: sa.Client, n: int) -> Callable[[], object]:
    def run() -> None:
        opened = client.create_round(ONE)
        for i in range(n):
            opened.submit(i, UPDATE)
        assert len(list(opened.submissions())) == n
        opened.finish(only=[str(i) for i in range(0, n, 2)])
        opened.delete()

    return run


def aggregate_of_clients(client: sa.Client, n: int) -> Callable[[], object]:
    updates = [UPDATE] * n
    return lambda: client.aggregate(updates, ONE)


def many_tasks(client: sa.Client, n: int) -> Callable[[], object]:
    def run() -> None:
        client.create_tasks([sa.NewTask(payload=b"x")] * n)
        for i in range(n):
            client.complete_task(client.lease_task(f"w{i}"))

    return run


SIZES = {
    round_of_tensors: 1000,
    round_of_chunks: 400,
    round_of_clients: 300,
    aggregate_of_clients: 1000,
    many_rounds: 200,
    many_tasks: 300,
}


@pytest.mark.parametrize("make", SIZES, ids=lambda make: make.__name__)
def test_cost_of_client_and_server_is_in_proportion(make, connected, roomy):
    clocks = (time.process_time, cpu_clock(roomy.process.pid))
    check_linear(lambda n: make(connected, n), SIZES[make], *clocks)
