"""A federated recommender, of whose clients one in ten attacks: what the mean becomes, and what holds.

    python examples/recommender_attacked.py [PLAY] [--out FOLDER]

Needs NumPy, and matplotlib with --out. Words are the items: eight words that a speaker has used together recommend the
ninth one in their midst. Each speaker of the play is a client; without a play, each file of Python's standard library
is one. Clients send the rows of the two embeddings that their training has changed; attackers send theirs times 100.

The same clients train with the same batches under five rules; the loss is that of held-out words among all words.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import json
import pathlib
import re
import shlex
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import sparseagg as sa
from sparseagg._internal.commands.demo import corpus

USED, WIDTH, VOCABULARY, WORDS_OF_CLIENT = 8, 32, 12_000, 2000
LEARNING_RATE, BATCH, HELD_OUT, SEED = 0.1, 128, 2000, 26
ATTACKERS, FACTOR = 0.1, 100.0

Model = dict[str, npt.NDArray[np.float32]]
Update = dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]]


@dataclasses.dataclass(frozen=True)
class Data:
    """Windows of nine words, as ranks of words by frequency: of each client, and held-out ones of all.

    Attributes:
        log_frequency: of each word, in the training words of all clients.
    """

    clients: list[npt.NDArray[np.int64]]
    held_out: npt.NDArray[np.int64]
    log_frequency: npt.NDArray[np.float64]


def load(source: str | None, clients: int) -> Data:
    """Reads the texts of ``corpus.load``; the longest ones are the clients, and a tenth of each is held out."""
    loaded = corpus.load(source)
    texts = [
        (text.name, [re.sub(r"\W$", "", token).lower() for token in text.tokens])
        for text in [*loaded.clients, *loaded.held_out]
    ]
    total = collections.Counter(word for _, words in texts for word in words)
    ranks = {word: i for i, word in enumerate(sorted(total, key=lambda word: (-total[word], word))[:VOCABULARY])}
    longest = sorted(texts, key=lambda text: (-len(text[1]), text[0]))[:clients]
    coded = [np.array([ranks[word] for word in words if word in ranks])[:WORDS_OF_CLIENT] for _, words in longest]
    train = [_windows(words[: len(words) * 9 // 10]) for words in coded]
    held_out = np.concatenate([_windows(words[len(words) * 9 // 10 :]) for words in coded])
    counts = np.bincount(np.concatenate(train)[:, USED // 2], minlength=len(ranks)) + 1
    chosen = np.random.default_rng(SEED).permutation(len(held_out))[:HELD_OUT]
    return Data(train, held_out[chosen], np.log(counts / counts.sum()))


def _windows(words: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    if len(words) <= USED:
        return np.zeros((0, USED + 1), np.int64)
    return np.lib.stride_tricks.sliding_window_view(words, USED + 1).copy()


def initial_model(items: int) -> Model:
    """Returns an embedding for items used, and one for items recommended."""
    rng = np.random.default_rng(SEED)
    return {name: 0.1 * rng.standard_normal((items, WIDTH), np.float32) for name in ("used", "recommended")}


def train(model: Model, windows: npt.NDArray[np.int64], seed: list[int]) -> Update:
    """Trains one epoch with Adagrad; returns the differences of the rows that have changed."""
    after = {name: table.copy() for name, table in model.items()}
    squares = {name: np.zeros_like(table) for name, table in model.items()}
    order = np.random.default_rng(seed).permutation(len(windows))
    for places in np.array_split(order, max(1, len(order) // BATCH)):
        batch = windows[places]
        used, target = np.delete(batch, USED // 2, axis=1), batch[:, USED // 2]
        items, position, counts = np.unique(target, return_inverse=True, return_counts=True)
        vectors = after["used"][used].sum(axis=1) / np.float32(USED**0.5)
        scores = vectors @ after["recommended"][items].T + np.log(counts / len(batch)).astype(np.float32)
        slope = np.exp(scores - scores.max(axis=1, keepdims=True))
        slope /= slope.sum(axis=1, keepdims=True)
        slope[np.arange(len(batch)), position] -= 1
        slope /= len(batch)
        of_used = (slope @ after["recommended"][items]) / np.float32(USED**0.5)
        keys, places_of_keys = np.unique(used, return_inverse=True)
        gradient = np.zeros((len(keys), WIDTH), np.float32)
        np.add.at(gradient, places_of_keys.reshape(-1), np.repeat(of_used, USED, axis=0))
        for name, rows, step in (("used", keys, gradient), ("recommended", items, slope.T @ vectors)):
            squares[name][rows] += step**2
            after[name][rows] -= np.float32(LEARNING_RATE) * step / (np.sqrt(squares[name][rows]) + np.float32(1e-10))
    changed = {name: np.flatnonzero((after[name] != table).any(axis=1)) for name, table in model.items()}
    return {name: (rows, after[name][rows] - model[name][rows]) for name, rows in changed.items()}


def held_out_loss(model: Model, data: Data) -> float:
    """Returns the mean loss of the held-out words among all words, in nats."""
    losses = []
    with np.errstate(over="ignore", invalid="ignore"):
        for part in np.array_split(data.held_out, max(1, len(data.held_out) // 256)):
            used, target = np.delete(part, USED // 2, axis=1), part[:, USED // 2]
            vectors = model["used"][used].astype(np.float64).sum(axis=1) / USED**0.5
            scores = vectors @ model["recommended"].T.astype(np.float64) + data.log_frequency
            best = scores.max(axis=1)
            total = best + np.log(np.exp(scores - best[:, None]).sum(axis=1))
            losses.append(total - scores[np.arange(len(part)), target])
    return float(np.concatenate(losses).mean())


def merge_by_op(updates: dict[str, Update], spec: sa.RoundSpec) -> sa.Result:
    """Merges with the op of the spec."""
    return sa.aggregate(updates, spec)


def merge_by_krum(updates: dict[str, Update], spec: sa.RoundSpec, f: int) -> sa.Result:
    """Merges the n − f submissions that are closest to others."""
    with sa.Client(":memory:") as client:
        rnd = client.create_round(spec)
        for client_id, update in updates.items():
            rnd.submit(client_id, update)
        rnd.seal()
        return rnd.finish(client_weights=sa.robust.multi_krum(sa.robust.inspect(rnd), f=f, m=len(updates) - f))


def learn(
    data: Data, rounds: int, attackers: int, merge: Callable[..., sa.Result], options: dict[str, Any]
) -> dict[str, Any]:
    """Trains for some rounds; returns the losses before and after each."""
    model = initial_model(len(data.log_frequency))
    shape = model["used"].shape
    spec = sa.RoundSpec([sa.TensorSpec(name, "float32", shape=shape) for name in model], **options)
    losses = [held_out_loss(model, data)]
    for number in range(rounds):
        updates = {}
        for client, windows in enumerate(data.clients):
            update = train(model, windows, [SEED, client, number])
            factor = np.float32(FACTOR if client < attackers else 1)
            updates[f"client-{client}"] = {name: (keys, factor * rows) for name, (keys, rows) in update.items()}
        result = merge(updates, spec)
        for name, table in model.items():
            table[result[name].indices] += result[name].values
        losses.append(held_out_loss(model, data))
    return {"held_out_loss": [round(loss, 4) for loss in losses]}


def compare(data: Data, rounds: int) -> dict[str, Any]:
    """Trains under each rule."""
    attackers = round(ATTACKERS * len(data.clients))
    # With these, f attackers are outvoted at each row that moves.
    fewest = 2 * attackers + 1
    trimmed = {"op": "trimmed_mean", "trim_fraction": (attackers + 0.5) / (fewest + 0.5), "min_contributors": fewest}
    median = {"op": "median", "min_contributors": fewest}
    krum = functools.partial(merge_by_krum, f=attackers)
    rules: dict[str, tuple[int, Callable[..., sa.Result], dict[str, Any]]] = {
        "mean, nobody attacks": (0, merge_by_op, {"op": "coordinate_mean"}),
        "mean": (attackers, merge_by_op, {"op": "coordinate_mean"}),
        "trimmed mean": (attackers, merge_by_op, trimmed),
        "median": (attackers, merge_by_op, median),
        "multi-Krum": (attackers, krum, {"op": "coordinate_mean"}),
    }
    return {name: learn(data, rounds, *rule) for name, rule in rules.items()}


def plot(path: pathlib.Path, title: str, found: dict[str, Any]) -> None:
    """Draws the losses as a PNG. Needs matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    whole, near = figure.subplots(1, 2)
    styles = {"mean, nobody attacks": ("black", ":"), "mean": ("tab:red", "-")}
    for name, figures in found.items():
        color, line = styles.get(name, (None, "-"))
        for axes in (whole, near):
            axes.plot(figures["held_out_loss"], color=color, linestyle=line, label=name)
    holding = [loss for name, figures in found.items() if name != "mean" for loss in figures["held_out_loss"]]
    margin = 0.05 * (max(holding) - min(holding))
    near.set(title="Those that hold", xlabel="round", ylim=(min(holding) - margin, max(holding) + margin))
    whole.set(title="All", xlabel="round", ylabel="held-out loss, nats", yscale="log")
    whole.legend(fontsize="small")
    for axes in (whole, near):
        axes.grid(alpha=0.3)
    figure.suptitle(title)
    figure.savefig(path, dpi=100)


def main() -> None:
    """The example's command."""
    parser = argparse.ArgumentParser(description="A federated recommender under attack.")
    parser.add_argument("text", nargs="?", help="a play with `Name:` speeches, or a folder; without: Python's sources")
    parser.add_argument("--clients", type=int, default=40, help="the longest texts")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=pathlib.Path, help="folder for recommender_attacked.png and .json")
    options = parser.parse_args()
    begin = time.perf_counter()
    data = load(options.text, options.clients)
    found = {
        "command": shlex.join(["python", "examples/recommender_attacked.py", *sys.argv[1:]]),
        "clients": len(data.clients),
        "attackers": round(ATTACKERS * len(data.clients)),
        "vocabulary": len(data.log_frequency),
        "seed": SEED,
        "rules": compare(data, options.rounds),
        "seconds": round(time.perf_counter() - begin, 1),
    }
    line = json.dumps(found)
    print(line)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "recommender_attacked.json").write_text(line + "\n", encoding="utf-8")
        title = f"Recommender: {found['clients']} clients, {found['attackers']} of them send 100 times their updates"
        plot(options.out / "recommender_attacked.png", title, found["rules"])


if __name__ == "__main__":
    main()
