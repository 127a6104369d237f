"""The race's turns: who runs how often, what is timed of it, and on how many threads."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import Any
from unittest import mock

import numpy as np
import pytest
from conftest import REPOSITORY


class FakeProcess:
    """Takes these seconds for the first run of an entry, and those for every later one."""

    module = "numpy_"

    def __init__(self, first: float, later: float, name: str = "x", fails_at: int = 99) -> None:
        self._first, self._later, self._name, self._fails_at = first, later, name, fails_at
        self.asked: list[str] = []

    def ask(self, **command: Any) -> dict[str, Any]:
        if command["do"] == "load":
            entry = {"name": self._name, "output": "sparse", "threads": 1, "inputs": "joined", "refuses": None}
            return {"entries": [entry]}
        self.asked.append(command.get("memory", "check"))
        if len(self.asked) > self._fails_at:
            return {"failed": "its process ended"}
        seconds = self._later if len(self.asked) > 1 else self._first
        return {"error": None, "peak_bytes": 0, "seconds": seconds}


@pytest.fixture
def race_of(module, monkeypatch, tmp_path):
    """Runs the race of these processes; gives the results by kind of memory."""

    def run(*processes: FakeProcess) -> list[dict[str, Any]]:
        race_module = module("race")
        monkeypatch.setattr(race_module.native, "load", lambda: None)
        options = {"patience": 1.5, "least": 2, "repetitions": 7, "seed": 1, "threads": 1, "fresh_only": False}
        race = race_module.Race(argparse.Namespace(**options))
        race._processes = list(processes)
        race._race({"name": "A", "tuples": 1, "bytes_in": 1, "bytes_out": 1}, tmp_path)
        return race.results

    return run


@pytest.mark.parametrize(
    ("seconds", "fresh", "warm"), [(0.01, 7, 7), (0.3, 5, 5), (1.0, 2, 2), (2.0, 1, 0), (20.0, 1, 0)]
)
def test_race_gives_slow_ones_fewer_runs(race_of, seconds, fresh, warm) -> None:
    runs = {result["memory"]: result["repetitions"] for result in race_of(FakeProcess(seconds, seconds))}
    assert (runs["fresh"], runs.get("warm", 0)) == (fresh, warm)


@pytest.mark.parametrize("first", [1.0, 9.0])
def test_race_does_not_go_by_the_run_that_compiles(race_of, first) -> None:
    results = race_of(FakeProcess(first, 0.01))
    assert [(result["memory"], result["repetitions"]) for result in results] == [("fresh", 7), ("warm", 7)]
    assert all(result["most_seconds"] == 0.01 for result in results)


def test_race_gives_ours_all_runs(race_of) -> None:
    results = race_of(FakeProcess(9.0, 9.0, "sparseagg canonical"))
    assert [result["repetitions"] for result in results] == [7, 7]


def test_race_has_done_with_fresh_memory_before_it_warms_it(race_of) -> None:
    processes = FakeProcess(0.01, 0.01), FakeProcess(0.5, 0.5)
    race_of(*processes)
    assert processes[0].asked == ["check"] + ["fresh"] * 7 + ["warm"] * 7
    assert processes[1].asked == ["check"] + ["fresh"] * 3 + ["warm"] * 3


@pytest.mark.parametrize("runs", [0, 3, 8])
def test_race_goes_on_without_one_that_fails(race_of, runs) -> None:
    processes = FakeProcess(0.01, 0.01, "failing", fails_at=1 + runs), FakeProcess(0.01, 0.01)
    results = race_of(*processes)
    assert [(result["contestant"], result["repetitions"]) for result in results] == [("x", 7), ("x", 7)]
    assert len(processes[0].asked) == 2 + runs


def test_worker_times_no_first_run(module, monkeypatch) -> None:
    worker = module("worker").Worker(module)
    monkeypatch.setattr(worker, "_set_memory", lambda memory: None)
    ran: list[str] = []
    contestant = module("contestants").Contestant("x", "sparse", 1, lambda: ran.append("x"), lambda *_: None)
    worker._entries = [contestant]
    assert worker.check(0)["error"] is None
    counts = [len(ran)]
    for memory in ("fresh", "fresh", "warm", "warm"):
        worker.run(0, memory)
        counts.append(len(ran))
    assert counts == [1, 2, 3, 5, 6]
    worker._ran.clear()  # as in a process that was started again
    worker.run(0, "fresh")
    assert len(ran) == 8


def test_race_module_list_is_complete(module) -> None:
    names = {path.stem for path in (REPOSITORY / "bench" / "peers" / "contestants").glob("*.py")} - {"__init__"}
    assert set(module("contestants").MODULES) == names


@pytest.mark.parametrize("name", ["jax_", "tensorflow_", "tensorflow_accumulator"])
def test_contestants_have_the_threads_that_they_report(module, monkeypatch, name) -> None:
    module("contestants")
    library = mock.MagicMock()
    for package in ("jax", "jax.numpy", "jax.experimental", "tensorflow"):
        monkeypatch.setitem(sys.modules, package, library)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    set_affinity = mock.MagicMock()
    monkeypatch.setattr(os, "sched_setaffinity", set_affinity, raising=False)
    data = mock.MagicMock(keys=np.arange(3), width=1, no_dense=lambda: None)
    found = importlib.import_module(f"contestants.{name}").contestants(data, 3)
    assert {contestant.threads for contestant in found} == {3}
    if name == "jax_":
        set_affinity.assert_called_once_with(0, [0, 1, 2])
    elif name == "tensorflow_":
        library.config.threading.set_intra_op_parallelism_threads.assert_called_once_with(3)
        library.config.threading.set_inter_op_parallelism_threads.assert_called_once_with(3)
    else:
        threads = {"intra_op_parallelism_threads": 3, "inter_op_parallelism_threads": 3}
        library.compat.v1.ConfigProto.assert_called_once_with(**threads)
        config = library.compat.v1.ConfigProto.return_value
        assert library.compat.v1.Session.call_args.kwargs["config"] is config
