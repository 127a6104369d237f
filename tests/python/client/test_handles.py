"""Rounds and clients in other processes: handles, pickles, forked and spawned children."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import pathlib
import pickle
import subprocess
import sys
from concurrent import futures

import grpc
import pytest
import sparseagg as sa
from sparseagg._internal.client.endpoint import parsed_handle

ONE = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=10)])
UPDATE = ([1, 2], [1.0, 2.0])
PATIENCE_S = 60


def submit_to_handle(handle: str, client_id: int) -> bool:
    with sa.Round.from_handle(handle) as opened:
        return opened.submit(client_id, UPDATE).duplicate


def submit_to_round(opened: sa.Round, client_id: int) -> bool:
    return opened.submit(client_id, UPDATE).duplicate


def submit_by_client(client: sa.Client, name: str, client_id: int) -> bool:
    return client.get_round(name).submit(client_id, UPDATE).duplicate


def submit_with_asyncio(opened: sa.aio.Round, client_id: int) -> bool:
    async def job() -> bool:
        async with opened:
            return (await opened.submit(client_id, UPDATE)).duplicate

    return asyncio.run(job())


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("address", [":local:", "address"])
def test_children_submit_by_handle_and_by_pickle(server, method, address):
    # In a process of its own: gRPC does not support a fork once a process has used its asyncio API, as other tests do.
    here = pathlib.Path(__file__)
    code = f"import {here.stem} as tests; tests.submit_from_children({method!r}, {address!r}, {server.address!r})"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=here.parent, timeout=4 * PATIENCE_S)


def submit_from_children(method: str, address: str, server_address: str) -> None:
    context = multiprocessing.get_context(method)
    with sa.Client(server_address if address == "address" else address) as client:
        opened = client.create_round(ONE)
        opened.submit("parent", UPDATE)  # so that a forked child finds connections
        with futures.ProcessPoolExecutor(2, mp_context=context) as children:
            jobs = [
                children.submit(submit_to_handle, opened.handle, 0),
                children.submit(submit_to_round, opened, 1),
                children.submit(submit_by_client, client, opened.name, 2),
                children.submit(submit_to_round, opened, 1),
            ]
            assert [job.result(PATIENCE_S) for job in jobs].count(True) == 1
            twin = asyncio.run(_get(client.address, opened.name))
            assert not children.submit(submit_with_asyncio, twin, 3).result(PATIENCE_S)
        assert opened.finish()["v"].values.tolist() == [5.0, 10.0]


async def _get(address: str, name: str) -> sa.aio.Round:
    async with sa.aio.Client(address) as client:
        return await client.get_round(name)


def test_memory_round_in_a_forked_child_says_so():
    def child(pipe, opened):
        try:
            opened.submit("child", UPDATE)
        except sa.SparseaggError as error:
            pipe.send(error)

    here, there = multiprocessing.Pipe(duplex=False)
    with sa.Client(":memory:") as client:
        opened = client.create_round(ONE)
        process = multiprocessing.get_context("fork").Process(target=child, args=(there, opened))
        process.start()
        assert here.poll(PATIENCE_S)
        error = here.recv()
        process.join(PATIENCE_S)
        assert isinstance(error, sa.errors.FailedPreconditionError)
        assert 'rounds of ":memory:" are of the process that has made their client' in str(error)
        assert len(opened.finish()["v"]) == 0


@pytest.mark.parametrize("shell", [sa.Client, sa.aio.Client])
def test_memory_rounds_have_no_handle_and_no_pickle(shell):
    client = shell(":memory:")
    opened = client.create_round(ONE) if shell is sa.Client else asyncio.run(client.create_round(ONE))
    with pytest.raises(sa.errors.FailedPreconditionError, match=r'^a round of ":memory:" has no handle'):
        _ = opened.handle
    for thing in (client, opened):
        with pytest.raises(
            sa.errors.FailedPreconditionError, match=r'^a client of ":memory:" and its rounds cannot be pickled'
        ):
            pickle.dumps(thing)
    with pytest.raises(sa.InvalidArgumentError, match='":memory:" takes no public_address'):
        shell(":memory:", public_address="host:1")


def test_client_with_credentials_cannot_be_pickled():
    client = sa.Client("localhost:1", tls=grpc.ssl_channel_credentials())
    with pytest.raises(sa.errors.FailedPreconditionError, match="credentials of gRPC and its rounds cannot be pickled"):
        pickle.dumps(client)


@pytest.mark.parametrize("shell", [sa.Client, sa.aio.Client])
def test_pickled_client_has_the_arguments(shell, self_signed):
    options = {
        "token": "secret",
        "tls": self_signed[1],
        "timeout": 3.0,
        "retry": sa.RetryPolicy(attempts=2),
        "chunk_bytes": 1000,
        "connections": 2,
        "options": [("grpc.enable_http_proxy", 0)],
        "public_address": "far:2",
    }
    client = shell("localhost:1", **options)
    copy = pickle.loads(pickle.dumps(client))
    assert type(copy) is shell
    assert copy.address == "localhost:1"
    assert copy._connection.endpoint == client._connection.endpoint
    unset = {"tenant": None, "insecure_token": False}
    assert copy._connection.endpoint.arguments() == {"address": "localhost:1", **unset, **options}
    assert "secret" not in repr(copy._connection.endpoint)


def test_handle_names_the_public_address(server):
    with sa.Client(server.address) as client, sa.Client(server.address, public_address="[::1]:9") as behind:
        opened = client.create_round(ONE, "r.1")
        assert opened.handle == f"sparseagg://{server.address}/rounds/r.1"
        assert behind.get_round("r.1").handle == "sparseagg://[::1]:9/rounds/r.1"
        assert pickle.loads(pickle.dumps(behind.get_round("r.1"))).handle == "sparseagg://[::1]:9/rounds/r.1"
        with sa.Round.from_handle(opened.handle, timeout=5) as again:
            assert (again.handle, again.spec) == (opened.handle, opened.spec)


@pytest.mark.parametrize("address", ["host:1", "[::1]:8001", "unix:/tmp/a/rounds/b", "dns:///localhost:8001"])
def test_handle_is_parsed_whatever_the_address(address):
    with sa.Client(address) as client:
        handle = client._connection.endpoint.handle("rounds/r-1")
    assert parsed_handle("rounds", handle) == (address, "rounds/r-1")


@pytest.mark.parametrize(
    ("handle", "text"),
    [
        (5, "a handle must be a string, got 5"),
        ("localhost:1", "a handle must be \"sparseagg://host:port/rounds/ID\", as of Round.handle, got 'localhost:1'"),
        ("sparseagg://localhost:1/rounds/", "a handle must be"),
        ("sparseagg://localhost:1/rounds/a b", "a handle must be"),
        ("http://localhost:1/rounds/a", "a handle must be"),
        ("sparseagg://localhost/rounds/a", 'an address must be "host:port"'),
    ],
)
def test_what_is_no_handle_is_refused(handle, text):
    with pytest.raises(sa.InvalidArgumentError, match=text):
        sa.Round.from_handle(handle)
    with pytest.raises(sa.InvalidArgumentError, match=text):
        asyncio.run(sa.aio.Round.from_handle(handle))


@pytest.mark.parametrize("shell", [sa.Client, sa.aio.Client])
def test_public_address_of_no_server_is_refused(shell):
    with pytest.raises(sa.InvalidArgumentError, match=r"a public_address must be .* got 'far'"):
        shell("localhost:1", public_address="far")


def test_from_handle_of_a_round_that_is_gone_is_not_found(client):
    opened = client.create_round(ONE)
    opened.delete()
    with pytest.raises(sa.errors.NotFoundError, match=r"^no round"):
        sa.Round.from_handle(opened.handle)


def test_release_closes_a_connection_of_the_rounds_own_alone(client):
    opened = client.create_round(ONE)
    with opened as same:
        assert same is opened
    assert opened.refresh().state == "open"
    for own in (sa.Round.from_handle(opened.handle), pickle.loads(pickle.dumps(opened))):
        own.submit("a", UPDATE)
        own._release()
        own._release()
        with pytest.raises(sa.errors.FailedPreconditionError, match="this client is closed"):
            own.refresh()


def num_sockets() -> int:
    links = (os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
    return sum(os.readlink(link).startswith("socket:") for link in links if os.path.islink(link))


def test_rounds_that_are_dropped_release_their_connections(client):
    opened = client.create_round(ONE)
    before = num_sockets()
    for _ in range(20):
        pickle.loads(pickle.dumps(opened)).refresh()
    gc.collect()
    assert num_sockets() < before + 10
