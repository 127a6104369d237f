"""How calls are spread over connections, which of them a proxy carries, and how operations of the client wait."""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import pathlib
import threading
from typing import Any

import grpc
import numpy as np
import pytest
import sparseagg as sa
from every_client import settled
from sparseagg._internal.client.channels import ChannelPool, channel_options
from sparseagg._internal.client.transport import AsyncioTransport, run
from sparseagg.v1 import aggregation_pb2 as pb


class Opener:
    """Opens channels to where nobody is, which is found out only when they are used."""

    def __init__(self) -> None:
        self.opened: list[Any] = []

    def __call__(self) -> Any:
        self.opened.append(grpc.insecure_channel("127.0.0.1:1"))
        return self.opened[-1]


def test_least_busy_at_the_same_time_opens_more_up_to_the_most() -> None:
    opener = Opener()
    channels = ChannelPool(opener, 3)
    loans = [channels.least_busy() for _ in range(7)]
    stubs = [loan.__enter__() for loan in loans]
    assert len(opener.opened) == 3
    assert [stubs.count(stub) for stub in stubs] == [3, 2, 2, 3, 2, 2, 3]
    for i in (1, 4):  # both loans of the second channel
        loans[i].__exit__(None, None, None)
    with channels.least_busy() as stub:
        assert stub is stubs[1]
    assert channels.close() == opener.opened


@pytest.mark.parametrize("lend", ["first", "least_busy"])
def test_channels_closed_while_on_loan_say_so(lend: str) -> None:
    channels = ChannelPool(Opener(), 2)

    def call_too_late() -> None:
        with getattr(channels, lend)() as stub:
            for channel in channels.close():
                channel.close()
            stub.GetServerInfo(pb.GetServerInfoRequest())

    with pytest.raises(sa.errors.FailedPreconditionError, match="this client is closed"):
        call_too_late()


@pytest.fixture
def http_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("grpc_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_grpc_proxy", "example.com")


def test_client_reaches_the_loopback_without_a_proxy(server: Any, http_proxy: None) -> None:
    once = sa.RetryPolicy(attempts=1)
    port = server.address.rpartition(":")[2]
    for address in (server.address, f"localhost:{port}", f"dns:///localhost:{port}", f"ipv4:127.0.0.1:{port}"):
        with sa.Client(address, retry=once) as client:
            assert client.server_info().version

    with settled(sa.aio.Client, server.address, retry=once) as client:
        assert client.server_info().version
    proxied = [("grpc.enable_http_proxy", 1)]
    with sa.Client(server.address, retry=once, options=proxied) as client, pytest.raises(sa.errors.UnavailableError):
        client.server_info()


@pytest.mark.parametrize(
    "address", ["10.0.0.1:80", "localhost.example.com:80", "dns:///a.b:80", "ipv4:10.127.0.0.1:80"]
)
def test_channels_to_other_addresses_may_use_a_proxy(address: str) -> None:
    assert dict(channel_options(address, None))["grpc.enable_http_proxy"] == 1


@pytest.mark.parametrize(
    "address",
    ["LOCALHOST:1", "localhost.:1", "[::ffff:127.0.0.1]:1", "[::FFFF:127.1.2.3]:1", "[::1]:1", "dns:///LocalHost:1"],
)
def test_channels_to_the_loopback_by_any_name_use_no_proxy(address: str) -> None:
    assert dict(channel_options(address, None))["grpc.enable_http_proxy"] == 0


def submit_together(client: sa.Client, spec: sa.RoundSpec, updates: list[Any]) -> sa.TensorResult:
    """Submits from eight threads, whose first submissions overlap."""
    rnd = client.create_round(spec)
    together = threading.Barrier(8)

    def submit(k: int) -> None:
        if k < 8:
            together.wait()
        rnd.submit(f"c{k:02}", updates[k])

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(submit, range(len(updates))))
    return rnd.finish()["t"]


def test_submit_over_several_connections_gives_the_same_bits(server: Any) -> None:
    rng = np.random.default_rng(7)
    updates = [
        (np.sort(rng.choice(10_000, 2_000, replace=False)), rng.standard_normal(2_000).astype(np.float32))
        for _ in range(40)
    ]
    spec = sa.RoundSpec(tensors=[sa.TensorSpec("t", dtype="float32", num_rows=10_000)], op="sum")
    with sa.Client(server.address, connections=1) as one, sa.Client(server.address, connections=3) as three:
        over_one, over_three = (submit_together(client, spec, updates) for client in (one, three))
    assert over_one.keys.tobytes() == over_three.keys.tobytes()
    assert over_one.values.tobytes() == over_three.values.tobytes()


def test_run_of_an_operation_that_suspends_is_an_error():
    async def operation() -> None:
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="suspended"):
        run(operation())


def test_blocking_client_works_in_a_thread_with_an_event_loop(server):
    async def job() -> list[float]:
        with sa.Client(server.address) as client:
            rnd = client.create_round(sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=10)]))
            rnd.submit("a", ([3], [1.5]))
            rnd.submit("b", {"v": (np.array([3]), np.array([2.0]))}, resumable=True)
            return rnd.finish()["v"].values.tolist()

    assert asyncio.run(job()) == [3.5]


