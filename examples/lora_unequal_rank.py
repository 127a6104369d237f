"""LoRA adapters of unequal rank: what zero padding does to their mean, and the mean over those present.

    python examples/lora_unequal_rank.py

Three sites fine-tune one frozen layer with adapters of rank 4, 8 and 16, as in NVFlare's pull request 4424. The server
has factors of rank 16, and each site trains their first rows. Row j of a factor is key j: a site sends the rows that it
has. Three ways to merge:

- ``mean`` counts a row that a site does not have as zeros. This is NVFlare's "naive" mean: padded factors, averaged.
- ``coordinate_mean`` is the mean over the sites that have the row. Flower's issue 2037 pads, and divides by counts.
- ``product`` averages the products B·A, and takes 16 factors of the mean by singular values (HLoRA). Factors that were
  trained apart have no mean of their own: the product of two means is not the mean of two products.

The first table has the bias alone: adapters that are equal, but for their rank. The second one trains. The bias makes
training slower. A larger learning rate makes up for it here: with the best rate of each way, accuracies after 25 rounds
are within a point of each other.
"""

from __future__ import annotations

import numpy as np
import sparseagg as sa

RANKS = (4, 8, 16)
SIZE, CLASSES, EXAMPLES = 64, 10, 1500
ROUNDS, STEPS, BATCH, RATE = 25, 15, 64, 0.1
WAYS = ("mean", "coordinate_mean", "product")

Factors = tuple[np.ndarray, np.ndarray]  # A of shape (rank, in), and B of shape (rank, out): B is kept transposed


def merge(way: str, factors: list[Factors], weights: list[float]) -> Factors:
    """Merges the factors of the sites, of any ranks, into factors of the largest rank."""
    rank = max(len(a) for a, _ in factors)
    (inputs, outputs) = (part.shape[1] for part in factors[0])
    if way == "product":
        spec = sa.RoundSpec([sa.TensorSpec("BA", "float64", shape=(outputs, inputs))], op="mean", weighting="by_weight")
        merged = sa.aggregate([({"BA": b.T @ a}, weight) for (a, b), weight in zip(factors, weights)], spec)
        u, s, v = np.linalg.svd(merged["BA"].values)
        return s[:rank, None] * v[:rank], u.T[:rank]
    tensors = [
        sa.TensorSpec("A", "float64", shape=(rank, inputs)),
        sa.TensorSpec("B", "float64", shape=(rank, outputs)),
    ]
    spec = sa.RoundSpec(tensors, op=way, weighting="by_weight")
    updates = [
        ({"A": (np.arange(len(a)), a), "B": (np.arange(len(b)), b)}, weight) for (a, b), weight in zip(factors, weights)
    ]
    merged = sa.aggregate(updates, spec)
    return merged["A"].dense(), merged["B"].dense()


def kept_by_component(way: str, seed: int = 0) -> np.ndarray:
    """Returns how much of each component of B·A is left after a merge of sites that all have the same factors.

    Components are orthogonal. A site has as many as its rank, and no site says anything against the others.
    """
    rng = np.random.default_rng(seed)
    a, b = (np.linalg.qr(rng.standard_normal((SIZE, max(RANKS))))[0].T for _ in range(2))
    merged_a, merged_b = merge(way, [(a[:rank], b[:rank]) for rank in RANKS], [1.0] * len(RANKS))
    return np.array([b[j] @ merged_b.T @ merged_a @ a[j] for j in range(max(RANKS))])


class Task:
    """Examples that a network of two layers classifies; its first layer differs from the frozen one by rank 16."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.frozen = rng.standard_normal((SIZE, SIZE)) / SIZE**0.5
        self.head = rng.standard_normal((CLASSES, SIZE)) / SIZE**0.5
        u, v = (np.linalg.qr(rng.standard_normal((SIZE, max(RANKS))))[0] for _ in range(2))
        self.target = self.frozen + 3.0 * u @ v.T
        self.sites = [self._site(rng, site) for site in range(len(RANKS))]
        self.test = self._examples(rng, 4000)

    def _examples(self, rng: np.random.Generator, number: int) -> tuple[np.ndarray, np.ndarray]:
        inputs = rng.standard_normal((number, SIZE))
        return inputs, (np.maximum(inputs @ self.target.T, 0) @ self.head.T).argmax(axis=1)

    def _site(self, rng: np.random.Generator, site: int) -> tuple[np.ndarray, np.ndarray]:
        """Labels are skewed: a third of the classes is four times as frequent here as elsewhere."""
        inputs, labels = self._examples(rng, 4 * EXAMPLES)
        odds = np.where(labels % len(RANKS) == site, 4.0, 1.0)
        chosen = rng.choice(len(labels), EXAMPLES, replace=False, p=odds / odds.sum())
        return inputs[chosen], labels[chosen]

    def accuracy(self, a: np.ndarray, b: np.ndarray) -> float:
        inputs, labels = self.test
        hidden = np.maximum(inputs @ (self.frozen + b.T @ a).T, 0)
        return float(((hidden @ self.head.T).argmax(axis=1) == labels).mean())

    def train(self, site: int, a: np.ndarray, b: np.ndarray, rng: np.random.Generator) -> Factors:
        """Steps of gradient descent on the factors alone."""
        inputs, labels = self.sites[site]
        a, b = a.copy(), b.copy()
        for _ in range(STEPS):
            batch = rng.choice(len(labels), BATCH, replace=False)
            x = inputs[batch]
            before = x @ (self.frozen + b.T @ a).T
            logits = np.maximum(before, 0) @ self.head.T
            wrong = np.exp(logits - logits.max(axis=1, keepdims=True))
            wrong /= wrong.sum(axis=1, keepdims=True)
            wrong[np.arange(BATCH), labels[batch]] -= 1
            gradient = ((wrong @ self.head) * (before > 0)).T @ x / BATCH  # of the whole layer
            a, b = a - RATE * b @ gradient, b - RATE * a @ gradient.T
        return a, b


def train(task: Task, way: str, seed: int) -> float:
    """Returns the accuracy after all rounds."""
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((max(RANKS), SIZE)) / 4, np.zeros((max(RANKS), SIZE))
    for _ in range(ROUNDS):
        trained = [task.train(site, a[:rank], b[:rank], rng) for site, rank in enumerate(RANKS)]
        a, b = merge(way, trained, [float(EXAMPLES)] * len(RANKS))
    return task.accuracy(a, b)


def main() -> None:
    """Prints both tables."""
    print("Equal adapters: what a merge leaves of components 1-4 (three sites have them), 5-8 (two) and 9-16 (one)")
    for way in WAYS:
        kept = kept_by_component(way)
        print(
            f"  {way:<16}", "  ".join(f"{kept[part].mean():.3f}" for part in (slice(0, 4), slice(4, 8), slice(8, 16)))
        )
    print(f"Trained adapters: accuracy after {ROUNDS} rounds, seeds 1 to 5")
    tasks = {seed: Task(seed) for seed in range(1, 6)}
    nothing = np.zeros((max(RANKS), SIZE))
    rows = {"no adapter": [task.accuracy(nothing, nothing) for task in tasks.values()]}
    rows |= {way: [train(task, way, seed) for seed, task in tasks.items()] for way in WAYS}
    for name, accuracies in rows.items():
        print(
            f"  {name:<16}",
            "  ".join(f"{accuracy:.4f}" for accuracy in accuracies),
            f"  mean {np.mean(accuracies):.4f}",
        )


if __name__ == "__main__":
    main()
