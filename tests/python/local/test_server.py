"""The server as an object: its start, its end with its owner, and one server for several processes."""

from __future__ import annotations

import concurrent.futures
import contextlib
import math
import os
import pathlib
import random
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import pytest
import sparseagg as sa
from conftest import START_TIMEOUT_S, server_binary
from sparseagg.errors import ProgramMissing
from sparseagg.local import server as module
from sparseagg.local.server import Server
from sparseagg.local.server_directory import ServerDirectory, until

KILLS = int(os.environ.get("SPARSEAGG_TEST_KILLS", "20"))


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> pathlib.Path:
    """The folder of temporary files, which the tests have for themselves, and so have their children."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("SPARSEAGG_SERVER", server_binary())
    return path


class Watched:
    """A process that need not be a child, to wait for its end."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def has_ended(self, timeout_s: float = 0) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def wait(self) -> None:
        assert self.has_ended(START_TIMEOUT_S), f"process {self.pid} goes on"

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
        self.wait()

    def close(self) -> None:
        os.close(self._descriptor)


@pytest.fixture
def watch() -> Iterator[Callable[[int], Watched]]:
    """Watches processes; those that go on at the end of the test are killed."""
    watched: list[Watched] = []

    def of(pid: int) -> Watched:
        watched.append(Watched(pid))
        return watched[-1]

    yield of
    for process in watched:
        process.kill()
        process.close()


class Python:
    """A process that evaluates expressions about ``server``, and prints values and errors' classes."""

    _PROGRAM = """
import sys
from sparseagg.local.server import Server
server = eval(sys.argv[1])
for line in sys.stdin:
    try:
        print(eval(line), flush=True)
    except Exception as error:
        print(type(error).__name__, flush=True)
"""

    def __init__(self, server: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", self._PROGRAM, server],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __call__(self, expression: str) -> str:
        self.send(expression)
        return self.answer()

    def send(self, expression: str) -> None:
        self.process.stdin.write(f"{expression}\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        return self.process.stdout.readline().rstrip("\n")

    def end(self) -> int:
        """Ends the process in order."""
        self.process.stdin.close()
        return self.process.wait(START_TIMEOUT_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def python() -> Iterator[Callable[[str], Python]]:
    """Starts processes with an object ``server``, given as an expression."""
    started: list[Python] = []

    def start(server: str) -> Python:
        started.append(Python(server))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.process.stdin.close()
        process.process.stdout.close()


def run_script(path: pathlib.Path, text: str) -> subprocess.CompletedProcess[str]:
    path.write_text(text)
    return subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=START_TIMEOUT_S)


def fake_server(path: pathlib.Path, *lines: str) -> pathlib.Path:
    """A program that does what a server should not do."""
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


def serves(address: str) -> bool:
    with sa.Client(address) as client:
        return client.server_info().version == sa.__version__


def path_in(message: str) -> pathlib.Path:
    """The log that an error names, and whose end it quotes."""
    path = pathlib.Path(re.search(r"its log, (\S+), ends with:\n", message).group(1))
    assert message.endswith(path.read_text().strip().splitlines()[-1])
    return path


# One process


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
    with pytest.raises(sa.FailedPrecondition, match="not running"):
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
        pids = {started.pid for started in threads.map(lambda _: server.start(), range(8))}
        (pid,) = pids
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
        assert sorted(path.name for path in directory.iterdir()) == ["owners", "server.log", "start.lock"]
        assert (directory / "server.log").read_text().count(" stopped") == 1


def test_server_takes_port_host_and_options(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        port = probe.getsockname()[1]
    options = ["--metrics-address", "127.0.0.1:0", "--log-format=json"]
    with Server(tmp_path, port=port, host="127.0.0.2", options=options) as server:
        assert server.address == f"127.0.0.2:{port}"
        assert re.search(r'"metrics":"127.0.0.1:\d+"', (tmp_path / "server.log").read_text())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"port": 65536}, "port is a number from 0 to 65535, not 65536"),
        ({"host": 1}, "host is a string"),
        ({"data_dir": 3}, "data_dir is a path or None, not 3"),
        ({"program": 3}, "program is a path or None, not 3"),
        ({"options": "--threads"}, "options is a list of flags"),
        ({"options": ["--threads", 2]}, "options is a list of flags"),
        ({"start_timeout": -1}, "start_timeout"),
        ({"stop_timeout": "x"}, "stop_timeout"),
    ],
)
def test_server_arguments_are_checked(arguments, message):
    with pytest.raises(sa.InvalidArgument, match=message):
        Server(**arguments)


# What goes wrong


