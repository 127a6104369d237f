"""The wall clock jumps: deadlines, leases and retries go by the steady clock."""

from __future__ import annotations

import pathlib
import shlex

import pytest
import sparseagg as sa
from real_server import START_TIMEOUT_S
from wrapped_server import wrap

LIBRARIES = sorted(pathlib.Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
SPEC = sa.TensorSpec("v", dtype="float32", num_rows=100)
LONG_S = 3600.0
SHORT_S = 0.2

if not LIBRARIES:
    pytest.skip("Debian's package faketime is not installed", allow_module_level=True)


@pytest.fixture
def server(monkeypatch, tmp_path):
    """A server whose wall clock is off by what ``set_clock`` says."""
    offset = tmp_path / "offset"
    offset.write_text("+0\n", encoding="utf-8")
    settings = {
        "LD_PRELOAD": LIBRARIES[0],
        "FAKETIME_TIMESTAMP_FILE": offset,
        "FAKETIME_NO_CACHE": 1,
        "FAKETIME_DONT_FAKE_MONOTONIC": 1,  # as in a jump: only the wall clock is set
        "FAKETIME_DISABLE_SHM": 1,
    }
    prefix = " ".join(f"{name}={shlex.quote(str(value))}" for name, value in settings.items())
    start = wrap(monkeypatch, tmp_path, prefix)
    started = start(tmp_path / "log", "--data-dir", str(tmp_path / "data"))

    def set_clock(text: str) -> None:
        written = tmp_path / "new-offset"
        written.write_text(f"{text}\n", encoding="utf-8")
        written.replace(offset)

    started.set_clock = set_clock
    yield started
    started.kill()


def spec(deadline_s: float) -> sa.RoundSpec:
    return sa.RoundSpec([SPEC], deadline=deadline_s)


@pytest.mark.parametrize("jump", ["+2d", "-2d"])
def test_deadlines_and_leases_do_not_jump(server, jump) -> None:
    with sa.Client(server.address, timeout=START_TIMEOUT_S) as client:
        long = client.create_round(spec(LONG_S), round_id="long")
        short = client.create_round(spec(SHORT_S), round_id="short")
        client.create_tasks([sa.NewTask(b"work", id="one", deadline=LONG_S)])
        task = client.lease_task("worker", lease_duration=LONG_S, timeout=START_TIMEOUT_S)
        before = long.refresh().create_time
        server.set_clock(jump)
        after = client.create_round(spec(SHORT_S), round_id="after")
        assert abs((after.refresh().create_time - before).total_seconds()) > LONG_S, "the clock has not jumped"
        # Those that are due end, which also shows that the server has looked at all deadlines since.
        assert short.wait().state == "done"
        assert after.wait().state == "done"
        assert long.refresh().state == "open"
        assert client.get_task("one").state == "leased"
        assert 0 < client.extend_lease(task, LONG_S).lease_remaining <= LONG_S
        assert client.complete_task(task).state == "completed"
        long.submit("a", {"v": ([1], [1.0])})
        assert long.finish()["v"].keys.tolist() == [1]
