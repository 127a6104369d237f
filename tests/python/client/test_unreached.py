"""Clients whose address is not that of a server for them: nobody listens there, or what listens speaks otherwise."""

from __future__ import annotations

import pathlib
import pickle
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import sparseagg as sa
from every_client import SHELLS, settled
from real_server import ServerProcess
from sparseagg._internal.client.obstacles import find_obstacle, may_look
from sparseagg._internal.client.transport import AsyncioTransport, BlockingTransport
from sparseagg._internal.commands import doctor
from sparseagg._internal.commands.cli import main

NO_SERVER = r"^nothing listens at {}: is a server running\? \(.*Connection refused\)$"
EAGER = sa.RetryPolicy(attempts=10**6, initial=0.01, maximum=0.02)
SPEC = sa.RoundSpec([sa.TensorSpec("v", dtype="float32", num_rows=10)])


def info(address: str, shell: type = sa.Client, **options: Any) -> Any:
    with settled(shell, address, **options) as client:
        return client.server_info()


@pytest.fixture
def closed() -> Iterator[str]:
    """An address where nothing listens, and nobody else will for the while."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts, of all clients, in seconds."""
    found: list[float] = []
    for transport in (BlockingTransport, AsyncioTransport):
        sleep = transport.sleep

        async def noted(self: Any, seconds: float, sleep: Any = sleep) -> None:
            found.append(seconds)
            await sleep(self, seconds)

        monkeypatch.setattr(transport, "sleep", noted)
    return found


# Texts tell what was left of 2 s for the call, which a busy machine begins late.
LEFT = r"(2|1\.[5-9]\d*)"


@SHELLS
def test_client_of_a_port_where_nothing_listens_fails_at_once(shell, closed, pauses):
    with pytest.raises(sa.errors.UnavailableError, match=NO_SERVER.format(closed)) as failed:
        info(closed, shell, timeout=60)
    assert not failed.value.cannot_pass
    assert pauses == [0.0], "one attempt"


@pytest.mark.parametrize("address", ["no-such-host.invalid:1", "dns:///no-such-host.invalid:1"])
def test_client_of_an_unknown_host_asks_for_the_address(address, pauses):
    with pytest.raises(
        sa.errors.UnavailableError, match=rf"^there is no host of the name in {address}: is the address right\?"
    ):
        info(address, timeout=60)
    assert pauses == [0.0]


@SHELLS
def test_timeout_of_the_client_is_that_of_all_attempts(shell, closed, pauses):
    expected = rf"^GetServerInfo has had no answer within {LEFT} s: nothing listens at .*: is a server running\? \("
    with pytest.raises(sa.errors.DeadlineExceededError, match=expected):
        info(closed, shell, timeout=2, retry=EAGER)
    assert len(pauses) > 1
    assert sum(pauses) <= 2


@pytest.fixture
def left(start_server) -> str:
    """An address that a server has left, for another one to take."""
    server: ServerProcess = start_server()
    server.kill()
    return server.address


def limit(client: sa.Client, seconds: float) -> None:
    """Changes the timeout of a client, so that a machine that is slow at first does not end the test."""
    object.__setattr__(client._connection.endpoint, "timeout", seconds)


def begun(server: ServerProcess) -> sa.Client:
    client = sa.Client(server.address)
    client.server_info()
    return client


def pickled(server: ServerProcess) -> sa.Client:
    return pickle.loads(pickle.dumps(sa.Client(server.address)))


@pytest.mark.parametrize("make", [begun, pickled])
def test_client_takes_a_server_that_was_there_for_one_that_restarts(make, start_server, pauses):
    server = start_server()
    with make(server) as client:
        pauses.clear()
        limit(client, 2)
        server.kill()
        with pytest.raises(sa.errors.DeadlineExceededError, match=r"within 2 s: .*is a server running\?"):
            client.server_info()
        assert len(pauses) > 1
        start_server(address=server.address)
        limit(client, 60)
        assert client.server_info().version == sa.__version__


def test_worker_that_is_started_before_its_server_works(left, start_server, monkeypatch):
    monkeypatch.setattr("sparseagg._internal.client.async_tasks.RetryPolicy", lambda **_: EAGER)
    done: list[int] = []

    def work() -> None:
        with sa.Client(left) as client:
            done.append(client.work(lambda task: b"done", "site", max_tasks=1))

    working = threading.Thread(target=work, daemon=True)
    working.start()
    start_server(address=left)
    with sa.Client(left) as client:
        client.create_tasks([sa.NewTask(b"")])
    working.join(60)
    assert done == [1]


def test_worker_ends_where_the_server_is_none_for_it(doors):
    with sa.Client(doors.of("http")) as client, pytest.raises(sa.errors.UnavailableError, match="port for HTTP"):
        client.work(lambda task: None, "site")


@pytest.mark.parametrize("words", [["info"], ["rounds", "list"], ["rounds", "close", "r"], ["result", "r", "-o", "x"]])
def test_command_where_nothing_listens_asks_for_the_server(words, closed, capsys, pauses, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*words, "--address", closed, "--timeout", "60"]) == 1
    assert capsys.readouterr().err.startswith(f"sparseagg: nothing listens at {closed}: is a server running? (")
    assert pauses == [0.0]