def test_server_that_refuses_a_flag_is_an_error_with_the_log(folder):
    server = Server(options=["--no-such-flag"])
    with pytest.raises(sa.Unavailable, match="did not start, but ended with status") as caught:
        server.start()
    assert "--no-such-flag" in str(caught.value)
    assert path_in(str(caught.value)).parent.parent == folder
    assert repr(server) == "<sparseagg.Server, not running>"
    server.stop()


def test_server_that_takes_too_long_to_start_is_killed(tmp_path):
    program = fake_server(tmp_path / "program", "echo so slow", "echo $$ > $4.slow", "exec sleep 600")
    server = Server(tmp_path / "data", program=program, start_timeout=1)
    with pytest.raises(sa.DeadlineExceeded, match="did not start within 1 s") as caught:
        server.start()
    assert path_in(str(caught.value)).read_text() == "so slow\n"
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "data" / "owners.slow").read_text()), 0)


LISTENS = "echo listening grpc=127.0.0.1:1"


def test_server_that_does_not_stop_is_killed(tmp_path, watch):
    program = fake_server(tmp_path / "program", "trap '' TERM", LISTENS, "exec sleep 600")
    server = Server(program=program, stop_timeout=0.2).start()
    process = watch(server.pid)
    with pytest.raises(sa.DeadlineExceeded, match=r"did not stop within 0\.2 s, and was killed") as caught:
        server.stop()
    assert process.has_ended()
    path_in(str(caught.value))
    server.stop()


def test_server_that_does_not_stop_in_order_is_an_error(tmp_path):
    program = fake_server(
        tmp_path / "program", "trap 'echo oh no; exit 3' TERM", LISTENS, "while :; do sleep 0.05; done"
    )
    server = Server(program=program).start()
    with pytest.raises(sa.Internal, match="did not stop in order, but ended with status 3") as caught:
        server.stop()
    path_in(str(caught.value))


@pytest.mark.parametrize("shared", [False, True])
def test_server_that_ends_early_is_an_error_at_its_stop(shared, watch):
    server = Server(shared=shared).start()
    watch(server.pid).kill()
    with pytest.raises(sa.Unavailable, match="ended before it was stopped") as caught:
        server.stop()
    path_in(str(caught.value))
    with server:
        assert serves(server.address)


@pytest.mark.parametrize("arguments", [{}, {"shared": True}, {"program": "/no/such/program"}])
def test_server_without_its_program_leaves_nothing(arguments, folder, monkeypatch):
    monkeypatch.setenv("SPARSEAGG_SERVER", "/no/such/program")
    with pytest.raises(ProgramMissing, match="/no/such/program"):
        Server(**arguments).start()
    assert list(folder.iterdir()) == []


def test_server_whose_program_cannot_be_run_leaves_nothing(tmp_path, folder):
    program = fake_server(tmp_path / "program")
    program.write_text("no program")
    with pytest.raises(OSError, match=str(program)):
        Server(program=program).start()
    assert list(folder.iterdir()) == []


def others_hold(directory: pathlib.Path) -> bool:
    """Whether a process has a lock on the file of the server's owners; asks in a process that has none."""
    ask = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    done = subprocess.run([sys.executable, "-c", ask, directory / "owners"], capture_output=True, text=True)
    assert done.returncode == 0 or "BlockingIOError" in done.stderr
    return done.returncode != 0


def test_server_directory_in_use_is_refused_and_its_server_goes_on(tmp_path, python):
    with Server(tmp_path) as server:
        for other in (tmp_path, tmp_path / ".." / tmp_path.name):
            with pytest.raises(sa.FailedPrecondition, match="in use"):
                Server(other).start()
            assert others_hold(tmp_path)
        assert python(f"Server({str(tmp_path)!r})")("server.start()") == "FailedPrecondition"
        assert serves(server.address)


# The end of the owner

# Starts a server in a forked child for each line, which is a directory; prints the ids of both processes.
_FORKS = """
import os, signal, sys
from sparseagg.local.server import Server
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        print("child", os.getpid(), flush=True)
        server = Server(line.strip(), shared=sys.argv[1] == "shared").start()
        print("server", server.pid, flush=True)
        signal.pause()
    os.waitpid(child, 0)
"""


class Forks:
    """Owners of servers in ``directory``, one after the other: children of a process that is not this one."""

    def __init__(self, directory: pathlib.Path, shared: bool) -> None:
        directory.mkdir(mode=0o700)
        self.directory = directory
        self.shared = shared
        command = [sys.executable, "-c", _FORKS, "shared" if shared else "alone"]
        self._parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self) -> int:
        """Starts a child that starts a server; returns the child's process id."""
        self._parent.stdin.write(f"{self.directory}\n")
        self._parent.stdin.flush()
        return self._read("child")

    def started(self) -> int:
        """Returns the process id of the child's server, which listens."""
        return self._read("server")

    def _read(self, kind: str) -> int:
        for line in self._parent.stdout:
            if line.startswith(kind):
                return int(line.split()[1])
        raise AssertionError(f"no {kind}")

    def end(self) -> None:
        self._parent.stdin.close()
        self._parent.stdout.close()
        assert self._parent.wait(START_TIMEOUT_S) == 0


