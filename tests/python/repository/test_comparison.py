"""The comparison's turns: who runs how often, what is timed of it, and on how many threads."""

from __future__ import annotations

import argparse
from typing import Any

import pytest


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
def compare(module, monkeypatch, tmp_path):
    """Runs the comparison of these processes; gives the results by kind of memory."""

    def run(*processes: FakeProcess, contestants: str = "") -> list[dict[str, Any]]:
        comparison_module = module("comparison")
        monkeypatch.setattr(comparison_module.native, "load", lambda: None)
        options = {"patience": 1.5, "least": 2, "repetitions": 7, "seed": 1, "threads": 1, "fresh_only": False}
        options["contestants"] = contestants
        comparison = comparison_module.Comparison(argparse.Namespace(**options))
        comparison._processes = list(processes)
        comparison._compare({"name": "A", "tuples": 1, "bytes_in": 1, "bytes_out": 1}, tmp_path)
        return comparison.results

    return run


@pytest.mark.parametrize(
    ("seconds", "fresh", "warm"), [(0.01, 7, 7), (0.3, 5, 5), (1.0, 2, 2), (2.0, 1, 0), (20.0, 1, 0)]
)
def test_comparison_gives_slow_ones_fewer_runs(compare, seconds, fresh, warm) -> None:
    (result,) = compare(FakeProcess(seconds, seconds))
    assert result["fresh"]["repetitions"] == fresh
    assert result.get("warm", {"repetitions": 0})["repetitions"] == warm


@pytest.mark.parametrize("runs", [0, 3, 8])
def test_comparison_goes_on_without_one_that_fails(compare, runs) -> None:
    processes = FakeProcess(0.01, 0.01, "failing", fails_at=1 + runs), FakeProcess(0.01, 0.01)
    results = compare(*processes)
    assert [(each["contestant"], each["fresh"]["repetitions"], each["warm"]["repetitions"]) for each in results] == [
        ("x", 7, 7)
    ]
    assert len(processes[0].asked) == 2 + runs


def test_comparison_of_some_contestants_leaves_the_others_out(compare) -> None:
    processes = FakeProcess(0.01, 0.01, "ours, int64 keys"), FakeProcess(0.01, 0.01, "ours in C++")
    results = compare(*processes, contestants="^ours(, int64 keys)?$")
    assert {result["contestant"] for result in results} == {"ours, int64 keys"}
    assert processes[1].asked == []
