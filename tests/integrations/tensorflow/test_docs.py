"""The function of docs/integrations.md takes the step of all clients' examples together."""

from __future__ import annotations

import re

import keras
import numpy as np
import sparseagg as sa
import tensorflow as tf
from conftest import REPOSITORY


def test_keras_round() -> None:
    text = (REPOSITORY / "docs" / "integrations.md").read_text(encoding="utf-8")
    functions: dict = {}
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(compile(block, "integrations.md", "exec"), functions)
    rng = np.random.default_rng(8)
    models = []
    for _ in range(2):
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Embedding(30, 4, name="emb"), keras.layers.Flatten(), keras.layers.Dense(1, name="out")]
        models.append(keras.Sequential(layers))
        models[-1].build((None, 2))

    def gradients_of(model: keras.Model, tokens: np.ndarray) -> list:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(tokens) - 1.0) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    shards = {f"client-{number}": rng.integers(0, 30, (number + 2, 2)) for number in range(3)}
    gradients = {name: (gradients_of(models[0], tokens), len(tokens)) for name, tokens in shards.items()}
    with sa.Client(":memory:") as client:
        functions["keras_round"](client, models[0], gradients, keras.optimizers.SGD(0.5), ["emb/embeddings"])
    together = gradients_of(models[1], np.concatenate(list(shards.values())))
    keras.optimizers.SGD(0.5).apply_gradients(zip(together, models[1].trainable_variables))
    for ours, theirs in zip(models[0].trainable_variables, models[1].trainable_variables):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-7)
