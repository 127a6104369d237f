"""examples/recommender_attacked.py and examples/private_word_counts.py, as their users run them, on small plays."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from real_server import REPOSITORY

ENDS = ("a", "e", "i", "o", "u", "ay", "ow", "ill", "ot", "en")
WORDS = [first + last for first in "bcdfghklmn" for last in ENDS]


def run_example(name: str, *arguments: str) -> dict:
    command = [sys.executable, str(REPOSITORY / "examples" / f"{name}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def write_play(path: pathlib.Path, speeches: list[tuple[str, list[str]]]) -> str:
    path.write_text("\n\n".join(f"{name}:\n{' '.join(words)}" for name, words in speeches) + "\n", encoding="utf-8")
    return str(path)


def test_mean_breaks_under_attack_and_the_others_hold(tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(7)
    play = write_play(tmp_path / "play.txt", [(f"Speaker {i:c}", list(rng.choice(WORDS, 300))) for i in range(65, 85)])
    found = run_example("recommender_attacked", play, "--clients", "20", "--rounds", "2", "--out", str(tmp_path))
    assert (found["clients"], found["attackers"]) == (20, 2)
    losses = {name: rule["held_out_loss"] for name, rule in found["rules"].items()}
    assert all(len(loss) == 3 for loss in losses.values())
    before = losses["mean"][0]
    assert losses.pop("mean")[-1] > before + 5
    assert all(loss[-1] < before + 0.5 for loss in losses.values()), losses
    assert (tmp_path / "recommender_attacked.png").stat().st_size > 10_000


def test_words_of_many_clients_come_out_within_the_budget(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")
    rng = np.random.default_rng(8)
    common, rare = WORDS[:8], WORDS[8:]
    speeches = [("Ann", [*common, rare[int(rng.integers(len(rare)))]]) for _ in range(400)]
    speeches += [("Bob", ["onlyonce"])]
    play = write_play(tmp_path / "play.txt", speeches)
    found = run_example("private_word_counts", play, "--out", str(tmp_path))
    assert found["clients"] == 401
    for budget, result in zip((1.0, 4.0, 8.0), found["rounds"]):
        assert budget * 0.99 < result["epsilon"] <= budget
        assert result["words"] >= 8
        assert "onlyonce" not in result["rarest"]
    noise = [result["noise_multiplier"] for result in found["rounds"]]
    assert noise == sorted(noise, reverse=True)
    # The standard deviation is 4 times the multiplier. Rare words come out only if noise has lifted them.
    assert found["rounds"][2]["error_rms"] < 5 * 4 * noise[2]
    assert (tmp_path / "private_word_counts.png").stat().st_size > 10_000
