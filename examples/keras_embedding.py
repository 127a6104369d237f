"""A Keras model with an embedding, trained by 20 clients that send the rows that they touched.

    python examples/keras_embedding.py

Each client has texts of its own topic: words of a vocabulary of its own, and words that all have. A text's label says
whether its words are rather good or bad. In each round, half of the clients compute the gradient on their texts and
submit it: the embedding's as rows, the other layers' whole. The coordinator applies the merged gradient.

Three coordinators train the same model on the same gradients' means: Keras's Adam and Keras's Adagrad with
``apply_gradients``, and ``FedAdam`` with ``apply_rows``. Keras's Adam moves rows that nobody touched in a round.
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import sparseagg as sa
import tensorflow as tf
from sparseagg import keras as sparse_keras
from sparseagg.optimizers import FedAdam

VOCABULARY, WIDTH, WORDS, TEXTS = 20_000, 16, 12, 60
CLIENTS, PER_ROUND, ROUNDS = 20, 10, 20
OPTIMIZERS = {
    "keras Adam": lambda: keras.optimizers.Adam(0.02),
    "keras Adagrad": lambda: keras.optimizers.Adagrad(0.05, initial_accumulator_value=0.0),
    "FedAdam, rows": lambda: FedAdam(learning_rate=0.02, tau=1e-7),  # gradients of rows are small
}

Texts = tuple[np.ndarray, np.ndarray]  # tokens of shape (n, WORDS), and labels


def make_clients(seed: int) -> list[Texts]:
    """Returns the texts of each client: a third of the words is from 500 that all have."""
    rng = np.random.default_rng(seed)
    goodness = rng.standard_normal(VOCABULARY)
    clients = []
    for _ in range(CLIENTS):
        own = rng.choice(VOCABULARY, 200, replace=False)
        common = rng.integers(0, 500, (TEXTS, WORDS))
        tokens = np.where(rng.random((TEXTS, WORDS)) < 1 / 3, common, rng.choice(own, (TEXTS, WORDS)))
        clients.append((tokens, (goodness[tokens].sum(axis=1) > 0).astype(np.float32)))
    return clients


def make_model(seed: int) -> keras.Model:
    """Returns an embedding, its mean over a text, and a layer that tells good from bad."""
    keras.utils.set_random_seed(seed)
    layers = [
        keras.layers.Embedding(VOCABULARY, WIDTH, name="emb"),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(1, name="out"),
    ]
    model = keras.Sequential(layers)
    model.build((None, WORDS))
    return model


def loss_of(model: keras.Model, texts: Texts) -> tf.Tensor:
    """Returns the mean cross entropy."""
    tokens, labels = texts
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, model(tokens)[:, 0]))


def train(optimizer: Any, seed: int = 1, address: str = ":memory:") -> dict[str, float]:
    """Trains a model; returns losses, what was sent, and how many rows moved in rounds in which nobody touched them."""
    clients, model = make_clients(seed), make_model(seed)
    everyone = tuple(np.concatenate(parts) for parts in zip(*clients))
    sampler = np.random.default_rng(seed)
    spec = sa.RoundSpec.like(sparse_keras.variables(model), sparse=["emb/embeddings"], op="mean", weighting="by_weight")
    table = model.get_layer("emb").embeddings
    figures = {"before": float(loss_of(model, everyone)), "rows_sent": 0, "rows_moved_untouched": 0}
    with sa.Client(address) as server:
        for _ in range(ROUNDS):
            opened = server.create_round(spec)
            for number in sampler.choice(CLIENTS, PER_ROUND, replace=False):
                with tf.GradientTape() as tape:
                    loss = loss_of(model, clients[number])
                update = sparse_keras.update(tape.gradient(loss, model.trainable_variables), model)
                opened.submit(f"client-{number:02}", update, weight=len(clients[number][1]))
                figures["rows_sent"] += len(np.unique(update["emb/embeddings"].indices))
            result = opened.finish()
            before = table.numpy().copy()
            if isinstance(optimizer, keras.optimizers.Optimizer):
                optimizer.apply_gradients(sparse_keras.gradients(result, model))
            else:
                sparse_keras.apply_rows(optimizer, result, model, alpha=-1.0)
            moved = np.flatnonzero((table.numpy() != before).any(axis=1))
            figures["rows_moved_untouched"] += len(np.setdiff1d(moved, result["emb/embeddings"].keys))
    figures["after"] = float(loss_of(model, everyone))
    figures["rows_of_dense_updates"] = VOCABULARY * PER_ROUND * ROUNDS
    return figures


def main() -> None:
    """Prints a line for each coordinator."""
    for name, make in OPTIMIZERS.items():
        figures = train(make())
        print(
            f"{name:<14} loss {figures['before']:.4f} → {figures['after']:.4f}; rows sent {figures['rows_sent']:,} of "
            f"{figures['rows_of_dense_updates']:,}; moves of untouched rows {figures['rows_moved_untouched']:,}"
        )


if __name__ == "__main__":
    main()
