"""The examples on a small play: the strategies that should agree do, and what the plots show is there."""

from __future__ import annotations

import importlib
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tomllib
from flwr.app import Context, RecordDict
from local_grid import LocalGrid

EXAMPLES = pathlib.Path(__file__).resolve().parents[3] / "examples"
CLIENTS, ROUNDS = 3, 2


@pytest.fixture
def play(tmp_path: pathlib.Path) -> pathlib.Path:
    """A play in which each speaker has words of its own, and words that all have."""
    rng = np.random.default_rng(5)
    speeches = []
    for speaker in ("Ann", "Bob", "Cid", "Dot"):
        own = np.where(rng.random(400) < 0.5, "common", speaker.lower())
        words = [f"{prefix}{number}" for prefix, number in zip(own, rng.integers(0, 40, 400))]
        speeches.append(f"{speaker}:\n{' '.join(words)}\n")
    path = tmp_path / "play.txt"
    path.write_text("\n".join(speeches), encoding="utf-8")
    return path


@pytest.mark.parametrize("example", ["flower_next_word", "flower_recommender"])
def test_example(example: str, play: pathlib.Path) -> None:
    command = [sys.executable, str(EXAMPLES / f"{example}.py"), str(play)]
    command += ["--clients", str(CLIENTS), "--rounds", str(ROUNDS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["clients"] == CLIENTS
    mean, each, stock = (
        found["strategies"][name] for name in ("SparseFedAvg mean", "SparseFedAvg coordinate_mean", "FedAvg")
    )
    for group, losses in stock["held_out_loss"].items():
        assert len(losses) == ROUNDS + 1
        np.testing.assert_allclose(mean["held_out_loss"][group], losses, rtol=0, atol=1e-4)
    assert each["held_out_loss"]["all"][-1] != mean["held_out_loss"]["all"][-1]
    for way in ("up_mb", "down_mb"):
        assert sum(mean[way]) < 0.6 * sum(stock[way]), way


def test_example_of_a_cluster_in_the_ray_of_the_simulation() -> None:
    command = [sys.executable, str(EXAMPLES / "flower_cluster.py"), "--clients", str(CLIENTS), "--rounds", str(ROUNDS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "one model: True"


def test_app_of_flwr_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The bits of the page, and so of the tutorial, which has the same job."""
    monkeypatch.syspath_prepend(str(EXAMPLES / "flower_app"))
    client, server = (importlib.import_module(f"sparse_app.{name}_app") for name in ("client", "server"))
    project = tomllib.loads((EXAMPLES / "flower_app/pyproject.toml").read_text(encoding="utf-8"))
    context = Context(1, 0, {}, RecordDict(), project["tool"]["flwr"]["app"]["config"])
    grid = LocalGrid(client.app, 10)
    for node in grid.contexts.values():
        node.run_config = context.run_config
    server.app(grid, context)
    page = (EXAMPLES.parent / "docs/howto/flower.md").read_text(encoding="utf-8")
    assert f"```text\n{capsys.readouterr().out}```" in page