@pytest.fixture(params=[False, True], ids=["alone", "shared"])
def forks(request, tmp_path, folder) -> Iterator[Forks]:
    made = Forks(tmp_path / "data", request.param)
    yield made
    made.end()


def test_server_ends_when_its_owner_is_killed(forks, watch):
    for _ in range(KILLS):
        owner = watch(forks.start())
        server = watch(forks.started())
        owner.kill()
        server.wait()


def test_server_ends_when_its_owner_is_killed_while_it_starts(forks, watch):
    """The owner is killed anywhere in its start. The next one starts in the same directory."""
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    moments = random.Random(seed)
    listening = 0
    directory = ServerDirectory(forks.directory)
    for _ in range(KILLS):
        owner = watch(forks.start())
        owner.has_ended(moments.uniform(0, 0.06))
        listening += (forks.directory / "address").exists()
        owner.kill()
        with Server(forks.directory, shared=forks.shared) as server:
            assert serves(server.address)
        with directory.start_lock(time.monotonic()):
            assert directory.has_ended()
        assert directory.read_pid() is None
    print(listening, "of", KILLS, "servers had an address")


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_server_of_a_multiprocessing_child_is_its_own(how, tmp_path):
    done = run_script(
        tmp_path / "script.py",
        f"""
import multiprocessing
import sparseagg as sa
from sparseagg.local.server import Server

def child(pipe, inherited):
    with sa.Client(inherited) as client:
        client.server_info()
    with Server() as server, sa.Client(server.address) as client:
        client.server_info()
        assert server.address != inherited
    pipe.send(Server().start().pid)  # not stopped: its end is the child's

if __name__ == "__main__":
    with Server() as server:
        processes = multiprocessing.get_context({how!r})
        here, there = processes.Pipe()
        process = processes.Process(target=child, args=(there, server.address))
        process.start()
        process.join()
        assert process.exitcode == 0
        print(here.recv())
        with sa.Client(server.address) as client:
            client.server_info()
""",
    )
    assert (done.returncode, done.stderr) == (0, "")
    with contextlib.suppress(ProcessLookupError):
        Watched(int(done.stdout)).wait()


