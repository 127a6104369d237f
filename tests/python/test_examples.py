"""Programs of examples/: of unequal ranks, of attacks, of private counts, and of FL4Health's lists of arrays."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
import sparseagg as sa
from real_server import REPOSITORY


@pytest.fixture(scope="module")
def lora():
    spec = importlib.util.spec_from_file_location("lora_unequal_rank", REPOSITORY / "examples/lora_unequal_rank.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        # The share of sites that have a component: 1, then 2/3 for four of them, then 1/3 for eight. The mean of
        # padded factors has it twice: once for A, once for B.
        ("mean", [1.0] * 4 + [(2 / 3) ** 2] * 4 + [(1 / 3) ** 2] * 8),
        ("product", [1.0] * 4 + [2 / 3] * 4 + [1 / 3] * 8),
        ("coordinate_mean", [1.0] * 16),
    ],
)
def test_bias_of_zero_padding_is_gone_with_coordinate_mean(lora, way: str, expected: list[float]) -> None:
    np.testing.assert_allclose(lora.kept_by_component(way), expected, rtol=1e-12)


def test_products_are_averaged_before_they_are_cut_to_the_rank(lora) -> None:
    rng = np.random.default_rng(4)
    factors = [(rng.standard_normal((rank, 6)), rng.standard_normal((rank, 5))) for rank in (1, 2)]
    a, b = lora.merge("product", [*factors, (np.zeros((3, 6)), np.zeros((3, 5)))], [1.0, 2.0, 1.0])
    mean = (factors[0][1].T @ factors[0][0] + 2 * factors[1][1].T @ factors[1][0]) / 4  # of rank 3
    np.testing.assert_allclose(b.T @ a, mean, atol=1e-12)


def test_training_without_the_bias_is_faster(lora, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lora, "ROUNDS", 12)
    task = lora.Task(1)
    accuracy = {way: lora.train(task, way, 1) for way in lora.WAYS}
    assert accuracy["mean"] + 0.01 < accuracy["coordinate_mean"] < accuracy["product"], accuracy


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


@pytest.fixture(scope="module")
def coo():
    spec = importlib.util.spec_from_file_location("fl4health_coo", REPOSITORY / "examples/fl4health_sparse_coo.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def random_updates(coo, seed: int) -> list:
    """Clients that each send some entries of some tensors of one, two and three axes."""
    rng = np.random.default_rng(seed)
    shapes = {"conv": (4, 3, 2), "linear": (5, 4), "bias": (6,)}
    updates = []
    for client in range(5):
        parts = {}
        for name, shape in shapes.items():
            dense = np.where(rng.random(shape) < 0.4, rng.standard_normal(shape), 0).astype(np.float32)
            if dense.any():  # as FL4Health: tensors without entries are not sent
                parts[name] = coo.Part(dense[dense.nonzero()], np.stack(dense.nonzero(), axis=1), shape)
        updates.append((f"client-{client}", coo.pack(parts), float(rng.integers(1, 100))))
    return updates


@pytest.mark.parametrize("seed", range(20))
def test_mean_has_the_numbers_of_fl4health(coo, seed: int) -> None:
    print(f"seed {seed}")
    updates = random_updates(coo, seed)
    ours, theirs = coo.unpack(coo.merge(updates, op="mean")), coo.unpack(coo.densified(updates))
    assert ours.keys() == theirs.keys()
    for name, part in theirs.items():
        assert ours[name].shape == part.shape
        assert ours[name].values.dtype == part.values.dtype
        np.testing.assert_array_equal(ours[name].indices, part.indices)
        np.testing.assert_allclose(ours[name].values, part.values, rtol=1e-5, atol=1e-6)


def test_lists_of_another_form_are_refused(coo) -> None:
    packed = coo.pack({"w": coo.Part(np.ones(1, np.float32), np.array([[4]]), (5,))})
    other = coo.pack({"w": coo.Part(np.ones(1, np.float32), np.array([[4]]), (6,))})
    with pytest.raises(ValueError, match=r"client 'b': tensor 'w' has shape \(6,\), unlike most: \(5,\)"):
        coo.merge([("a", packed, 1.0), ("b", other, 1.0)])
    with pytest.raises(ValueError, match="3 arrays for 1 names"):
        coo.merge([("a", packed[1:], 1.0)])
    packed[0][0] = np.nan
    with pytest.raises(sa.InvalidArgumentError, match=r"client 'a': tensor 'w'.* nan"):
        coo.merge([("a", packed, 1.0)])


def changed(packed: list, at: int, array: object) -> list:
    return [*packed[:at], np.array(array), *packed[at + 1 :]]


# Of a client's list [values of a, values of b, indices of a, indices of b, shape of a, shape of b, names].
BAD = {
    "NaN": (0, [np.nan, 1], "'a'.* nan"),
    "index outside": (3, [[7, 0]], r"tensor 'b': index \(7, 0\) is not in shape \(5, 4\)"),
    "index below 0": (2, [[-1], [2]], r"tensor 'a': index \(-1,\) is not in shape \(6,\)"),
    "words in the place of a float": (1, ["x"], "tensor 'b'"),
    "axes": (3, [[1]], "tensor 'b': indices"),
    "index of floats": (2, [[0.5], [1.0]], "tensor 'a': indices"),
    "number of values": (0, [1.0], "tensor 'a'"),
    "words": (0, ["x", "y"], "tensor 'a'"),
    "shape": (5, [5, 5], r"tensor 'b' has shape \(5, 5\), unlike most: \(5, 4\)"),
    "no shape": (5, 5, ""),
    "names": (6, ["a"], "arrays for 1 names"),
    "a name twice": (6, ["a", "a"], "'a'"),
}


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("first", [0, 1, 2])
def test_one_bad_client_is_named_and_the_others_count(coo, what: str, first: int) -> None:
    """Wherever it comes, and with nothing of it."""
    at, array, words = BAD[what]
    packed = coo.pack(
        {
            "a": coo.Part(np.array([1, 2], np.float32), np.array([[0], [2]]), (6,)),
            "b": coo.Part(np.array([3], np.float32), np.array([[4, 1]]), (5, 4)),
        }
    )
    updates = [("one", packed, 1.0), ("bad", changed(packed, at, array), 100.0), ("two", packed, 3.0)]
    updates = updates[first:] + updates[:first]
    refused: dict = {}
    found = coo.unpack(coo.merge(updates, refused=refused))
    wanted = coo.unpack(coo.merge([update for update in updates if update[0] != "bad"]))
    for name, part in wanted.items():
        np.testing.assert_array_equal(found[name].values, part.values)
        np.testing.assert_array_equal(found[name].indices, part.indices)
    assert list(refused) == ["bad"]
    assert re.search(rf"client 'bad': .*{words}|client 'bad'.*{words}", str(refused["bad"])), refused["bad"]
    with pytest.raises(sa.InvalidArgumentError, match="client 'bad'"):
        coo.merge(updates)


def test_weights_that_are_none_are_refused(coo) -> None:
    packed = coo.pack({"a": coo.Part(np.ones(1, np.float32), np.array([[0]]), (6,))})
    for weight in (-1.0, float("nan"), "many", None):
        refused: dict = {}
        merged = coo.merge([("good", packed, 1.0), ("bad", packed, weight)], refused=refused)
        assert coo.unpack(merged)["a"].values.tolist() == [1]
        assert "client 'bad'" in str(refused["bad"])


def test_nobody_left_is_an_empty_list(coo) -> None:
    refused: dict = {}
    assert coo.unpack(coo.merge([("bad", [np.ones(3)], 1.0)], refused=refused)) == {}
    assert list(refused) == ["bad"]


def test_recommender_has_the_same_bits_in_every_order_and_learns() -> None:
    found = run_example("model_recommender", "--versions", "12")
    assert len(set(found["digests"])) == 1
    assert found["loss"] < 0.68
    assert found["times"]["stream"] < found["times"]["rounds"]
