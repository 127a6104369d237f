"""Which words do people use? Counts of hashed words with differential privacy, at three budgets.

    python examples/private_word_counts.py [PLAY] [--out FOLDER]

Needs dp-accounting, and matplotlib with --out. Experimental, as docs/privacy.md says. Each speech of the play is a
client, which sends at most 16 of its words; without a play, each file of Python's standard library is one. A word
travels as a hash of 40 bits: the table has 2^40 rows, of which the result has those that many clients share.

One more client, or one less, changes what comes out by (epsilon, delta) at most. The example prints which words come
out at epsilon 1, 4 and 8, and how far their counts are from the true ones.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import pathlib
import re
import secrets
import shlex
import sys
import time
from typing import Any

import numpy as np
import sparseagg as sa
from sparseagg._internal.commands.demo import corpus

WORDS_OF_CLIENT, HASH_BITS, DELTA, SEED = 16, 40, 1e-5, 26
EPSILONS = (1.0, 4.0, 8.0)


def load_clients(source: str | None) -> list[list[str]]:
    """Returns the words that each client sends: some of its own, chosen at random by the client."""
    if source is None:
        texts = [" ".join(text.tokens) for text in corpus.load_standard_library()]
    else:
        speeches = re.split(r"\n\s*\n", pathlib.Path(source).read_text(encoding="utf-8"))
        texts = [speech.partition(":\n")[2] for speech in speeches]
    rng = np.random.default_rng(SEED)
    clients = [sorted(set(re.findall(r"[a-z][a-z']+", text.lower()))) for text in texts]
    return [list(rng.permutation(words)[:WORDS_OF_CLIENT]) for words in clients if words]


def key_of(word: str) -> int:
    """Returns the row of a word in the table."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=HASH_BITS // 8).digest(), "little")


def spec_of(noise_multiplier: float, clients: int) -> sa.RoundSpec:
    """Returns a round of noisy counts: as much noise on the choice of words as on their counts."""
    return sa.RoundSpec(
        [sa.TensorSpec("words", "float32", num_rows=2**HASH_BITS)],
        op="sum",
        max_submissions=2 * clients,
        # A client adds 1 to each of 16 words at most: a vector of length 4.
        clip=sa.ClipSpec(l2=WORDS_OF_CLIENT**0.5, max_keys=WORDS_OF_CLIENT),
        privacy=sa.PrivacySpec(
            noise_multiplier=noise_multiplier, key_noise_multiplier=noise_multiplier, delta=DELTA / 10
        ),
    )


def multiplier_for(epsilon: float, clients: int) -> float:
    """Returns the least noise, within 0.1 %, whose round the budget covers."""
    low, high = 0.05, 30.0
    while high > 1.001 * low:
        middle = (low * high) ** 0.5
        cost = sa.PrivacyLedger(epsilon, DELTA).epsilon_with(spec_of(middle, clients))
        low, high = (low, middle) if cost <= epsilon else (middle, high)
    return high


def count_words(clients: list[list[str]], epsilon: float) -> dict[str, Any]:
    """Counts the words of all clients within a budget; returns the noisy counts and what they cost."""
    spec = spec_of(multiplier_for(epsilon, len(clients)), len(clients))
    spent = sa.PrivacyLedger(epsilon, DELTA).spend(spec)
    updates = {
        f"client-{number}": {"words": ([key_of(word) for word in words], np.ones(len(words), np.float32))}
        for number, words in enumerate(clients)
    }
    counted = sa.aggregate(updates, spec, noise_key=secrets.token_bytes(32))["words"]
    # Stands for a public dictionary: whoever reads the result looks up the words that he knows.
    dictionary = {key_of(word): word for words in clients for word in words}
    found = {dictionary[key]: float(count) for key, count in zip(counted.indices.tolist(), counted.values.tolist())}
    return {"spent": spent, "noise_multiplier": spec.privacy.noise_multiplier, "counts": found}


def figures_of(result: dict[str, Any], truth: collections.Counter[str]) -> dict[str, Any]:
    """Returns how many words came out, and how true their counts are."""
    counts = result["counts"]
    errors = [count - truth[word] for word, count in counts.items()]
    return {
        "epsilon": round(result["spent"], 4),
        "noise_multiplier": round(result["noise_multiplier"], 4),
        "words": len(counts),
        "error_rms": round(float(np.sqrt(np.mean(np.square(errors)))), 2) if errors else None,
        "least_contributors": min((truth[word] for word in counts), default=None),
        "rarest": sorted(counts, key=lambda word: (truth[word], word))[:8],
    }


def plot(path: pathlib.Path, results: list[dict[str, Any]], truth: collections.Counter[str]) -> None:
    """Draws true and noisy counts, and the words at the edge, as a PNG. Needs matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    most = max(truth.values())
    for axes, result in zip(figure.subplots(1, len(results), sharey=True), results):
        counts = result["counts"]
        hidden = sorted({truth[word] for word in truth if word not in counts})
        axes.scatter(hidden, [0.7] * len(hidden), s=14, color="silver", label="hidden", clip_on=False)
        axes.scatter([truth[word] for word in counts], list(counts.values()), s=10, label="noisy count")
        axes.plot([1, most], [1, most], color="black", linewidth=0.8, label="true count")
        edge = sorted(counts, key=lambda word: (truth[word], word))[:5]
        for place, word in enumerate(edge):
            axes.text(0.03, 0.92 - 0.06 * place, f"{word} ({truth[word]})", transform=axes.transAxes, fontsize="small")
        axes.set(
            title=f"ε = {result['spent']:.0f}: {len(counts)} of {len(truth):,} words",
            xlabel="clients that sent the word",
            xscale="log",
            yscale="log",
            xlim=(1, 1.2 * most),
            ylim=(0.6, 1.3 * most),
        )
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right", fontsize="small")
    figure.axes[0].set_ylabel("count")
    figure.savefig(path, dpi=100)


def main() -> None:
    """The example's command."""
    parser = argparse.ArgumentParser(description="Counts of hashed words with differential privacy.")
    parser.add_argument("text", nargs="?", help="a play with `Name:` speeches; without: Python's sources")
    parser.add_argument("--out", type=pathlib.Path, help="folder for private_word_counts.png and .json")
    options = parser.parse_args()
    begin = time.perf_counter()
    clients = load_clients(options.text)
    truth = collections.Counter(word for words in clients for word in words)
    results = [count_words(clients, epsilon) for epsilon in EPSILONS]
    found = {
        "command": shlex.join(["python", "examples/private_word_counts.py", *sys.argv[1:]]),
        "clients": len(clients),
        "words": len(truth),
        "words_of_client": WORDS_OF_CLIENT,
        "delta": DELTA,
        "rounds": [figures_of(result, truth) for result in results],
        "seconds": round(time.perf_counter() - begin, 1),
    }
    line = json.dumps(found)
    print(line)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "private_word_counts.json").write_text(line + "\n", encoding="utf-8")
        plot(options.out / "private_word_counts.png", results, truth)


if __name__ == "__main__":
    main()
