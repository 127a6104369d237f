"""Where a server keeps its files, and listens: rounds that outlive it, and Unix sockets."""

from __future__ import annotations

import concurrent.futures
import math
import os
import pathlib
import re
import signal
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import sparseagg as sa
from real_server import START_TIMEOUT_S
from server_processes import others_hold, path_in, serves
from sparseagg._internal.local import server as module
from sparseagg._internal.local.server import Server
from sparseagg._internal.local.server_directory import ServerDirectory, until

ROUND_SPEC = sa.RoundSpec([sa.TensorSpec("v", dtype="float32", num_rows=100)])


def update(key: int, value: float) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {"v": (np.array([key]), np.array([value], np.float32))}


pytestmark = pytest.mark.usefixtures("folder")


def test_rounds_go_on_after_a_stop(tmp_path):
    server = sa.Server(tmp_path / "server")
    with server, sa.Client(server.address) as client:
        rnd = client.create_round(ROUND_SPEC, round_id="r")
        rnd.submit("a", update(1, 1))
    with server, sa.Client(server.address) as client:
        rnd = client.get_round("r")
        assert rnd.submit("a", update(1, 1)).duplicate
        with pytest.raises(sa.errors.AlreadyExistsError):
            rnd.submit("a", update(1, 2))
        rnd.submit("b", update(2, 5))
        first = rnd.finish()["v"]
    with server, sa.Client(server.address) as client:
        again = client.get_round("r").result()["v"]
    assert first.keys.tolist() == again.keys.tolist() == [1, 2]
    assert first.values.tobytes() == again.values.tobytes()


def test_stop_leaves_the_files_of_a_server_that_was_started_since(tmp_path, monkeypatch):
    folder = tmp_path / "server"
    first, second = sa.Server(folder).start(), sa.Server(folder)
    real = ServerDirectory.start_lock

    def start_second_before(directory, deadline):
        monkeypatch.setattr(ServerDirectory, "start_lock", real)
        second.start()
        return real(directory, deadline)

    monkeypatch.setattr(ServerDirectory, "start_lock", start_second_before)
    first.stop()
    assert second.pid is not None
    with second:
        assert (folder / "address").read_text(encoding="utf-8").strip() == second.address
        assert (folder / "pid").exists()
    assert not (folder / "address").exists()


def test_option_durability_memory_keeps_nothing(tmp_path):
    server = sa.Server(tmp_path / "server", options=["--durability", "memory"])
    with server, sa.Client(server.address) as client:
        client.create_round(ROUND_SPEC, round_id="r")
    assert not (tmp_path / "server" / "rounds").exists()
    with server, sa.Client(server.address) as client, pytest.raises(sa.errors.NotFoundError):
        client.get_round("r").refresh()


SPEC = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=3, layout="dense")])
SOCKET_PATH = 107  # the longest, in bytes (unix(7))


@pytest.fixture
def tmp_path() -> Iterator[pathlib.Path]:
    """A folder with a short path, unlike pytest's."""
    with tempfile.TemporaryDirectory(prefix="s-") as path:
        yield pathlib.Path(path)


def aggregate(address: str) -> list[float]:
    with sa.Client(address) as client:
        return list(client.aggregate([{"v": np.array([1, 2, 3], np.float32)}], SPEC)["v"].values.reshape(-1))


def test_local_client_uses_a_socket_that_its_user_alone_reaches(folder):
    with sa.Client(":local:") as client:
        (directory,) = folder.iterdir()
        assert client.address == f"unix:{directory}/socket"
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        rnd = client.create_round(SPEC)
        rnd.submit("a", {"v": np.ones(3, np.float32)})
        with sa.Round.from_handle(rnd.handle) as other:
            assert other.info.num_submissions == 1
    assert list(folder.iterdir()) == []


def test_path_of_temporary_files_that_no_socket_can_have_makes_the_local_client_use_tcp(monkeypatch, tmp_path):
    for name in ("long" * 30, "per%20cent", "spaced out"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / name))
        with sa.Client(":local:") as client:
            assert client.address.startswith("127.0.0.1:")
            assert client.server_info().version == sa.__version__


def test_longest_path_of_a_socket_is_used_and_a_longer_one_refused(tmp_path):
    fits = tmp_path / ("x" * (SOCKET_PATH - len(f"{tmp_path}//socket")))
    with Server(fits, host="unix:") as server:
        assert len(server.address) == len("unix:") + SOCKET_PATH
        assert aggregate(server.address) == [1, 2, 3]
    with pytest.raises(sa.InvalidArgumentError, match="at most 107 bytes"):
        Server(f"{fits}x", host="unix:").start()


def test_socket_that_a_killed_server_has_left_is_replaced(tmp_path):
    server = Server(tmp_path / "server", host="unix:").start()
    socket = pathlib.Path(server.address.partition(":")[2])
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    with pytest.raises((sa.errors.UnavailableError, sa.errors.InternalError), match="with status -9"):
        server.stop()
    assert socket.is_socket()
    with Server(tmp_path / "server", host="unix:") as server:
        assert serves(server.address)
    assert not socket.exists()


def test_directory_that_others_may_enter_has_no_socket(tmp_path):
    tmp_path.chmod(0o755)
    with pytest.raises(sa.errors.PermissionDeniedError, match="nobody else may enter"):
        Server(tmp_path, host="unix:").start()
    assert not (tmp_path / "socket").exists()
    with Server(tmp_path, host="127.0.0.1") as server:
        assert serves(server.address)


@pytest.mark.parametrize("arguments", [{"port": 8001}, {"tls": sa.TLS(certificate="c.pem", key="k.pem")}], ids=str)
def test_socket_has_neither_port_nor_tls(arguments):
    with pytest.raises(sa.InvalidArgumentError, match="neither with port nor with tls"):
        Server(host="unix:", **arguments)


def test_shared_server_has_a_socket_too(folder):
    with Server(shared=True, host="unix:") as one, Server(shared=True, host="unix:") as other:
        assert one.address == other.address == f"unix:{folder}/sparseagg-{os.geteuid()}/socket"
        assert aggregate(other.address) == [1, 2, 3]


# ---- one server for several processes: who starts it, who finds it, and who is its last user


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
