"""Where a server keeps its files, and listens: rounds that outlive it, and Unix sockets."""

from __future__ import annotations

import os
import pathlib
import signal
import stat
import tempfile
from collections.abc import Iterator

import numpy as np
import pytest
import sparseagg as sa
from server_processes import serves
from sparseagg._internal.local.server import Server
from sparseagg._internal.local.server_directory import ServerDirectory

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
