"""The cost of rounds on a server grows in proportion to tensors, chunks, clients, rounds and tasks: the server's, and
the client's of most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import sparseagg as sa
from growth import ONE, UPDATE, check_linear, cpu_clock, many_rounds, round_of_tensors, spec_of, update_of
from http_calls import LOCAL, request
from real_server import ServerProcess

FLAGS = ("--max-tensors", "0", "--max-open-rounds", "0")


@pytest.fixture(scope="module", params=["in memory", "on disk"])
def roomy(request, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with room for many tensors and rounds."""
    folder = tmp_path_factory.mktemp("server")
    kept = () if request.param == "in memory" else ("--data-dir", str(folder / "data"), "--durability", "memory")
    running = ServerProcess(folder / "log", *FLAGS, *kept)
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def connected(roomy: ServerProcess) -> Iterator[sa.Client]:
    with sa.Client(roomy.address) as client:
        yield client


def create_of_tensors(client: sa.Client, n: int) -> Callable[[], object]:
    spec = spec_of(n)
    return lambda: client.create_round(spec).delete()


def aggregate_of_tensors(client: sa.Client, n: int) -> Callable[[], object]:
    spec, update = spec_of(n), update_of(n)
    return lambda: client.aggregate([update], spec)


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
    create_of_tensors: 1000,
    round_of_tensors: 1000,
    aggregate_of_tensors: 1000,
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


# ---- what the status page reads costs the server in proportion to rounds and tensors ----


def rounds(client: sa.Client, n: int) -> None:
    for _ in range(n):
        client.create_round(ONE)


def tensors(client: sa.Client, n: int) -> None:
    client.create_round(spec_of(n))


@pytest.mark.parametrize(("make", "n"), [(rounds, 200), (tensors, 1000)])
def test_cost_of_the_list_of_rounds_is_in_proportion(make, n, tmp_path):
    flags = (*LOCAL, "--max-tensors", "0", "--max-open-rounds", "0")
    servers = {size: ServerProcess(tmp_path / f"{size}.log", *flags) for size in (n, 4 * n)}
    for size, server in servers.items():
        with sa.Client(server.address) as client:
            make(client, size)

    def read(size: int) -> Callable[[], object]:
        def run() -> None:
            token = ""
            while True:
                path = f"/v1/rounds?page_size=100&page_token={token}"
                answer = request(servers[size].http_address, "GET", path)
                assert answer.status == 200, answer.body
                token = answer.json.get("nextPageToken", "")
                if not token:
                    return

        return run

    clocks = [cpu_clock(server.process.pid) for server in servers.values()]
    try:
        check_linear(read, n, lambda: sum(clock() for clock in clocks))
    finally:
        assert [server.stop() for server in servers.values()] == [0, 0]
