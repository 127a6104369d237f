"""`sparseagg submit` and `result` with much to send: the progress, and what an interruption leaves."""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
import sparseagg as sa
from flaky_proxy import FlakyProxy
from sparseagg._internal.client.progress import ProgressBar
from sparseagg._internal.client.retry import Resumption
from sparseagg._internal.commands.cli import main
from terminal import ESCAPES, TIMEOUT_S, Terminal

ROWS, WIDTH = 1 << 16, 64  # 16 MB of values
SPEC = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=ROWS, row_width=WIDTH)])
STALL_BYTES = 6_000_000  # of a connection, before it stalls for longer than a test lasts
RESUMES = r"to go on where it stopped, add to the same command: --submission-id (\S+)"


@pytest.fixture(scope="module")
def update(tmp_path_factory):
    """A large update in a file, with values that no encoding makes small."""
    path = tmp_path_factory.mktemp("transfer") / "update.npz"
    values = np.random.default_rng(7).standard_normal((ROWS, WIDTH), np.float32)
    np.savez(path, **{"v.keys": np.arange(ROWS), "v.values": values})
    return path


@pytest.fixture
def opened(client):
    """A round of a server."""
    with client.create_round(SPEC) as made:
        yield made
        made.delete()


@pytest.fixture
def stalling(server):
    """A network to the server that stalls in the middle of the first upload."""
    proxy = FlakyProxy(server.address, [STALL_BYTES], pause_s=10 * TIMEOUT_S)
    yield proxy
    proxy.close()


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_bar_draws_on_terminals_only(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    screen, file = Screen(), io.StringIO()
    for stream in (screen, file):
        with ProgressBar("upload [b]", 2_000_000, "B", stream) as bar:
            bar.advance(500_000)
            bar.advance(1_500_000)
    shown = ESCAPES.sub("", screen.getvalue())
    assert re.search(r"upload \[b\] \S+ +25% 0\.5/2\.0 MB", shown)
    assert re.search(r" 100% 2\.0/2\.0 MB \S+ [kMG]?B/s ", shown)
    assert screen.getvalue().endswith("\x1b[2K"), "the line is removed"
    assert file.getvalue() == ""
    monkeypatch.setenv("TERM", "dumb")
    with ProgressBar("upload", 1, "B", dumb := Screen()) as bar:
        bar.advance()
    assert dumb.getvalue() == ""


def test_transfers_show_their_progress_on_a_terminal_and_nothing_elsewhere(opened, update, server, tmp_path):
    at_server = ("--address", server.address)
    terminal = Terminal("submit", opened.name, "a", str(update), *at_server)
    terminal.wait_for(r"upload a .* [1-9]\d*% .*/1[67]\.\d MB .*B/s")
    terminal.wait_for(rf"{ROWS} tuples, \d+ bytes")
    assert terminal.end() == 0
    terminal.close()
    opened.start_merge()
    file = str(tmp_path / "result.npz")
    terminal = Terminal("result", opened.name, "-o", file, *at_server)
    terminal.wait_for(rf"result {opened.name} .*100% {ROWS}/{ROWS} rows")
    assert terminal.end() == 0
    terminal.close()
    command = [sys.executable, "-m", "sparseagg", "result", opened.name, "-o", file, *at_server]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"v: {ROWS} rows, sparse\n", "")


def test_interrupted_submit_names_the_id_that_resumes(opened, update, server, stalling, monkeypatch, capsys):
    terminal = Terminal("submit", opened.name, "a", str(update), "--address", stalling.address)
    terminal.wait_for(r" [1-9]\d*% ")
    server.wait_until(lambda: stalling.paused == 1)
    terminal.press(b"\x03")
    terminal.wait_for("sparseagg: interrupted; " + RESUMES)
    assert terminal.end() == 128 + signal.SIGINT
    terminal.close()
    assert b"Traceback" not in terminal.written
    submission_id = re.search(RESUMES, terminal.written.decode())[1]

    firsts = []
    first_chunk = Resumption.first_chunk
    monkeypatch.setattr(Resumption, "first_chunk", lambda *given: firsts.append(first_chunk(*given)) or firsts[-1])
    again = ["submit", opened.name, "a", str(update), "--address", server.address, "--submission-id", submission_id]
    assert main(again) == 0
    assert capsys.readouterr().out.startswith(f"{ROWS} tuples, ")
    assert len(firsts) == 1
    assert firsts[0] > 0, "the server keeps what it has received"
    (listed,) = opened.submissions()
    assert listed.submission_id == submission_id
    sent = np.load(update)
    opened.start_merge()
    assert np.array_equal(opened.result()["v"].values, sent["v.values"])


def test_submit_that_ends_with_its_time_names_the_id_that_resumes(opened, update, stalling, server, capsys):
    words = ["submit", opened.name, "a", str(update)]
    assert main([*words, "--address", stalling.address, "--timeout", "3"]) == 1
    errors = capsys.readouterr().err
    submission_id = re.search("^sparseagg: not submitted; " + RESUMES, errors)[1]
    assert main([*words, "--address", server.address, "--submission-id", submission_id]) == 0
