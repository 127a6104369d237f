"""`sparseagg top`: in a pseudo-terminal with a real server, and its parts."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading

import numpy as np
import pytest
import sparseagg as sa
from sparseagg._internal.commands.cli import main
from sparseagg.cluster import Cluster
from terminal import TIMEOUT_S, Terminal

SPEC = sa.RoundSpec([sa.TensorSpec("v", dtype="float32", num_rows=1000)])
UPDATE = {"v": (np.arange(500), np.ones(500, np.float32))}
ALTERNATE_SCREEN, MAIN_SCREEN, CURSOR_SHOWN = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"


@pytest.fixture
def start_top():
    """Starts the command in terminals, which are closed in the end."""
    with contextlib.ExitStack() as stack:

        def start(*flags: str, **options) -> Terminal:
            terminal = Terminal("top", "--interval", "0.2", *flags, **options)
            stack.callback(terminal.close)
            return terminal

        yield start


@pytest.fixture
def in_process(capsys):
    """Runs the command in this process; returns its status, output and errors."""

    def call(*flags: str) -> tuple[int, str, str]:
        status = main(["top", *flags])
        return (status, *capsys.readouterr())

    return call


def test_top_shows_a_round_from_open_to_done_and_restores_the_terminal(start_top, start_server):
    server = start_server()
    terminal = start_top("--address", server.address)
    terminal.wait_for("rounds   none")
    with sa.Client(server.address) as client:
        opened = client.create_round(SPEC, round_id="alpha")
        terminal.wait_for("alpha +open +0 +0 +0 ")
        opened.submit("a", UPDATE)
        terminal.wait_for(r"uploads; [1-9][\d.]* k?B/s, [1-9][\d.]* k? ?tuples/s")
        terminal.wait_for(r"alpha +open +1 +0 +0 +500 +[1-9][\d.]* k?B +[1-9][\d.]* k?B +[1-9][\d.]*( k)? +[a-z]+")
        opened.finish()
        terminal.wait_for("alpha +done +1 ")
    assert terminal.written.count(ALTERNATE_SCREEN) == 1
    terminal.press(b"\x03")
    assert terminal.end() == 0
    assert terminal.modes() == terminal.modes_before
    assert MAIN_SCREEN in terminal.written.rpartition(ALTERNATE_SCREEN)[2]
    assert CURSOR_SHOWN in terminal.written.rpartition(b"alpha")[2]


def test_top_shows_a_stream(start_top, start_server):
    server = start_server()
    terminal = start_top("--address", server.address)
    with sa.Client(server.address) as client:
        stream = client.create_stream(SPEC, buffer=3, staleness=[1, 0.5], stream_id="clicks")
        terminal.wait_for("STREAM +VERSION +BUFFERED +COMMITS +REFUSED")
        terminal.wait_for("clicks +1 +0 of 3 +0 +0 +0 +– +– +– ")
        for _ in range(4):  # of which the last one is stale by 1
            stream.submit("a", UPDATE, base_version=0)
        terminal.wait_for(r"clicks +2 +1 of 3 +4 +0 +[\d.]+( k)? +0.2 +1 +full \d\d:\d\d:\d\d")
        terminal.wait_for(r"clicks\.v1 +done +3 ")
        stream.cut()
        terminal.wait_for(r"clicks +3 +0 of 3 +4 +0 +[\d.]+ +0.2 +1 +call \d\d:\d\d:\d\d")


def test_top_waits_for_a_server_that_has_gone(start_top, start_server):
    first = start_server()
    terminal = start_top("--address", first.address)
    with sa.Client(first.address) as client:
        client.create_round(SPEC, round_id="before")
    terminal.wait_for("before +open")
    first.kill()
    terminal.wait_for(r"no answer for \d+ s, asks again every 0.2 s; UnavailableError: ")
    terminal.wait_for("before +open")  # as it was last
    second = start_server(address=first.address)
    with sa.Client(second.address) as client:
        client.create_round(SPEC, round_id="after")
    terminal.wait_for("rounds   1 open; ")
    terminal.wait_for("after +open")
    terminal.press(b"\x03")
    assert terminal.end() == 0
    assert terminal.modes() == terminal.modes_before
    assert b"Traceback" not in terminal.written


def test_interrupt_ends_a_look_that_gets_no_answer(monkeypatch):
    """Control-C does not wait for the timeout of a call."""
    closed, top = threading.Event(), pytest.importorskip("sparseagg._internal.commands.top")

    class Silent:
        def __init__(self, address, **_):
            self.address = address

        def server_info(self):
            if self.address == "interrupted":
                raise KeyboardInterrupt
            assert closed.wait(TIMEOUT_S)
            raise sa.errors.CancelledError("closed")

        def close(self):
            closed.set()

    monkeypatch.setattr(top, "Client", Silent)
    with pytest.raises(KeyboardInterrupt):
        top.watch(top.Servers(["interrupted", "silent"]), 60.0, "")
    assert closed.is_set()


def test_top_once_prints_a_view_without_a_terminal(in_process, start_server):
    server = start_server()
    name = "a-name-" * 18  # is not cut, where nobody sees a width
    with sa.Client(server.address) as client:
        opened = client.create_round(SPEC, round_id=name)
        opened.submit("a", UPDATE)
        client.create_round(SPEC).cancel()
    status, out, _ = in_process("--once", "--address", server.address)
    assert status == 0
    assert re.search(rf"^{name} +open +1 +0 +0 +500 +[\d.]+ k?B +– +– +[a-z]+ *$", out, re.MULTILINE)
    assert "rounds   1 open, 1 cancelled; 0 open uploads\n" in out
    assert re.search(r"^memory   process [1-9][\d.]* MiB, limit \S+ [MG]iB$", out, re.MULTILINE)
    assert "\x1b" not in out


def test_commands_other_than_top_import_no_rich():
    code = (
        "import sys, sparseagg._internal.commands.cli; print([name for name in sys.modules if name.startswith('rich')])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--interval", "0.09"], "--interval must be a time of 0.1 s or more, got 0.09"),
        (["--interval", "inf"], "got inf"),
        (["--interval", "nan"], "got nan"),
    ],
)
def test_top_refuses_wrong_flags(in_process, monkeypatch, flags, text):
    top = pytest.importorskip("sparseagg._internal.commands.top")
    monkeypatch.setattr(top, "Servers", lambda *_: pytest.fail("it runs"))  # without end
    status, _, errors = in_process(*flags, "--address", "127.0.0.1:1")
    assert status == 1
    assert text in errors


def make_rounds(client: sa.Client, number: int) -> None:
    for i in range(number):
        client.create_round(SPEC, round_id=f"round-{i:02}")


def test_top_prints_plain_tables_on_a_dumb_terminal(start_top, start_server):
    server = start_server()
    with sa.Client(server.address) as client:
        make_rounds(client, 30)
    terminal = start_top("--address", server.address, "--filter", "round-1 open", lines=14, columns=60, term="dumb")
    for _ in range(2):
        terminal.wait_for(r"sparseagg top  127.*(\r\n.+)*\r\nROUND .*(\r\nround-1\d +open.*){7}\r\n1–7 of 10 rounds")
    terminal.press(b"\x03")
    assert terminal.end() == 0
    assert not re.search(rb"[^\r\n -~\x80-\xff]", terminal.written.replace(b"^C", b"")), "a control character"
    assert max(map(len, terminal.written.decode().split("\r\n"))) <= 60
    assert terminal.modes() == terminal.modes_before


def test_top_goes_on_printing_into_a_pipe_until_its_reader_ends(start_server):
    server = start_server()
    with sa.Client(server.address) as client:
        make_rounds(client, 30)
    command = [sys.executable, "-m", "sparseagg", "top", "--interval", "0.1", "--address", server.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        views = "".join(process.stdout.readline().decode() for _ in range(100))
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(TIMEOUT_S) == 1
    assert errors == b""
    assert views.count("sparseagg top  127") == 3
    assert len(re.findall(r"^round-\d\d +open ", views, re.MULTILINE)) > 60
    assert "\x1b" not in views


def test_cluster_is_shown_as_one(capsys):
    with Cluster(3, ranges=2) as cluster:
        opened = cluster.create_round(sa.RoundSpec([sa.TensorSpec("w", "float32", num_rows=1000)], op="sum"), "spread")
        for i in range(9):
            opened.submit(f"c{i}", {"w": (np.arange(100) + i, np.ones(100, np.float32))})
        assert main(["top", "--address", cluster.client().address, "--once"]) == 0
        before = capsys.readouterr().out
        opened.start_merge()
        assert main(["top", "--address", cluster.client().address, "--once"]) == 0
        after = capsys.readouterr().out
        assert main(["top", "--address", cluster.client().address, "--once", "--filter", "other"]) == 0
        assert "spread" not in capsys.readouterr().out
    assert re.search(r"spread +open +9 ", before)
    assert re.search(
        r"^memory   0: process [\d.]+ MiB, limit \S+ [MG]iB; 1: process .*; 2: process ", before, re.MULTILINE
    )
    assert re.search(r"spread  on server 0: \d", before)
    assert re.search(r"spread +done +9 ", after)
    assert re.search(r"; seal [\d.]+ s, plan [\d.]+ s, reduce [\d.]+ s; slowest of 2 ranges w \d+–\d*: [\d.]+ s", after)
    assert "rounds   1 done" in after  # not those of the result's ranges


def test_top_filters_what_it_prints_once(in_process, start_server):
    server = start_server()
    with sa.Client(server.address) as client:
        make_rounds(client, 12)
        client.create_stream(SPEC, buffer=3, stream_id="clicks")
    _, out, _ = in_process("--once", "--address", server.address, "--filter", "D-1")
    assert re.findall(r"^(round-\d\d|clicks)", out, re.MULTILINE) == ["round-11", "round-10"]
    assert "filter: D-1 (2 of 13 rounds)\n" in out
    _, out, _ = in_process("--once", "--address", server.address, "--filter", "click")
    assert re.findall(r"^(round-\d\d|clicks\S*) ", out, re.MULTILINE) == ["clicks", "clicks.v1"]
