"""The parts of `sparseagg top`: rates and views."""

from __future__ import annotations

import dataclasses
import io
import re

import numpy as np
import pytest
import sparseagg as sa
from sparseagg._internal.base import text as sizes

rich_console = pytest.importorskip("rich.console")
top_view = pytest.importorskip("sparseagg._internal.commands.top")

SPEC = sa.RoundSpec([sa.TensorSpec("v", dtype="float32", num_rows=1000)])
UPDATE = {"v": (np.arange(500), np.ones(500, np.float32))}


@pytest.fixture(scope="module")
def seen(server) -> top_view.Look:
    """A look at a server with a round of 500 tuples."""
    with sa.Client(server.address) as client:
        opened = client.create_round(SPEC)
        opened.submit("a", UPDATE)
        servers = top_view.Servers([server.address])
        found = servers.look()
        servers.close()
        opened.delete()
    return dataclasses.replace(found, rounds=tuple(info for info in found.rounds if info.name == opened.name))


def changed(info: sa.types.RoundInfo, received: int, tuples: int, **fields) -> sa.types.RoundInfo:
    """Returns the round with other figures."""
    stages = [
        dataclasses.replace(stage, bytes=received) if stage.stage == "receive" else stage
        for stage in info.timeline.stages
    ]
    timeline = dataclasses.replace(info.timeline, stages=tuple(stages))
    return dataclasses.replace(info, timeline=timeline, num_tuples=tuples, **fields)


def rate(before: top_view.Look | None, now: top_view.Look, name: str) -> float:
    """Returns the tuples a second of a round of ``now``."""
    (info,) = [info for info in now.rounds if info.name == name]
    return top_view._Rates(before, now)(info, lambda each: each.num_tuples)


def test_rates_of_a_new_round_begin_at_zero(seen):
    (info,) = seen.rounds
    before = dataclasses.replace(seen, at=10.0, rounds=(changed(info, 1000, 50),))
    # The same name after a restart of the server, and another one.
    again = changed(info, 100, 20, create_time=info.create_time.replace(year=2000))
    other = changed(info, 400, 40, name="rounds/other")
    now = dataclasses.replace(seen, at=12.0, rounds=(again, other))
    assert (rate(before, now, info.name), rate(before, now, "rounds/other")) == (10.0, 20.0)
    later = dataclasses.replace(seen, at=14.0, rounds=(changed(info, 9000, 90),))
    assert rate(before, later, info.name) == 10.0
    assert rate(None, later, info.name) == rate(later, later, info.name) == 0
    assert top_view._Rates(None, later).text(info, lambda each: each.num_tuples) == "–"


def drawn(address, now, before=None, *, width=200, words="", height=None, **options) -> str:
    """Returns the text of a view."""
    console = rich_console.Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(top_view.view(console, address, now, before, words, height=height, **options))
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("width", "lost"), [(100, []), (80, ["TUPLES/S", "LONGEST"]), (60, ["UPLOADS", "TUPLES", "TUPLES/S", "LONGEST"])]
)
def test_view_fits_a_narrow_terminal(seen, width, lost):
    (info,) = seen.rounds
    full = [
        changed(
            info,
            123_456_789,
            999_999,
            name="rounds/" + "long-" * 20 + "end",
            state="finalizing",
            num_uploads=10_000,
            num_refused=77,
        ),
        changed(info, 999_900, 1_234_567_890, state="cancelled", num_submissions=1_000_000),
    ]
    before = dataclasses.replace(seen, at=1.0, rounds=(changed(info, 0, 0),))
    now = dataclasses.replace(seen, at=1.5, rounds=tuple(full))
    lines = drawn("address", now, before, width=width, height=24).splitlines()
    assert max(map(len, lines)) <= width
    heads = ["ROUND", "STATE", "SUBMITTED", "REFUSED", "UPLOADS", "TUPLES", "BYTES", "BYTES/S", "TUPLES/S", "LONGEST"]
    titles, first, second = lines[-3:]
    assert titles.split() == [head for head in heads if head not in lost]
    cells = ["long-", "finalizing", "1", "77", "10000", "1.0 M", "123 MB", "247 MB", "2.0 M", "[a-z]+"]
    kept = [cell for head, cell in zip(heads, cells) if head not in lost]
    assert re.fullmatch(r"long-[-long]*…[-long]*ng-end " + " +".join(kept[1:]) + " *", first)
    assert re.search(r" cancelled +1000000 ", second)


@pytest.mark.parametrize("width", [30, 40, 60, 200])
def test_view_has_no_more_lines_than_the_terminal(seen, server, width):
    (info,) = seen.rounds
    with sa.Client(server.address) as client:
        stream = client.create_stream(SPEC, buffer=3)
        streams = (stream.info,) * 30
        stream.delete()
    rounds = tuple(dataclasses.replace(info, name=f"rounds/r{i:02}") for i in range(50))
    notes = {each.name: f"{each.name} on server 0: 1.0 MB, 1: 2.0 MB" for each in rounds}
    now = dataclasses.replace(seen, rounds=rounds, notes=notes, streams=streams)
    text = drawn("address", now, width=width, height=40, trouble="no answer " * 9)
    assert len(text.splitlines()) == 40
    assert len(re.findall(r"^r\d\d ", text, re.MULTILINE)) > 1


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


def test_view_shows_active_rounds_first_then_the_busiest(seen):
    (info,) = seen.rounds

    def with_rounds(at: float, busy: int) -> top_view.Look:
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
