"""`sparseagg top`: in a pseudo-terminal with a real server, and its parts."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import io
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import threading
import time
import types

import numpy as np
import pytest
import sparseagg as sa
from sparseagg._internal.base import sizes
from sparseagg._internal.commands import top
from sparseagg._internal.commands.cli import main
from sparseagg._internal.commands.top_keys import split_keys
from sparseagg._internal.commands.top_look import Look, Rate, commit_rates, look_at, rates
from sparseagg._internal.commands.top_window import Window
from sparseagg.cluster import Cluster

rich_console = pytest.importorskip("rich.console")
top_view = pytest.importorskip("sparseagg._internal.commands.top_view")

SPEC = sa.RoundSpec([sa.TensorSpec("v", dtype="float32", num_rows=1000)])
UPDATE = {"v": (np.arange(500), np.ones(500, np.float32))}
TIMEOUT_S = 30
ALTERNATE_SCREEN, MAIN_SCREEN, CURSOR_SHOWN = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """`sparseagg top` in a pseudo-terminal."""

    def __init__(self, *flags: str, lines: int = 40, columns: int = 120, term: str = "xterm-256color") -> None:
        self._ours, self._theirs = pty.openpty()
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.modes_before = self.modes()
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            # For Ctrl-C. Not by a preexec_fn: gRPC's handlers of fork() may abort the child of a process that uses it.
            ["setsid", "--ctty", sys.executable, "-m", "sparseagg", "top", "--interval", "0.2", *flags],
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            env={**environment, "TERM": term},
        )
        self.written = b""
        self._seen = 0

    def modes(self) -> list:
        """Returns how the terminal takes lines and keys."""
        return termios.tcgetattr(self._theirs)

    def wait_for(self, pattern: str) -> None:
        """Waits until the text without its escapes has a match, after the last one; fails if none comes."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            text = ESCAPES.sub("", self.written.decode(errors="replace"))
            match = re.compile(pattern).search(text, self._seen)
            if match:
                self._seen = match.end()
                return
            assert self._read(deadline), f"no {pattern!r} in {' '.join(text[self._seen :].split())[-2000:]!r}"

    def screen(self) -> str:
        """Returns the lines of the last view."""
        return ESCAPES.sub("", self.written.decode(errors="replace")).rpartition("sparseagg top")[2]

    def press(self, key: bytes) -> None:
        os.write(self._ours, key)

    def end(self) -> int:
        """Reads until the process has ended; returns its status."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.process.poll() is None:
            self._read(min(deadline, time.monotonic() + 0.05))
            assert time.monotonic() < deadline, f"no end; {self.written[-1000:]!r}"
        while self._read(time.monotonic() + 0.05):
            pass
        return self.process.returncode

    def _read(self, deadline: float) -> bool:
        """Reads what comes until then; returns whether there was anything."""
        ready, _, _ = select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))
        if ready:
            self.written += os.read(self._ours, 1 << 16)
        return bool(ready)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


@pytest.fixture
def start_top():
    """Starts the command in terminals, which are closed in the end."""
    with contextlib.ExitStack() as stack:

        def start(*flags: str, **options) -> Terminal:
            terminal = Terminal(*flags, **options)
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
        terminal.wait_for(r"alpha +open +1 +0 +500 +[1-9][\d.]* k?B +[1-9][\d.]* k?B +[1-9][\d.]*( k)? +[a-z]+")
        opened.finish()
        terminal.wait_for("alpha +done +1 ")
    assert terminal.written.count(ALTERNATE_SCREEN) == 1
    assert terminal.modes() != terminal.modes_before, "while it reads keys"
    terminal.press(b"q")
    assert terminal.end() == 0
    assert terminal.modes() == terminal.modes_before
    assert MAIN_SCREEN in terminal.written.rpartition(ALTERNATE_SCREEN)[2]
    assert CURSOR_SHOWN in terminal.written.rpartition(b"alpha")[2]


def test_top_ends_with_control_c_as_with_q(start_top, server):
    terminal = start_top("--address", server.address)
    terminal.wait_for("rounds   ")
    terminal.press(b"\x03")
    assert terminal.end() == 0
    assert terminal.modes() == terminal.modes_before
    assert MAIN_SCREEN in terminal.written
    assert b"Traceback" not in terminal.written


def test_top_shows_a_stream(start_top, start_server):
    server = start_server()
    terminal = start_top("--address", server.address)
    with sa.Client(server.address) as client:
        stream = client.stream(SPEC, buffer=3, staleness=[1, 0.5], stream_id="clicks")
        terminal.wait_for("STREAM +VERSION +BUFFERED +COMMITS")
        terminal.wait_for("clicks +1 +0 of 3 +0 +0 +– +– +– ")
        for _ in range(4):  # of which the last one is stale by 1
            stream.submit("a", UPDATE, base_version=0)
        terminal.wait_for(r"clicks +2 +1 of 3 +4 +[\d.]+( k)? +0.2 +1 +full \d\d:\d\d:\d\d")
        terminal.wait_for(r"clicks\.v1 +done +3 ")
        stream.cut()
        terminal.wait_for(r"clicks +3 +0 of 3 +4 +[\d.]+ +0.2 +1 +call \d\d:\d\d:\d\d")


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
    terminal.press(b"q")
    assert terminal.end() == 0
    assert terminal.modes() == terminal.modes_before
    assert b"Traceback" not in terminal.written


def test_top_waits_for_a_server_that_has_not_started(start_top, start_server):
    address = start_server()
    address.stop()
    terminal = start_top("--address", address.address)
    terminal.wait_for("no answer, asks again every 0.2 s; UnavailableError: ")
    start_server(address=address.address)
    terminal.wait_for("rounds   none")


def test_top_shows_the_memory_in_use_of_the_metrics(start_top, start_server):
    server = start_server("--metrics-address", "127.0.0.1:0", "--memory-limit", "1GiB")
    terminal = start_top("--address", server.address, "--metrics", f"http://{server.metrics_address}/metrics")
    terminal.wait_for(
        r"memory   process [1-9][\d.]* MiB of 1.0 GiB; rounds [\d.]+ MiB of 768 MiB; in flight [\d.]+ MiB of 128 MiB"
    )


def test_top_ends_a_look_that_gets_no_answer(monkeypatch):
    """The key q does not wait for the timeout of a call."""
    closed = threading.Event()

    class Silent:
        address = "silent"

        def server_info(self):
            assert closed.wait(TIMEOUT_S)
            raise sa.errors.CancelledError("closed")

        def close(self):
            closed.set()

    @contextlib.contextmanager
    def keys():
        yield lambda: ["q"]

    view = types.SimpleNamespace(
        console=lambda: None, live=lambda *_: contextlib.nullcontext(), message=lambda *_, **__: None
    )
    monkeypatch.setattr(top, "keys", keys)
    silent = Silent()
    top._watch(silent, silent.server_info, 60.0, Window(), view)
    assert closed.is_set()


def test_top_once_prints_a_view_without_a_terminal(in_process, start_server):
    server = start_server("--metrics-address", "127.0.0.1:0")
    name = "a-name-" * 18  # is not cut, where nobody sees a width
    with sa.Client(server.address) as client:
        opened = client.create_round(SPEC, round_id=name)
        opened.submit("a", UPDATE)
        client.create_round(SPEC).cancel()
    status, out, _ = in_process("--once", "--address", server.address)
    assert status == 0
    assert re.search(rf"^{name} +open +1 +0 +500 +[\d.]+ k?B +– +– +[a-z]+ *$", out, re.MULTILINE)
    assert "rounds   1 open, 1 cancelled; 0 open uploads\n" in out
    assert re.search("^memory   limit [0-9.]+ [MG]iB; what is in use: --metrics URL$", out, re.MULTILINE)
    assert "\x1b" not in out
    _, out, _ = in_process(
        "--once", "--address", server.address, "--metrics", f"http://{server.metrics_address}/metrics"
    )
    assert re.search(r"^memory   process [1-9]", out, re.MULTILINE)


@pytest.mark.parametrize("path", ["/healthz", "/nothing"])
def test_top_goes_on_without_metrics_that_cannot_be_read(in_process, start_server, path):
    server = start_server("--metrics-address", "127.0.0.1:0")
    url = f"http://{server.metrics_address}{path}"
    status, out, _ = in_process("--once", "--address", server.address, "--metrics", url)
    assert status == 0
    assert f"memory   {url}: " in out
    assert "rounds   none" in out


def test_top_once_without_a_server_fails(in_process):
    status, out, errors = in_process("--once", "--address", "127.0.0.1:1")
    assert (status, out) == (1, "")
    assert errors.startswith("sparseagg: ")
    assert "refused" in errors


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
        (["--metrics", "file:///etc/passwd"], "'file:///etc/passwd'"),
        (["--metrics", "127.0.0.1:8002"], "'127.0.0.1:8002'"),
        (["--metrics", "http:///metrics"], "'http:///metrics'"),
    ],
)
def test_top_refuses_wrong_flags(in_process, monkeypatch, flags, text):
    monkeypatch.setattr(top, "_print_each", lambda *_: pytest.fail("it runs"))  # without end
    status, _, errors = in_process(*flags, "--address", "127.0.0.1:1")
    assert status == 1
    assert text in errors


@pytest.fixture(scope="module")
def seen(server) -> Look:
    """A look at a server with a round of 500 tuples."""
    with sa.Client(server.address) as client:
        opened = client.create_round(SPEC)
        opened.submit("a", UPDATE)
        found = look_at(client, None)
        opened.delete()
    return dataclasses.replace(found, rounds=tuple(info for info in found.rounds if info.name == opened.name))


def changed(info: sa.RoundInfo, received: int, tuples: int, **fields) -> sa.RoundInfo:
    """Returns the round with other figures."""
    stages = [
        dataclasses.replace(stage, bytes=received) if stage.stage == "receive" else stage
        for stage in info.timeline.stages
    ]
    timeline = dataclasses.replace(info.timeline, stages=tuple(stages))
    return dataclasses.replace(info, timeline=timeline, num_tuples=tuples, **fields)


def test_rates_are_of_the_time_between_two_looks(seen):
    (info,) = seen.rounds
    before = dataclasses.replace(seen, at=10.0, rounds=(changed(info, 1000, 50),))
    now = dataclasses.replace(seen, at=14.0, rounds=(changed(info, 9000, 90),))
    assert rates(before, now) == {info.name: Rate(2000.0, 10.0)}
    assert rates(None, now) == {}
    assert rates(now, now) == {}


def test_rates_of_a_new_round_begin_at_zero(seen):
    (info,) = seen.rounds
    before = dataclasses.replace(seen, at=10.0, rounds=(changed(info, 1000, 50),))
    # The same name after a restart of the server, and another one.
    again = changed(info, 100, 20, create_time=info.create_time.replace(year=2000))
    other = changed(info, 400, 40, name="rounds/other")
    now = dataclasses.replace(seen, at=12.0, rounds=(again, other))
    assert rates(before, now) == {info.name: Rate(50.0, 10.0), "rounds/other": Rate(200.0, 20.0)}


def test_commits_a_second_of_streams(seen, server):
    with sa.Client(server.address) as client:
        stream = client.stream(SPEC, buffer=3)
        info = stream.info
        stream.delete()

    def look(at: float, commits: int, **fields) -> Look:
        return dataclasses.replace(seen, at=at, streams=(dataclasses.replace(info, num_commits=commits, **fields),))

    assert commit_rates(None, look(1.0, 5)) == {}
    assert commit_rates(look(1.0, 5), look(3.0, 25)) == {info.name: 10.0}
    assert commit_rates(look(1.0, 5), look(3.0, 1)) == {info.name: 0.0}  # a restart
    again = info.create_time.replace(year=2000)
    assert commit_rates(look(1.0, 5), look(3.0, 8, create_time=again)) == {info.name: 4.0}  # another stream


def drawn(address, now, before=None, *, width=200, window=None, height=None, **options) -> str:
    """Returns the text of a view."""
    console = rich_console.Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(top_view.view(console, address, now, before, window or Window(), height=height, **options))
    return console.file.getvalue()


def test_view_shows_active_rounds_first_then_the_busiest(seen):
    (info,) = seen.rounds

    def with_rounds(at: float, busy: int) -> Look:
        rounds = [
            changed(info, 9000, 0, name="rounds/ended", state="done"),
            changed(info, 10, 0, name="rounds/calm"),
            changed(info, busy, 0, name="rounds/busy"),
        ]
        return dataclasses.replace(seen, at=at, rounds=tuple(rounds))

    text = drawn("address", with_rounds(2.0, 500), with_rounds(1.0, 0), height=7)
    assert re.findall(r"^(busy|calm|ended)\b", text, re.MULTILINE) == ["busy", "calm"]
    assert "\n1–2 of 3 rounds\n" in text
    assert re.search(r"^busy .* 500 B +500 B +0 ", text, re.MULTILINE)


@pytest.mark.parametrize(("width", "lost"), [(100, []), (80, ["LONGEST"]), (60, ["UPLOADS", "TUPLES/S", "LONGEST"])])
def test_view_fits_a_narrow_terminal(seen, width, lost):
    (info,) = seen.rounds
    full = [
        changed(info, 123_456_789, 999_999, name="rounds/" + "long-" * 20, state="finalizing", num_uploads=10_000),
        changed(info, 999_900, 1_234_567_890, state="cancelled", num_submissions=1_000_000),
    ]
    before = dataclasses.replace(seen, at=1.0, rounds=(changed(info, 0, 0),))
    now = dataclasses.replace(seen, at=1.5, rounds=tuple(full))
    lines = drawn("address", now, before, width=width, height=24, has_keys=True).splitlines()
    assert max(map(len, lines)) <= width
    heads = ["ROUND", "STATE", "SUBMITTED", "UPLOADS", "TUPLES", "BYTES", "BYTES/S", "TUPLES/S", "LONGEST"]
    titles, first, second, _ = lines[-4:]
    assert titles.split() == [head for head in heads if head not in lost]
    cells = ["long-", "finalizing", "1", "10000", "1.0 M", "123 MB", "247 MB", "2.0 M", "[a-z]+"]
    kept = [cell for head, cell in zip(heads, cells) if head not in lost]
    assert re.fullmatch(r"long-long-long[-long]*… " + " +".join(kept[1:]) + " *", first)
    assert re.search(r" cancelled +1000000 ", second)


@pytest.mark.parametrize("width", [30, 40, 60, 200])
def test_view_has_no_more_lines_than_the_terminal(seen, server, width):
    (info,) = seen.rounds
    with sa.Client(server.address) as client:
        stream = client.stream(SPEC, buffer=3)
        streams = (stream.info,) * 30
        stream.delete()
    rounds = tuple(dataclasses.replace(info, name=f"rounds/r{i:02}") for i in range(50))
    notes = {each.name: f"{each.name} on server 0: 1.0 MB, 1: 2.0 MB" for each in rounds}
    now = dataclasses.replace(seen, rounds=rounds, notes=notes, streams=streams)
    window = Window()
    text = drawn("address", now, width=width, height=40, window=window, trouble="no answer " * 9, has_keys=True)
    assert len(text.splitlines()) == 40
    assert len(re.findall(r"^r\d\d ", text, re.MULTILINE)) == window.page > 1


def test_view_obeys_no_escape_of_a_server(seen):
    server = dataclasses.replace(seen.server, engine_description="cpu\x1b[2J\x07[bold]")
    text = drawn("address", dataclasses.replace(seen, server=server), trouble="a\x1b]0;title\x07b")
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "cpu [2J [bold]" in text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (999, "999"),
        (999.6, "1.0 k"),
        (1000, "1.0 k"),
        (99_940, "99.9 k"),
        (123_456, "123 k"),
        (5e15, "5000 T"),
    ],
)
def test_view_writes_numbers_with_prefixes(number, text):
    assert sizes.decimal(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0.0 MiB"), (1 << 20, "1.0 MiB"), (1 << 30, "1.0 GiB"), (768 << 20, "768 MiB"), (3 << 40, "3.0 TiB")],
)
def test_view_writes_memory_as_flags_do(number, text):
    assert sizes.binary_size(number) == text


def test_keys_are_told_apart():
    assert split_keys("a/\x1b[A\x1bOB\x1b[5~\x1b[1;5C\x7f\r\x1b\x01ü") == [
        *("a", "/", "up", "down", "page up", "backspace", "enter", "escape", "ü"),
    ]


def shown_rounds(window: Window, names: list[str], page: int) -> list[str]:
    matching = [name for name in names if window.passes(name, "open")]
    window.fit(len(matching), page)
    return matching[window.first : window.first + page]


def test_keys_scroll_and_filter():
    names = [f"r{i}" for i in range(20)]
    window = Window()

    def after(*keys: str) -> list[str]:
        assert not any([window.press(key) for key in keys])
        return shown_rounds(window, names, 5)

    assert after() == ["r0", "r1", "r2", "r3", "r4"]
    assert after("down", "j")[0] == "r2"
    assert after("page down")[0] == "r7"
    assert after("end") == after("G") == ["r15", "r16", "r17", "r18", "r19"]
    assert after("up", "k", "page up")[0] == "r8"
    assert after("home")[0] == after("g", "up")[0] == "r0"
    assert after("end", "/", "1", "q") == []
    assert after("backspace") == ["r1", "r10", "r11", "r12", "r13"]
    assert after(" ", "O", "p", "e", "n", "enter", "down")[0] == "r10"
    assert after("escape") == names[:5]
    assert after("/", "9", "escape") == names[:5]
    assert window.press("q")


def make_rounds(client: sa.Client, number: int) -> None:
    for i in range(number):
        client.create_round(SPEC, round_id=f"round-{i:02}")


def test_top_scrolls_and_filters_on_a_terminal_of_60_columns(start_top, start_server):
    server = start_server()
    with sa.Client(server.address) as client:
        make_rounds(client, 30)
        client.get_round("round-17").cancel()
    terminal = start_top("--address", server.address, lines=16, columns=60)
    terminal.wait_for("round-29 +open(.*\r\n)+1–9 of 30 rounds  q ends")
    assert len(re.findall(r"round-\d\d", terminal.screen())) == 9
    assert max(map(len, terminal.screen().split("\r\n"))) <= 60
    terminal.press(b"\x1b[B\x1b[6~")  # a line, and a page
    terminal.wait_for("round-19 +open(.*\r\n)+11–19 of 30 rounds")
    terminal.press(b"G")
    terminal.wait_for("round-17 +cancelled(.*\r\n)+22–30 of 30 rounds")
    terminal.press(b"/round-1")
    terminal.wait_for(r"1–9 of 10 rounds  filter: round-1_ \(10 of 30 rounds\)")
    terminal.press(b" CANC\r")
    terminal.wait_for(r"round-17 +cancelled.*\r\nfilter: round-1 CANC \(1 of 30 rounds\)")
    terminal.press(b"\x1b")
    terminal.wait_for("1–9 of 30 rounds")
    terminal.press(b"q")
    assert terminal.end() == 0
    assert terminal.modes() == terminal.modes_before


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


def test_top_filters_what_it_prints_once(in_process, start_server):
    server = start_server()
    with sa.Client(server.address) as client:
        make_rounds(client, 12)
        client.stream(SPEC, buffer=3, stream_id="clicks")
    _, out, _ = in_process("--once", "--address", server.address, "--filter", "D-1")
    assert re.findall(r"^(round-\d\d|clicks)", out, re.MULTILINE) == ["round-11", "round-10"]
    assert "filter: D-1 (2 of 13 rounds)\n" in out
    _, out, _ = in_process("--once", "--address", server.address, "--filter", "click")
    assert re.findall(r"^(round-\d\d|clicks\S*) ", out, re.MULTILINE) == ["clicks", "clicks.v1"]


def test_cluster_is_shown_as_one(capsys):
    with Cluster(3, ranges=2) as cluster:
        opened = cluster.create_round(sa.RoundSpec([sa.TensorSpec("w", "float32", num_rows=1000)], op="sum"), "spread")
        for i in range(9):
            opened.submit(f"c{i}", {"w": (np.arange(100) + i, np.ones(100, np.float32))})
        assert main(["top", "--address", cluster.client().address, "--once"]) == 0
        before = capsys.readouterr().out
        opened.close()
        assert main(["top", "--address", cluster.client().address, "--once"]) == 0
        after = capsys.readouterr().out
        assert main(["top", "--address", cluster.client().address, "--once", "--filter", "other"]) == 0
        assert "spread" not in capsys.readouterr().out
    assert re.search(r"spread +open +9 ", before)
    assert re.search(r"spread  on server 0: \d", before)
    assert re.search(r"spread +done +9 ", after)
    assert re.search(r"; seal [\d.]+ s, plan [\d.]+ s, reduce [\d.]+ s; slowest of 2 ranges w \d+–\d*: [\d.]+ s", after)
    assert "rounds   1 done" in after  # not those of the result's ranges
