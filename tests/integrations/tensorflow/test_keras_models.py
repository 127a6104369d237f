"""Gradients of Keras models as updates, and results as gradients."""

from __future__ import annotations

import re

import keras
import keras_embedding
import numpy as np
import pytest
import sparseagg as sa
import tensorflow as tf
from conftest import REPOSITORY
from sparseagg import keras as sparse_keras
from sparseagg.optimizers import FedAdagrad, FedAdam, FedAvgM, FedYogi

VOCABULARY, WIDTH = 50, 4


def make_model(seed: int = 1) -> keras.Model:
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.layers.Embedding(VOCABULARY, WIDTH, name="emb"),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1, name="out"),
        ]
    )
    model.build((None, 6))
    return model


SPEC = sa.RoundSpec(
    [
        sa.TensorSpec("emb/embeddings", "float32", num_rows=VOCABULARY, row_width=WIDTH),
        sa.TensorSpec("out/kernel", "float32", num_rows=WIDTH, layout="dense"),
        sa.TensorSpec("out/bias", "float32", num_rows=1, layout="dense"),
    ],
    op="mean",
    weighting="by_weight",
)


def gradients_of(model: keras.Model, tokens: np.ndarray, labels: np.ndarray) -> list:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(tokens)[:, 0] - labels) ** 2)
    return tape.gradient(loss, model.trainable_variables)


def test_variables_are_named_without_the_model() -> None:
    for model in (make_model(), make_model()):  # Keras names the second one "sequential_1"
        assert list(sparse_keras.variables(model)) == [tensor.name for tensor in SPEC.tensors]
    inputs = keras.Input((6,))
    model = keras.Model(inputs, keras.layers.Embedding(VOCABULARY, WIDTH, name="emb")(inputs))
    assert list(sparse_keras.variables(model)) == ["emb/embeddings"]


def test_variables_of_the_same_name_are_refused() -> None:
    class Twice(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = (keras.layers.Dense(1, name="out", use_bias=False) for _ in range(2))

        def call(self, inputs):
            return self.two(self.one(inputs))

    model = Twice()
    model(np.ones((1, 2)))
    with pytest.raises(sa.InvalidArgumentError, match="two variables are named 'out/kernel'"):
        sparse_keras.variables(model)


@pytest.mark.parametrize("address", [":memory:", None])
def test_merged_gradients_are_those_of_all_examples_together(address: str | None) -> None:
    rng = np.random.default_rng(2)
    model = make_model()
    shards = [(rng.integers(0, VOCABULARY - 1, (n, 6)), rng.standard_normal(n).astype(np.float32)) for n in (3, 8, 5)]
    updates = [sparse_keras.update(gradients_of(model, *shard), model) for shard in shards]
    if address is None:
        result = sa.aggregate([(update, len(shard[1])) for update, shard in zip(updates, shards)], SPEC)
    else:
        with sa.Client(address) as client:
            opened = client.create_round(SPEC)
            for number, (update, shard) in enumerate(zip(updates, shards)):
                opened.submit(f"client-{number}", update, weight=len(shard[1]))
            result = opened.finish()
    pairs = sparse_keras.gradients(result, model)
    assert [variable.path for _, variable in pairs] == [variable.path for variable in model.trainable_variables]
    together = gradients_of(model, *(np.concatenate(parts) for parts in zip(*shards)))
    for (merged, _), expected in zip(pairs, together):
        assert type(merged) is type(expected)
        expected = tf.convert_to_tensor(expected)
        np.testing.assert_allclose(tf.convert_to_tensor(merged), expected, rtol=2e-5, atol=1e-7)
        assert merged.shape == expected.shape
    touched = np.unique(np.concatenate([tokens for tokens, _ in shards]))
    assert pairs[0][0].indices.numpy().tolist() == touched.tolist()
    before = model.trainable_variables[0].numpy().copy()
    keras.optimizers.Adagrad(0.1).apply_gradients(pairs)
    moved = np.flatnonzero((model.trainable_variables[0].numpy() != before).any(axis=1))
    assert moved.tolist() == touched.tolist()


def test_variables_that_the_loss_does_not_use_are_left_out() -> None:
    model = make_model()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model.get_layer("out").kernel ** 2)
    update = sparse_keras.update(tape.gradient(loss, model.trainable_variables), model)
    assert list(update) == ["out/kernel"]
    with pytest.raises(sa.InvalidArgumentError, match="1 gradients for 3 variables"):
        sparse_keras.update(list(update.values()), model)


