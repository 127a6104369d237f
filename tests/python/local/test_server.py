"""The server as an object: its life in one process, its arguments, and what goes wrong."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import pathlib
import re
import socket
import time

import pytest
import sparseagg as sa
from server_processes import others_hold, path_in, serves
from sparseagg._internal.local.server import Server
from sparseagg._internal.local.server_directory import ServerDirectory
from sparseagg.errors import ProgramMissingError

pytestmark = pytest.mark.usefixtures("folder")


def fake_server(path: pathlib.Path, *lines: str) -> pathlib.Path:
    """A program that does what a server should not do."""
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


def test_server_serves_and_ends_with_its_statement(folder, watch):
    with Server() as server:
        process = watch(server.pid)
        assert re.fullmatch(r"127\.0\.0\.1:\d+", server.address)
        assert repr(server) == f"<sparseagg.Server {server.address}, pid {server.pid}>"
        assert serves(server.address)
        (directory,) = folder.iterdir()
        assert 'metrics=""' in (directory / "server.log").read_text()
    assert process.has_ended()
    assert list(folder.iterdir()) == []
    assert (server.pid, repr(server)) == (None, "<sparseagg.Server, not running>")
    with pytest.raises(sa.errors.FailedPreconditionError, match="not running"):
        server.address  # noqa: B018


def test_server_starts_once_and_stops_once_and_again(watch):
    server = Server()
    server.stop()
    assert server.start() is server
    first = watch(server.pid)
    assert server.start().pid == first.pid
    server.stop()
    server.stop()
    assert first.has_ended()
    with server:
        assert server.pid != first.pid
        assert serves(server.address)


def test_server_that_threads_start_and_stop_is_one(watch):
    server = Server()
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        (pid,) = set(threads.map(lambda _: server.start().pid, range(8)))
        process = watch(pid)
        list(threads.map(lambda _: server.stop(), range(8)))
    assert process.has_ended()


def test_server_directory_of_the_caller_stays_with_the_log(tmp_path):
    directory = tmp_path / "some" / "where"
    for _ in range(2):
        with Server(directory) as server:
            assert (directory / "address").read_text() == f"{server.address}\n"
            assert (directory / "pid").read_text() == f"{server.pid}\n"
            assert "listening" in (directory / "server.log").read_text()
        assert sorted(path.name for path in directory.iterdir()) == ["owners", "rounds", "server.log", "start.lock"]
        assert (directory / "server.log").read_text().count(" stopped") == 1


def port_that_stays_free(host: str) -> int:
    """Returns a port that nobody has, below those that the system gives to others meanwhile."""
    lowest = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    for port in range(lowest // 2 + os.getpid() % 1000, lowest):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            return port
    raise AssertionError(f"no port below {lowest} is free")


def test_server_takes_port_host_and_options(tmp_path):
    port = port_that_stays_free("127.0.0.2")
    options = ["--metrics-address", "127.0.0.1:0", "--log-format=json"]
    with Server(tmp_path, port=port, host="127.0.0.2", options=options) as server:
        assert server.address == f"127.0.0.2:{port}"
        assert re.search(r'"metrics":"127.0.0.1:\d+"', (tmp_path / "server.log").read_text())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"port": 65536}, "port must be a number from 0 to 65535, got 65536"),
        ({"host": 1}, "host must be a string"),
        ({"data_dir": 3}, "data_dir must be a path or None, got 3"),
        ({"program": 3}, "program must be a path or None, got 3"),
        ({"data_dir": ""}, "data_dir must be a path or None, got ''"),
        ({"tokens_file": ""}, "tokens_file must be a path or None, got ''"),
        ({"options": "--threads"}, "options must be a list of flags"),
        ({"options": ["--threads", 2]}, "options must be a list of flags"),
        ({"start_timeout": -1}, "start_timeout"),
        ({"stop_timeout": "x"}, "stop_timeout"),
    ],
)
def test_server_arguments_are_checked(arguments, message):
    with pytest.raises(sa.InvalidArgumentError, match=message):
        Server(**arguments)


# What goes wrong


def test_server_that_refuses_a_flag_is_an_error_with_the_log(folder):
    server = Server(options=["--no-such-flag"])
    with pytest.raises(sa.errors.UnavailableError, match="did not start, but ended with status") as caught:
        server.start()
    assert "--no-such-flag" in str(caught.value)
    assert path_in(str(caught.value)).parent.parent == folder
    assert repr(server) == "<sparseagg.Server, not running>"
    server.stop()


def test_server_that_takes_too_long_to_start_is_killed(tmp_path):
    program = fake_server(tmp_path / "program", "echo so slow", "echo $$ > $4.slow", "exec sleep 600")
    server = Server(tmp_path / "data", program=program, start_timeout=1)
    with pytest.raises(sa.errors.DeadlineExceededError, match="did not start within 1 s") as caught:
        server.start()
    assert path_in(str(caught.value)).read_text() == "so slow\n"
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "data" / "owners.slow").read_text()), 0)


LISTENS = "echo listening grpc=127.0.0.1:1"


def test_server_that_does_not_stop_is_killed(tmp_path, watch):
    program = fake_server(tmp_path / "program", "trap '' TERM", LISTENS, "exec sleep 600")
    server = Server(program=program, stop_timeout=0.2).start()
    process = watch(server.pid)
    with pytest.raises(sa.errors.DeadlineExceededError, match=r"did not stop within 0\.2 s, and was killed") as caught:
        server.stop()
    assert process.has_ended()
    path_in(str(caught.value))
    server.stop()


def test_server_that_does_not_stop_in_order_is_an_error(tmp_path):
    program = fake_server(
        tmp_path / "program", "trap 'echo oh no; exit 3' TERM", LISTENS, "while :; do sleep 0.05; done"
    )
    server = Server(program=program).start()
    with pytest.raises(sa.errors.InternalError, match="did not stop in order, but ended with status 3") as caught:
        server.stop()
    path_in(str(caught.value))


@pytest.mark.parametrize("shared", [False, True])
def test_server_that_ends_early_is_an_error_at_its_stop(shared, watch):
    server = Server(shared=shared).start()
    watch(server.pid).kill()
    with pytest.raises(sa.errors.UnavailableError, match="ended before it was stopped") as caught:
        server.stop()
    path_in(str(caught.value))
    with server:
        assert serves(server.address)


@pytest.mark.parametrize("shared", [False, True])
def test_server_waits_for_another_start_in_its_directory(shared, tmp_path):
    tmp_path.chmod(0o700)
    message = f"another process starts or stops the server of {tmp_path}"
    starting = ServerDirectory.make(str(tmp_path), shared=shared).start_lock(time.monotonic())
    with starting, pytest.raises(sa.errors.DeadlineExceededError, match=message):
        Server(tmp_path, shared=shared, start_timeout=0.2).start()
    with Server(tmp_path, shared=shared) as server:
        assert serves(server.address)


@pytest.mark.parametrize("arguments", [{}, {"shared": True}, {"program": "/no/such/program"}])
def test_server_without_its_program_leaves_nothing(arguments, folder, monkeypatch):
    monkeypatch.setenv("SPARSEAGG_SERVER", "/no/such/program")
    with pytest.raises(ProgramMissingError, match="/no/such/program"):
        Server(**arguments).start()
    assert list(folder.iterdir()) == []


def test_server_whose_program_cannot_be_run_leaves_nothing(tmp_path, folder):
    program = fake_server(tmp_path / "program")
    program.write_text("no program")
    with pytest.raises(OSError, match=str(program)):
        Server(program=program).start()
    assert list(folder.iterdir()) == []


def test_server_directory_in_use_is_refused_and_its_server_goes_on(tmp_path, python):
    with Server(tmp_path) as server:
        for other in (tmp_path, tmp_path / ".." / tmp_path.name):
            with pytest.raises(sa.errors.FailedPreconditionError, match="in use"):
                Server(other).start()
            assert others_hold(tmp_path)
        assert python(f"Server({str(tmp_path)!r})")("server.start()") == "FailedPreconditionError"
        assert serves(server.address)
