"""Clients of a cluster's round: they go home by themselves, or follow the server that sends them there."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import socket

import grpc
import numpy as np
import pytest
import sparseagg as sa
from scripted_server import error_info
from sparseagg._internal.client.connection import Connection
from sparseagg._internal.spec.bounds import ClusterSpec, HomeServer, home_of
from sparseagg.v1 import aggregation_pb2 as pb

SPEC = sa.RoundSpec([sa.TensorSpec("w", "float32", num_rows=1000)], op="sum")
CLIENTS = [f"client-{i}" for i in range(10)]
UPDATE = {"w": ([1, 2], np.ones(2, np.float32))}
LARGE = {"w": (np.arange(1000), np.ones(1000, np.float32))}


@pytest.fixture
def servers(start_server):
    return [start_server(), start_server()]


@pytest.fixture
def rounds(servers):
    homes = tuple(HomeServer(each.address) for each in servers)
    opened = []
    for index, server in enumerate(servers):
        client = sa.Client(server.address, chunk_bytes=512)
        opened.append(client.create_round(dataclasses.replace(SPEC, cluster=ClusterSpec(homes, index)), "spread"))
    return opened


@pytest.fixture(params=["by the list", "by the answer"])
def way(request, monkeypatch):
    if request.param == "by the answer":  # as if the client had not looked at the round's list
        monkeypatch.setattr(Connection, "at_home", lambda self, *_: self)
    return request.param


def check_homes(rounds, clients=CLIENTS):
    for index, opened in enumerate(rounds):
        assert {each.client_id for each in opened.submissions()} == {e for e in clients if home_of(e, 2) == index}


@pytest.mark.parametrize("options", [{}, {"resumable": True, "submission_id": "one"}], ids=["stream", "chunks"])
@pytest.mark.parametrize("update", [UPDATE, LARGE], ids=["small", "large"])
def test_submissions_go_home(rounds, way, options, update):
    for number, client_id in enumerate(CLIENTS):
        assert rounds[number % 2].submit(client_id, update, **options).client_id == client_id
        assert rounds[1 - number % 2].submit(client_id, update, **options).duplicate
    check_homes(rounds)
    assert rounds[0].withdraw(CLIENTS[0])
    assert rounds[1].withdraw(CLIENTS[1])
    check_homes(rounds, CLIENTS[2:])
    assert [each.refresh().num_refused for each in rounds] == [0, 0]


def test_asyncio_goes_home(rounds, servers, way):
    async def submit():
        async with sa.aio.Client(servers[0].address, chunk_bytes=512) as client:
            opened = await client.get_round("spread")
            await asyncio.gather(*(opened.submit(client_id, LARGE) for client_id in CLIENTS))

    asyncio.run(submit())
    check_homes(rounds)


def test_batches_are_divided(rounds):
    offsets = np.arange(len(CLIENTS) + 1)
    receipt = rounds[0].submit_batch(CLIENTS, {"w": (offsets, offsets[:-1], np.ones(len(CLIENTS), np.float32))})
    assert (receipt.num_submissions, receipt.refused) == (10, {})
    check_homes(rounds)
    assert sorted(each.num_tuples for opened in rounds for each in opened.submissions()) == [1] * 10


def test_batch_at_the_wrong_server_is_refused_by_submission(rounds, monkeypatch):
    monkeypatch.setattr(Connection, "at_home", lambda self, *_: self)
    offsets = np.arange(len(CLIENTS) + 1)
    receipt = rounds[0].submit_batch(CLIENTS, {"w": (offsets, offsets[:-1], np.ones(len(CLIENTS), np.float32))})
    assert set(receipt.refused) == {each for each in CLIENTS if home_of(each, 2) == 1}
    assert all("the home of client" in str(error) for error in receipt.refused.values())


def test_several_addresses_of_which_one_serves(rounds, servers):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        dead = f"127.0.0.1:{nobody.getsockname()[1]}"
        with sa.Client(f"{dead},{servers[1].address}") as client:
            opened = client.get_round("spread")
            for client_id in CLIENTS:
                opened.submit(client_id, UPDATE)
            handle = opened.handle
        with sa.Round.from_handle(handle) as again:
            assert again.submit(CLIENTS[0], UPDATE).duplicate
        with sa.Client(f"{dead},{dead}") as client, pytest.raises(sa.errors.UnavailableError, match="nothing listens"):
            client.server_info()
    check_homes(rounds)


def test_two_servers_that_name_each_other_are_no_circle(servers):
    """Two lists that differ: each server takes the other one for everybody's home."""
    homes = tuple(HomeServer(each.address) for each in servers)
    client_id = next(each for each in CLIENTS if home_of(each, 2) == 0)
    swapped = (homes[1], homes[0])
    for server, order, index in ((servers[0], swapped, 1), (servers[1], homes, 1)):
        with sa.Client(server.address) as client:
            client.create_round(dataclasses.replace(SPEC, cluster=ClusterSpec(order, index)), "circle")
    with sa.Client(servers[0].address) as client:
        with pytest.raises(sa.errors.FailedPreconditionError, match=servers[0].address) as raised:
            client.get_round("circle").submit(client_id, UPDATE)
        assert raised.value.code.name == "FAILED_PRECONDITION"


