"""What the status page reads costs the server in proportion to rounds and tensors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sparseagg as sa
from growth import ONE, check_linear, cpu_clock, spec_of
from http_calls import LOCAL, request
from real_server import ServerProcess


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