@pytest.mark.parametrize("make", [lambda: keras.optimizers.Adam(0.1), FedAdam], ids=["keras", "rows"])
def test_rounds_may_have_some_of_the_variables(make) -> None:
    model, optimizer = make_model(), make()
    one = sa.aggregate([{"out/bias": [1.0]}], sa.RoundSpec(SPEC.tensors[2:]))
    other = sa.aggregate([{"emb/embeddings": ([3], np.ones((1, WIDTH)))}], sa.RoundSpec(SPEC.tensors[:1]))
    if isinstance(optimizer, keras.optimizers.Optimizer):
        optimizer.build(model.trainable_variables)
    for result in (one, other, one):
        before = [variable.numpy().copy() for variable in model.trainable_variables]
        if isinstance(optimizer, keras.optimizers.Optimizer):
            optimizer.apply_gradients(sparse_keras.gradients(result, model))
        else:
            sparse_keras.apply_rows(optimizer, result, model, -1.0)
        moved = [(v.numpy() != b).any() for v, b in zip(model.trainable_variables, before)]
        assert moved == [name in result for name in sparse_keras.variables(model)]


@pytest.mark.parametrize("keys", [[], [0], [7, 8, 30]])
def test_single_elements_of_a_variable_move_alone(keys: list[int]) -> None:
    variable = tf.Variable(np.ones((5, 2, 4), np.float32))
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=40)])
    result = sa.aggregate([{"v": (keys, np.ones(len(keys)))}], spec)
    ((gradient, _),) = sparse_keras.gradients(result, {"v": variable})
    assert np.flatnonzero(tf.convert_to_tensor(gradient)).tolist() == keys
    sparse_keras.apply_rows(FedAvgM(), result, {"v": variable}, -1.0)
    assert np.flatnonzero(variable.numpy() != 1).tolist() == keys


def test_hashed_keys_find_their_rows() -> None:
    variable = tf.Variable(np.ones((5, 2), np.float32))
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=0, row_width=2)])
    inside, outside = (sa.aggregate([{"v": ([key], np.ones((1, 2)))}], spec) for key in (4, 2**64 - 1))
    sparse_keras.apply_rows(FedAvgM(), inside, {"v": variable}, -1.0)
    assert variable.numpy()[4].tolist() == [0, 0]
    for call in (sparse_keras.gradients, lambda *given: sparse_keras.apply_rows(FedAvgM(), *given, -1.0)):
        with pytest.raises(sa.InvalidArgumentError, match=r"'v': key 18446744073709551615 is not in .* \(5, 2\)"):
            call(outside, {"v": variable})


def test_results_that_do_not_fit_are_refused() -> None:
    result = sa.aggregate(
        [([1], np.ones((1, WIDTH)))], sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=9, row_width=WIDTH)])
    )
    union = sa.aggregate(
        [([1], None)], sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=9, row_width=WIDTH)], op="union")
    )
    for call in (sparse_keras.gradients, lambda *given: sparse_keras.apply_rows(FedAvgM(), *given, -1.0)):
        for given, variables, text in (
            (result, make_model(), "no variable 'v'; it has 'emb/embeddings'"),
            (result, {"v": tf.Variable(np.ones((WIDTH, 9)))}, r"num_rows 9 × row_width 4 .* shape \(4, 9\)"),
            (result, {"v": tf.Variable(np.ones((10, WIDTH)))}, r"num_rows 9 × row_width 4 .* shape \(10, 4\)"),
            (result, {"v": np.ones((9, WIDTH))}, "'v' is ndarray, not a tf.Variable"),
            (union, {"v": tf.Variable(np.ones((9, WIDTH)))}, "'v' is a union"),
        ):
            with pytest.raises(sa.InvalidArgumentError, match=text):
                call(given, variables)


@pytest.mark.parametrize("rows", [FedAvgM, FedAdagrad, FedAdam, FedYogi])
@pytest.mark.parametrize("make", [keras.Variable, tf.Variable], ids=["keras", "tf"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_apply_rows_is_the_step_of_an_array(rows, make, dtype: str) -> None:
    rng, spec = np.random.default_rng(11), sa.RoundSpec(SPEC.tensors[:1])
    variable = make(tf.cast(rng.standard_normal((VOCABULARY, WIDTH)), dtype).numpy(), dtype=dtype)
    array = np.array(variable.numpy())
    one, other = rows(), rows()
    for _ in range(4):
        keys = np.flatnonzero(rng.random(VOCABULARY) < 0.4)
        result = sa.aggregate(
            [{"emb/embeddings": (keys, rng.standard_normal((len(keys), WIDTH)).astype(np.float32))}], spec
        )
        sparse_keras.apply_rows(one, result, {"emb/embeddings": variable}, -1.0)
        other.step("emb/embeddings", array, result["emb/embeddings"], alpha=-1.0)
    assert np.array(variable.numpy()).tobytes() == array.tobytes()


# ---- the function of docs/integrations.md takes the step of all clients' examples together ----


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


# ---- examples/keras_embedding.py: training with each coordinator, in memory and on a server ----


@pytest.mark.parametrize("name", keras_embedding.OPTIMIZERS)
def test_training_learns_from_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras_embedding, "ROUNDS", 6)
    figures = keras_embedding.train(keras_embedding.OPTIMIZERS[name](), seed=2)
    assert figures["after"] < figures["before"] - 0.02, figures
    assert 0 < figures["rows_sent"] < figures["rows_of_dense_updates"] / 40, figures
    assert (figures["rows_moved_untouched"] > 0) == (name == "keras Adam"), figures