def test_asyncio_call_that_the_server_ends_early_has_the_servers_status():
    # grpc.aio puts an INTERNAL of its own in the place of about half of these (grpc#36066).
    async def abort(requests: object, context: grpc.aio.ServicerContext) -> None:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "refused", (("a", "b"),))

    async def messages():
        for _ in range(64):
            yield bytes(65536)

    async def job() -> list[tuple[object, ...]]:
        server = grpc.aio.server()
        handlers = {
            "Put": grpc.stream_unary_rpc_method_handler(abort),
            "Talk": grpc.stream_stream_rpc_method_handler(abort),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.S", handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        transport = AsyncioTransport()
        ends = []
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            put, talk = channel.stream_unary("/test.S/Put"), channel.stream_stream("/test.S/Talk")
            for _ in range(25):
                for is_put in (True, False):
                    try:
                        if is_put:
                            await transport.answer(put(messages()))
                        else:
                            await transport.read(talk(messages()), print)
                    except grpc.RpcError as error:
                        ends.append((error.code(), error.details(), tuple(error.trailing_metadata() or ())))
        await server.stop(None)
        return ends

    assert asyncio.run(job()) == [(grpc.StatusCode.INVALID_ARGUMENT, "refused", (("a", "b"),))] * 50


# ---- arguments of clients that make no sense raise InvalidArgumentError, with the argument's name and its value


@pytest.mark.parametrize("twin", [sa.Client, sa.aio.Client])
@pytest.mark.parametrize(
    ("address", "text"),
    [
        (None, "an address must be a string, got None"),
        (8001, "an address must be a string, got 8001"),
        ("http://localhost:8001", r'an address must be "host:port", .* got \'http://localhost:8001\''),
        ("grpc://localhost:8001", "got 'grpc:"),
        ("localhost", "got 'localhost'"),
        ("localhost:", "got 'localhost:'"),
        ("localhost:0", "got 'localhost:0'"),
        ("localhost:65536", "got 'localhost:65536'"),
        ("localhost:8001/", "got 'localhost:8001/'"),
        ("local host:8001", "got 'local host:8001'"),
        ("::1", "got '::1'$"),
        (":locl:", "got ':locl:'; did you mean ':local:'"),
        ("", "got ''"),
    ],
)
def test_address_without_host_or_port_is_refused(twin: Any, address: Any, text: str) -> None:
    with pytest.raises(sa.InvalidArgumentError, match=text):
        twin(address)


@pytest.mark.parametrize("twin", [sa.Client, sa.aio.Client])
@pytest.mark.parametrize(
    ("argument", "value", "text"),
    [
        ("retry", 3, "retry must be a RetryPolicy, or None for the default, got 3"),
        ("options", {}, "options must be a list of pairs .name, value., got {}"),
        ("options", {"ab": 1}, "options must be a list of pairs .name, value., got {'ab': 1}"),
        ("options", ["ab"], "options must be a list of pairs .name, value., got .'ab'."),
        ("options", [(1, "a")], "options must be a list of pairs"),
        ("options", [("grpc.foo", None)], r"options must be a list of pairs .*, got \[\('grpc\.foo', None\)\]"),
        ("options", [("grpc.foo", 1.5)], "options must be a list of pairs"),
        ("tls", 2.5, "tls must be False, True, the path of a PEM file, a TLS, credentials of gRPC, or None, got 2.5"),
        ("tls", 0, "tls must be .*, got 0"),
        ("tls", 1, "tls must be .*, got 1"),
        ("tls", b"x", "tls must be .*, got b'x'"),
        ("tls", "", "tls must be .*, got ''"),
    ],
)
def test_client_of_senseless_arguments_says_so(twin: Any, argument: str, value: Any, text: str) -> None:
    with pytest.raises(sa.InvalidArgumentError, match=text):
        twin("localhost:1", **{argument: value})


@pytest.mark.parametrize("twin", [sa.Client, sa.aio.Client])
@pytest.mark.parametrize("token", ["secret\n", "sécret", "\udcff", 5, b"secret"])
def test_token_that_cannot_be_sent_is_refused_and_not_shown(twin: Any, token: Any) -> None:
    with pytest.raises(sa.InvalidArgumentError, match="a token is a string of printable ASCII") as refused:
        twin("localhost:1", token=token)
    assert "cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"attempts": 0}, "attempts must be a number of calls from 1 on, got 0"),
        ({"attempts": math.inf}, "attempts must be a number of calls from 1 on, got inf"),
        ({"attempts": "3"}, "attempts must be a number of calls from 1 on, got '3'"),
        ({"initial": -1}, "initial must be a number from 0 on, got -1"),
        ({"multiplier": "2"}, "multiplier must be a number from 0 on, got '2'"),
        ({"maximum": math.nan}, "maximum must be a number from 0 on, got nan"),
    ],
)
def test_retry_policy_of_senseless_numbers_says_so(options: dict[str, Any], text: str) -> None:
    with pytest.raises(sa.InvalidArgumentError, match=text):
        sa.RetryPolicy(**options)


@pytest.mark.parametrize("number", [0, -1, 1.5, True, "1", np.float32(5), 10**5000], ids=range(7))
@pytest.mark.parametrize("name", ["chunk_bytes", "connections"])
def test_client_of_what_is_no_number_says_so(name: str, number: Any) -> None:
    for twin in (sa.Client, sa.aio.Client):
        with pytest.raises(sa.InvalidArgumentError, match=f"{name} must be a number from 1 on(, or None)?, got"):
            twin("localhost:1", **{name: number})


@pytest.mark.parametrize("twin", [sa.Client, sa.aio.Client])
def test_file_that_holds_no_certificate_is_refused(twin: Any, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "authority.pem"
    path.write_bytes(b"\x30\x82 the same as DER")
    with pytest.raises(sa.InvalidArgumentError, match=r"tls: .*authority\.pem has no certificate in PEM"):
        twin("localhost:1", tls=path)
