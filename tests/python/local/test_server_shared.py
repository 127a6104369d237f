"""One server for several processes: who starts it, who finds it, and who is its last user."""

from __future__ import annotations

import concurrent.futures
import math
import os
import re
import signal
import socket
import time
from collections.abc import Callable

import pytest
import sparseagg as sa
from real_server import START_TIMEOUT_S
from server_processes import others_hold, path_in, serves
from sparseagg._internal.local import server as module
from sparseagg._internal.local.server import Server
from sparseagg._internal.local.server_directory import ServerDirectory, until

pytestmark = pytest.mark.usefixtures("folder")


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
    with pytest.raises(sa.errors.DeadlineExceededError, match="of earlier processes does not stop") as caught:
        Server(shared=True, start_timeout=1).start()
    path_in(str(caught.value))
    with start_while(first.kill) as server:
        assert server.pid != first.pid
        assert serves(server.address)


def test_shared_server_that_drains_after_a_signal_is_replaced(watch):
    old = Server(shared=True, options=["--drain-delay", "1h"]).start()
    first = watch(old.pid)
    first.send_signal(signal.SIGTERM)
    assert until(time.monotonic() + START_TIMEOUT_S, lambda: not module._serves(old.address, math.inf) or None)
    with pytest.raises(sa.errors.DeadlineExceededError, match="is running, but does not answer") as caught:
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
    with pytest.raises(sa.errors.PermissionDeniedError, match=str(path)):
        Server(path, shared=True).start()