class Doors:
    """Servers with and without TLS, and the addresses at which they listen."""

    def __init__(self, folder: pathlib.Path) -> None:
        free = ("--http-address", "127.0.0.1:0", "--metrics-address", "127.0.0.1:0")
        self.ca = folder / "tls" / "ca.pem"
        self.with_tls = ServerProcess(folder / "with-tls.log", *free, "--dev-tls", str(folder / "tls"))
        of_clients = ("--dev-tls", str(folder / "tls"), "--tls-client-ca", str(self.ca))
        self.for_known = ServerProcess(folder / "for-known.log", *free, *of_clients)
        self.plain = ServerProcess(folder / "plain.log", *free)

    def of(self, name: str) -> str:
        """The address of a door; with the name of this host, one of whose addresses nobody listens at."""
        address: str = {
            "grpc": self.plain.address,
            "http": self.plain.http_address,
            "metrics": self.plain.metrics_address,
            "tls": self.with_tls.address,
            "https": self.with_tls.http_address,
            "certificate": self.for_known.address,
        }[name]
        return address.replace("127.0.0.1", "localhost")


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    found = Doors(tmp_path_factory.mktemp("doors"))
    yield found
    for server in (found.with_tls, found.for_known, found.plain):
        server.kill()


HTTP = "is a port for HTTP"
NEEDS_TLS = "uses TLS, and this client does not: give it tls=FILE"
NO_TLS = "has no TLS, and this client uses it"
# What a client without and with TLS is told at each door; None: it is let in.
WRONG = {
    "grpc": (None, NO_TLS),
    "http": (HTTP, HTTP),
    "metrics": (HTTP, HTTP),
    "tls": (NEEDS_TLS, None),
    "https": (HTTP, HTTP),
    "certificate": (NEEDS_TLS, "without a certificate that it trusts"),
}


@pytest.mark.parametrize("has_tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("door", WRONG)
@SHELLS
def test_client_at_a_wrong_door_is_told_which_one_it_is(shell, door, has_tls, doors, pauses):
    address, expected = doors.of(door), WRONG[door][has_tls]
    options = {"tls": doors.ca if has_tls else False, "timeout": 60}
    if expected is None:
        assert info(address, shell, **options).version == sa.__version__
        return
    with pytest.raises(sa.errors.UnavailableError, match=f"{address} .*{expected}") as failed:
        info(address, shell, **options)
    assert failed.value.cannot_pass
    assert pauses == [0.0], "one attempt"


@pytest.mark.parametrize("has_tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("door", WRONG)
def test_doctor_at_a_wrong_door_says_which_one_it_is(door, has_tls, doors, capsys, monkeypatch):
    monkeypatch.delenv("SPARSEAGG_TOKEN", raising=False)
    address, expected = doors.of(door), WRONG[door][has_tls]
    flags = ["--tls-ca", str(doors.ca)] if has_tls else []
    status = main(["doctor", "--json", "--address", address, *flags])
    (text,) = re.findall(rf'"name": "server at {address}",\n +"found": "(.*)",\n', capsys.readouterr().out)
    (finding,) = [
        each
        for each in doctor.findings(address, {"tls": doors.ca if has_tls else False})
        if each.name == f"server at {address}"
    ]
    assert text == finding.found
    if expected is None:
        assert (finding.state, finding.found.split(",")[0]) == ("ok", sa.__version__)
    else:
        assert (status, finding.state, finding.found) == (1, "wrong", "there, but not for this connection")
        assert expected in finding.advice


def test_client_of_another_authority_is_told_that_it_trusts_another(doors, self_signed, pauses):
    for tls in (self_signed[1], True):
        with pytest.raises(
            sa.errors.UnavailableError, match=r"is not trusted: .*tls=FILE names .*CERTIFICATE_VERIFY_FAILED"
        ):
            info(doors.with_tls.address, tls=tls)  # of a name with two addresses, gRPC may tell the other one's error
    assert pauses == [0.0, 0.0]


def test_find_obstacle_of_a_port_that_says_nothing_is_unknown():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert find_obstacle(address, False, "", 0.05) is None


def test_find_obstacle_goes_not_where_grpc_goes_through_a_proxy(monkeypatch):
    for name in ("grpc_proxy", "https_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert may_look("server.example:1", True)
    assert not may_look("xds:///server.example", True)
    monkeypatch.setenv("http_proxy", "http://proxy.example:1")
    assert not may_look("server.example:1", True)
    assert may_look("server.example:1", False)
    assert may_look("127.0.0.1:1", True)


def test_localhost_is_this_machine_where_no_hosts_file_names_it(monkeypatch):
    resolve = socket.getaddrinfo

    def without_hosts_file(host, *more, **options):
        if host == "localhost":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(host, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", without_hosts_file)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"localhost:{listener.getsockname()[1]}"
    obstacle = find_obstacle(address, False, "", 5)
    assert obstacle is not None
    assert obstacle.text == f"nothing listens at {address}: is a server running? (`sparseagg server` starts one)"
