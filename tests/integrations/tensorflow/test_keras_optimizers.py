"""Which optimisers move rows that nobody touched."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import sparseagg as sa
import tensorflow as tf
from sparseagg import keras as sparse_keras
from sparseagg.optimizers import FedAdagrad, FedAdam, FedAvgM, FedYogi

NUM_ROWS, WIDTH = 10, 3
SPEC = sa.RoundSpec([sa.TensorSpec("emb", "float32", num_rows=NUM_ROWS, row_width=WIDTH)], op="mean")
# As docs/integrations.md and sparseagg.keras say.
KERAS = keras.optimizers
MOVE_OTHERS = {
    "SGD": (lambda: KERAS.SGD(0.1), False),
    "SGD, momentum": (lambda: KERAS.SGD(0.1, momentum=0.9), True),
    "Adagrad": (lambda: KERAS.Adagrad(0.1), False),
    "Adadelta": (lambda: KERAS.Adadelta(0.1), False),
    "RMSprop": (lambda: KERAS.RMSprop(0.1), False),
    "RMSprop, momentum": (lambda: KERAS.RMSprop(0.1, momentum=0.5), True),
    "Ftrl": (lambda: KERAS.Ftrl(0.1), False),
    "Adam": (lambda: KERAS.Adam(0.1), True),
    "Adamax": (lambda: KERAS.Adamax(0.1), True),
    "Nadam": (lambda: KERAS.Nadam(0.1), True),
    "Lion": (lambda: KERAS.Lion(0.1), True),
    "Lamb": (lambda: KERAS.Lamb(0.1), True),
    "SGD, weight decay": (lambda: KERAS.SGD(0.1, weight_decay=0.1), True),
    "AdamW": (lambda: KERAS.AdamW(0.1), True),
}
ROWS = {
    "FedAvgM": lambda **options: FedAvgM(learning_rate=0.1, **options),
    "FedAdagrad": FedAdagrad,
    "FedAdam": FedAdam,
    "FedYogi": FedYogi,
}


def merged(*keys: int) -> sa.Result:
    return sa.aggregate([{"emb": (np.array(keys), np.ones((len(keys), WIDTH), np.float32))}], SPEC)


def moved_rows(step, variable) -> list[int]:
    """The rows that the second of two steps moves: the first has rows 2 and 4, the second has row 4."""
    step(merged(2, 4))
    before = variable.numpy().copy()
    step(merged(4))
    return np.flatnonzero((variable.numpy() != before).any(axis=1)).tolist()


@pytest.mark.parametrize("name", MOVE_OTHERS)
def test_keras_optimizers_that_move_rows_nobody_touched(name: str) -> None:
    make, moves_others = MOVE_OTHERS[name]
    variable, optimizer = keras.Variable(np.ones((NUM_ROWS, WIDTH), np.float32)), make()
    moved = moved_rows(
        lambda result: optimizer.apply(*zip(*sparse_keras.gradients(result, {"emb": variable}))), variable
    )
    assert 4 in moved
    assert (moved != [4]) == moves_others, moved


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_apply_rows_moves_the_rows_of_the_result(name: str, dense: bool) -> None:
    variable, optimizer = keras.Variable(np.ones((NUM_ROWS, WIDTH), np.float32)), ROWS[name](dense=dense)
    moved = moved_rows(lambda result: sparse_keras.apply_rows(optimizer, result, {"emb": variable}, -1.0), variable)
    assert moved == ([2, 4] if dense and name != "FedAdagrad" else [4])
    assert (variable.numpy()[4] < 1).all()  # against the gradient


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("make", [keras.Variable, tf.Variable], ids=["keras", "tf"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_apply_rows_is_the_step_of_an_array(name: str, make, dtype: str) -> None:
    rng = np.random.default_rng(11)
    variable = make(tf.cast(rng.standard_normal((NUM_ROWS, WIDTH)), dtype).numpy(), dtype=dtype)
    array = np.array(variable.numpy())
    one, other = ROWS[name](), ROWS[name]()
    for _ in range(4):
        keys = np.flatnonzero(rng.random(NUM_ROWS) < 0.4)
        result = sa.aggregate([{"emb": (keys, rng.standard_normal((len(keys), WIDTH)).astype(np.float32))}], SPEC)
        sparse_keras.apply_rows(one, result, {"emb": variable}, -1.0)
        other.step("emb", array, result["emb"], alpha=-1.0)
    assert np.array(variable.numpy()).tobytes() == array.tobytes()


@pytest.mark.parametrize("name", ["SGD", "Adagrad"])
def test_keras_and_ours_take_the_same_steps(name: str) -> None:
    rng = np.random.default_rng(12)
    start = rng.standard_normal((NUM_ROWS, WIDTH)).astype(np.float32)
    theirs, ours = keras.Variable(start), keras.Variable(start)
    if name == "SGD":
        optimizer, rows = KERAS.SGD(0.1), FedAvgM(learning_rate=0.1, momentum=0.0)
    else:  # Keras takes the root of v + ε, and Reddi et al. add τ to the root of v
        optimizer = KERAS.Adagrad(0.1, initial_accumulator_value=0.0, epsilon=1e-18)
        rows = FedAdagrad(learning_rate=0.1, tau=1e-9)
    for _ in range(5):
        keys = np.flatnonzero(rng.random(NUM_ROWS) < 0.5)
        gradients = rng.standard_normal((len(keys), WIDTH)).astype(np.float32)
        result = sa.aggregate([{"emb": (keys, gradients)}], SPEC)
        optimizer.apply_gradients(sparse_keras.gradients(result, {"emb": theirs}))
        sparse_keras.apply_rows(rows, result, {"emb": ours}, -1.0)
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-6)