@pytest.mark.parametrize(
    ("home", "text"),
    [
        (HomeServer("user@host:1"), r"cluster.servers\[0\].address"),
        (HomeServer("host:1", "http://host:1/path"), r"cluster.servers\[0\].http_url"),
        (HomeServer("host:1", "javascript://host:1"), r"cluster.servers\[0\].http_url"),
    ],
)
def test_servers_that_are_no_addresses_are_refused(client, home, text):
    with pytest.raises(sa.errors.InvalidArgumentError, match=text):
        client.create_round(dataclasses.replace(SPEC, cluster=ClusterSpec((home,), 0)))


def test_specs_that_make_no_sense():
    with pytest.raises(sa.errors.InvalidArgumentError, match="index"):
        ClusterSpec((HomeServer("a:1"),), 1)
    with pytest.raises(sa.errors.InvalidArgumentError, match="HomeServer"):
        ClusterSpec(())
    with sa.Client(":memory:") as memory, pytest.raises(sa.errors.InvalidArgumentError, match="cluster"):
        memory.create_round(dataclasses.replace(SPEC, cluster=ClusterSpec((HomeServer("a:1"),))))


class Sender(grpc.GenericRpcHandler):
    """A server that has one round and sends every client elsewhere."""

    def __init__(self, cluster: ClusterSpec | None, home: str) -> None:
        spec = SPEC.with_options(cluster=cluster)  # which no server takes, with some of the homes
        self.round = pb.Round(name="rounds/spread", spec=spec._to_proto())
        self.round.state = pb.ROUND_STATE_OPEN
        self.home = home

    def service(self, details):
        answers = {"GetRound": self.round, "GetServerInfo": pb.ServerInfo()}
        answer = answers.get(details.method.rpartition("/")[2])

        def send(_requests, context):
            if answer is None:
                info = error_info("HOME_ELSEWHERE", address=self.home)
                context.set_trailing_metadata((info,))
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, "another server is the home")
            return answer.SerializeToString()

        if answer is None and details.method.endswith("SubmitUpdate"):
            return grpc.stream_unary_rpc_method_handler(send)
        return grpc.unary_unary_rpc_method_handler(send)


@pytest.fixture
def trap():
    """A server that counts the calls that it gets."""
    calls: list[str] = []

    class Trap(grpc.GenericRpcHandler):
        def service(self, details):
            calls.append(details.method)

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(1), handlers=[Trap()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port, calls
    server.stop(None)


@pytest.mark.parametrize("listed", [None, "127.0.0.1:1", "unix:/tmp/sparseagg-home", "127.0.0.1:{}"])
@pytest.mark.parametrize("update", [UPDATE, LARGE], ids=["small", "large"])
def test_no_answer_sends_a_client_elsewhere(trap, way, listed, update):
    """Rounds of no cluster; servers that the round does not list; sockets and loopback of the client's own machine."""
    port, calls = trap
    cluster = None if listed is None else ClusterSpec((HomeServer("a:1"), HomeServer(listed.format(port))))
    client_id = next(each for each in CLIENTS if home_of(each, 2) == 1)
    home = f"127.0.0.1:{port}" if listed is None or listed.endswith(":1") else listed.format(port)
    sender = grpc.server(concurrent.futures.ThreadPoolExecutor(2), handlers=[Sender(cluster, home)])
    # Not an address of the loopback as clients know it.
    address = f"0.0.0.0:{sender.add_insecure_port('127.0.0.1:0')}"
    sender.start()
    try:
        with sa.Client(address, token="secret", insecure_token=True, chunk_bytes=512) as client:
            opened = client.get_round("spread")
            with pytest.raises(sa.errors.FailedPreconditionError, match=r"another server is the home|does not go"):
                opened.submit(client_id, update)
            with pytest.raises(sa.errors.FailedPreconditionError, match=r"another server is the home|does not go"):
                opened.withdraw(client_id)
    finally:
        sender.stop(None)
    assert calls == []


def test_a_home_gets_no_token_in_clear(rounds, servers):
    """The first server is on this machine, where a token may be in clear; the home is not."""
    homes = (HomeServer(servers[0].address), HomeServer("192.0.2.1:8001"))
    client_id = next(each for each in CLIENTS if home_of(each, 2) == 1)
    with sa.Client(servers[0].address, token="secret") as client:
        opened = client.create_round(dataclasses.replace(SPEC, cluster=ClusterSpec(homes)))
        with pytest.raises(sa.errors.InvalidArgumentError, match=r"everybody on the way to 192\.0\.2\.1"):
            opened.submit(client_id, UPDATE)
