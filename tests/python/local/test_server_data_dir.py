"""``sa.Server(data_dir=...)``: rounds that outlive their server."""

from __future__ import annotations

import numpy as np
import pytest
import sparseagg as sa
from sparseagg._internal.local.server_directory import ServerDirectory

SPEC = sa.RoundSpec([sa.TensorSpec("v", dtype="float32", num_rows=100)])


def update(key: int, value: float) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {"v": (np.array([key]), np.array([value], np.float32))}


pytestmark = pytest.mark.usefixtures("folder")


def test_rounds_go_on_after_a_stop(tmp_path):
    server = sa.Server(tmp_path / "server")
    with server, sa.Client(server.address) as client:
        rnd = client.create_round(SPEC, round_id="r")
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
        client.create_round(SPEC, round_id="r")
    assert not (tmp_path / "server" / "rounds").exists()
    with server, sa.Client(server.address) as client, pytest.raises(sa.errors.NotFoundError):
        client.get_round("r").refresh()
