"""The server ends with its owner, however the owner ends, and belongs to no other process."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import sparseagg as sa
from real_server import START_TIMEOUT_S
from server_processes import Watched, serves
from sparseagg._internal.local.server import Server
from sparseagg._internal.local.server_directory import ServerDirectory

KILLS = int(os.environ.get("SPARSEAGG_TEST_KILLS", "8"))
SEED = 25


pytestmark = pytest.mark.usefixtures("folder")


def run_script(path: pathlib.Path, text: str) -> subprocess.CompletedProcess[str]:
    path.write_text(text)
    return subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=START_TIMEOUT_S)


# Starts a server in a forked child for each line, which is a directory; prints the ids of both processes.
_FORKS = """
import os, signal, sys
from sparseagg._internal.local.server import Server
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
    print("seed", SEED)
    moments = random.Random(SEED)
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
from sparseagg._internal.local.server import Server

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
from sparseagg._internal.local.server import Server

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


def test_child_that_is_forked_during_a_start_keeps_no_lock(tmp_path):
    done = run_script(
        tmp_path / "script.py",
        """
import os, sys, time
from sparseagg._internal.local.server_directory import ServerDirectory, until
directory = ServerDirectory.make(sys.argv[0] + ".d", shared=False)
read, write = os.pipe()
with directory.start_lock(time.monotonic()):
    log = directory.claim_log()
    child = os.fork()
    if child == 0:
        os.close(write)
        os._exit(len(os.read(read, 1)))
    directory.close_log(log)
deadline = time.monotonic() + 10  # for the child to close its copies of the descriptors
with directory.start_lock(deadline):
    assert until(deadline, directory.has_ended)
os.write(write, b"x")
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
""",
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_server_goes_on_after_ctrl_c(tmp_path, watch):
    script = """
import signal
import sparseagg as sa
from sparseagg._internal.local.server import Server
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
    script = f"from sparseagg._internal.local.server import Server; print(Server(shared={shared}).start().pid)"
    done = run_script(tmp_path / "script.py", script)
    assert (done.returncode, done.stderr) == (0, "")
    with pytest.raises(ProcessLookupError):
        watch(int(done.stdout))
    assert len(list(folder.iterdir())) == shared
