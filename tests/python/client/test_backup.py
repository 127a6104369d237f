"""Backups of a server that is in use: what they have, who may ask for one, and what an early end leaves."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import threading
from collections.abc import Callable

import numpy as np
import pytest
import sparseagg as sa
from http_calls import request
from real_server import ServerProcess, server_binary
from sparseagg._internal.commands.cli import main

ROWS, WIDTH = 20_000, 32
SPEC = sa.RoundSpec([sa.TensorSpec("t", "float32", num_rows=ROWS, row_width=WIDTH)])


def update(client: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Of 250 KB: half of the clients send one large chunk, half of them small ones."""
    rng = np.random.default_rng(client)
    keys = np.sort(rng.choice(ROWS, 2000 if client % 2 else 50, replace=False))
    return {"t": (keys, rng.standard_normal((keys.size, WIDTH), np.float32))}


@pytest.fixture
def start(start_server: Callable[..., ServerProcess], tmp_path: pathlib.Path) -> Callable[[str], ServerProcess]:
    backups = str(tmp_path / "backups")
    return lambda data: start_server("--data-dir", str(tmp_path / data), "--backup-dir", backups)


def test_backup_under_load_has_all_that_was_acknowledged_before(
    start: Callable[[str], ServerProcess], tmp_path: pathlib.Path
) -> None:
    server = start("data")
    acknowledged: list[str] = []
    has_some, is_over = threading.Event(), threading.Event()

    def submit(first: int) -> None:
        with sa.Client(server.address) as client:
            opened = client.get_round("r")
            for number in range(first, 10_000, 4):
                if is_over.is_set():
                    return
                opened.submit(f"c{number}", update(number))
                acknowledged.append(f"c{number}")
                if len(acknowledged) >= 20:
                    has_some.set()

    with sa.Client(server.address) as client:
        client.create_round(SPEC, "r")
        deleted = client.create_round(SPEC, "deleted")
        for number in range(4):
            deleted.submit(f"c{number}", update(number))
        threads = [threading.Thread(target=submit, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        assert has_some.wait(60)
        before = set(acknowledged)
        sizes = [client.backup("first")]
        deleted.delete()  # whose space is freed while the second one is written, or before
        sizes.append(client.backup("second"))
        is_over.set()
        for thread in threads:
            thread.join()
        assert min(sizes) > len(before) / 2 * 250_000
        with pytest.raises(sa.errors.AlreadyExistsError, match="'first'"):
            client.backup("first")
        whole = {each.client_id for each in client.get_round("r").submissions()}
        expected = client.get_round("r").finish()["t"]
    server.kill()
    for name in ("first", "second"):
        shutil.copytree(tmp_path / "backups" / name, tmp_path / f"{name} restored")
        with sa.Client(start(f"{name} restored").address) as client:
            opened = client.get_round("r")
            has = {each.client_id for each in opened.submissions()}
            assert before <= has <= whole
            if name == "first":
                assert len(list(client.get_round("deleted").submissions())) == 4
            for client_id in sorted(whole):  # the later ones again, and duplicates
                assert opened.submit(client_id, update(int(client_id[1:]))).duplicate == (client_id in has)
            result = opened.finish()["t"]
            assert np.array_equal(result.keys, expected.keys)
            assert np.array_equal(result.values.view(np.uint32), expected.values.view(np.uint32))


def test_backup_by_command_and_over_http(
    start_server: Callable[..., ServerProcess], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = ("--data-dir", str(tmp_path / "data"), "--backup-dir", str(tmp_path / "backups"))
    server = start_server(*folders, "--http-address", "127.0.0.1:0")
    assert main(["backup", "nightly", "--address", server.address]) == 0
    assert capsys.readouterr().out.startswith("nightly: ")
    assert main(["backup", "nightly", "--address", server.address]) == 1
    assert "there is a backup 'nightly'" in capsys.readouterr().err
    assert int(request(server.http_address, "POST", "/v1/backups", {"name": "b"}).json["numBytes"]) > 0
    assert sorted(each.name for each in (tmp_path / "backups").iterdir()) == ["b", "nightly"]


@pytest.mark.parametrize("name", ["", ".", "..", "../b", "a/b", ".unfinished", "/tmp/b", "b" * 129])
def test_name_is_no_path(name: str, start: Callable[[str], ServerProcess], tmp_path: pathlib.Path) -> None:
    with sa.Client(start("data").address) as client, pytest.raises(sa.errors.InvalidArgumentError, match="name"):
        client.backup(name)
    assert list((tmp_path / "backups").iterdir()) == []


def test_server_without_a_folder_for_backups_refuses(
    start_server: Callable[..., ServerProcess], tmp_path: pathlib.Path
):
    folders = ["--data-dir", str(tmp_path / "data"), "--backup-dir", str(tmp_path / "backups")]
    for flags in ([], folders[:2], [*folders, "--durability", "memory"]):
        refused = pytest.raises(sa.errors.FailedPreconditionError, match="no --backup-dir")
        with sa.Client(start_server(*flags).address) as client, refused:
            client.backup("b")
    with sa.Client(":memory:") as client, pytest.raises(sa.errors.FailedPreconditionError, match="no data directory"):
        client.backup("b")


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--backup-dir", "backups"], "needs --data-dir"),
        (["--backup-dir", "data/backups", "--data-dir", "./data/"], "is inside of --data-dir"),
        (["--backup-dir", "data", "--data-dir", "data"], "is inside of --data-dir"),
    ],
)
def test_folder_that_cannot_be_is_refused(flags: list[str], reason: str, tmp_path: pathlib.Path) -> None:
    command = [server_binary(), "--grpc-address", "127.0.0.1:0", *flags]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.returncode != 0
    assert f"--backup-dir: {reason}" in done.stderr
    assert list(tmp_path.iterdir()) == []