def test_server_of_the_parent_is_not_the_forked_childs_to_stop(tmp_path, folder):
    done = run_script(
        tmp_path / "script.py",
        """
import os, sys
import sparseagg as sa
from sparseagg.local.server import Server

with Server() as server, Server(shared=True) as shared:
    child = os.fork()
    if child == 0:
        for each in (server, shared):
            assert each.start().address == each.address
            each.stop()
            assert each.pid is None
            with each:
                assert each.address
        sys.exit(7)  # with the handlers of atexit
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    for each in (server, shared):
        with sa.Client(each.address) as client:
            client.server_info()
""",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [path.name for path in folder.iterdir()] == [f"sparseagg-{os.geteuid()}"]


def test_server_goes_on_after_ctrl_c(tmp_path, watch):
    script = """
import signal
import sparseagg as sa
from sparseagg.local.server import Server
with Server() as server:
    try:
        print(server.pid, flush=True)
        signal.pause()
    except KeyboardInterrupt:
        with sa.Client(server.address) as client:
            print(client.server_info().version)
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True)
    process = watch(int(parent.stdout.readline()))
    os.killpg(parent.pid, signal.SIGINT)
    assert parent.communicate(timeout=START_TIMEOUT_S)[0] == f"{sa.__version__}\n"
    assert parent.returncode == 0
    process.wait()


@pytest.mark.parametrize("shared", [False, True])
def test_server_that_nobody_stops_ends_with_the_interpreter(shared, tmp_path, folder, watch):
    script = f"from sparseagg.local.server import Server; print(Server(shared={shared}).start().pid)"
    done = run_script(tmp_path / "script.py", script)
    assert (done.returncode, done.stderr) == (0, "")
    with pytest.raises(ProcessLookupError):
        watch(int(done.stdout))
    assert len(list(folder.iterdir())) == shared


# One server for several processes


def test_shared_server_is_one_for_processes_that_start_at_once(python, watch):
    users = [python("Server(shared=True)") for _ in range(3)]
    for user in users:
        user.send("repr(server.start())")
    (text,) = {user.answer() for user in users}
    address, pid = re.fullmatch(r"<sparseagg.Server (\S+), pid (\d+), shared>", text).groups()
    server = watch(int(pid))
    users[0].kill()
    assert users[1]("server.stop()") == "None"
    assert serves(address)
    assert others_hold(ServerDirectory.make(None, shared=True).path)
    assert users[2].end() == 0
    server.wait()


@pytest.mark.parametrize("first", [0, 1])
def test_shared_server_of_one_process_ends_with_its_last_user(first, watch):
    users = [Server(shared=True).start(), Server(shared=True).start()]
    server = watch(users[0].pid)
    assert users[1].pid == server.pid
    users[first].stop()
    assert serves(users[1 - first].address)
    assert not server.has_ended()
    users[1 - first].stop()
    assert server.has_ended()


def test_shared_server_outlives_the_process_that_started_it(python, watch):
    starter = python("Server(shared=True)")
    pid = int(starter("server.start().pid"))
    server = watch(pid)
    with Server(shared=True) as here:
        assert here.pid == pid
        assert starter.end() == 0
        assert serves(here.address)
    server.wait()


def test_shared_server_that_was_killed_is_replaced(python, watch):
    user = python("Server(shared=True)")
    watch(int(user("server.start().pid"))).kill()
    with Server(shared=True) as server:
        assert serves(server.address)
        user.kill()
        assert serves(server.address)


def start_while(ends: Callable[[], None]) -> Server:
    """Starts to share a server while the last one ends."""
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        started = thread.submit(Server(shared=True).start)
        ends()
        return started.result()


def test_shared_server_that_stops_is_waited_for_and_replaced(python, watch):
    options = ["--drain-delay", "1h"]
    user = python(f"Server(shared=True, options={options})")
    first = watch(int(user("server.start().pid")))
    user.kill()
    directory = ServerDirectory.make(None, shared=True)

    def stops() -> bool | None:
        held = directory.hold()
        directory.release()
        return not held or None

    assert until(time.monotonic() + START_TIMEOUT_S, stops)
    with pytest.raises(sa.DeadlineExceeded, match="of earlier processes does not stop") as caught:
        Server(shared=True, start_timeout=1).start()
    path_in(str(caught.value))
    with start_while(first.kill) as server:
        assert server.pid != first.pid
        assert serves(server.address)


def test_shared_server_that_drains_after_a_signal_is_replaced(watch):
    old = Server(shared=True, options=["--drain-delay", "1h"]).start()
    first = watch(old.pid)
    os.kill(first.pid, signal.SIGTERM)
    assert until(time.monotonic() + START_TIMEOUT_S, lambda: not module._serves(old.address, math.inf) or None)
    with pytest.raises(sa.DeadlineExceeded, match="is running, but does not answer") as caught:
        Server(shared=True, start_timeout=0.5).start()
    path_in(str(caught.value))
    with start_while(first.kill) as new:
        assert new.pid != first.pid
        assert serves(new.address)
        old.stop()
        assert serves(new.address)


def test_shared_server_whose_starter_was_killed_before_it_wrote_the_address_is_found(folder):
    with Server(shared=True) as first:
        directory = folder / f"sparseagg-{os.geteuid()}"
        (directory / "address").unlink()
        (directory / "pid").unlink()
        with Server(shared=True) as second:
            assert second.address == first.address
            assert repr(second) == f"<sparseagg.Server {first.address}, pid None, shared>"


@pytest.mark.parametrize("shared", [False, True])
def test_server_ignores_what_an_earlier_one_has_left(shared, tmp_path):
    tmp_path.chmod(0o700)
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        address = "{}:{}".format(*stranger.getsockname())
        (tmp_path / "address").write_text(address)
        (tmp_path / "pid").write_text(str(os.getpid()))
        (tmp_path / "server.log").write_text(f"listening grpc={address}\n")
        for name in ("owners", "start.lock", "address.new"):
            (tmp_path / name).write_text("left")
        with Server(tmp_path, shared=shared) as server:
            assert server.address != address
            assert serves(server.address)


def test_shared_directory_is_the_users_in_the_runtime_folder(tmp_path, folder, monkeypatch):
    name = f"sparseagg-{os.geteuid()}"
    runtime = tmp_path / "runtime"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    assert ServerDirectory.make(None, shared=True).path == folder / name  # for want of that folder
    runtime.mkdir()
    assert ServerDirectory.make(None, shared=True).path == runtime / name
    assert (runtime / name).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("what", ["mode", "link", "file"])
def test_shared_directory_that_others_may_enter_is_refused(what, tmp_path):
    path = tmp_path / "data"
    if what == "mode":
        path.mkdir(mode=0o750)
    elif what == "link":
        (tmp_path / "other").mkdir(mode=0o700)
        path.symlink_to(tmp_path / "other")
    else:
        path.touch(mode=0o600)
    with pytest.raises(sa.PermissionDenied, match=str(path)):
        Server(path, shared=True).start()
