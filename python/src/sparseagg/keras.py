"""Keras models, with TensorFlow as backend: gradients of clients to updates, results to optimisers.

    from sparseagg import keras as sparse_keras

    spec = sa.RoundSpec.like(sparse_keras.variables(model), sparse=["emb/embeddings"], op="mean")
    rnd.submit(client, sparse_keras.update(tape.gradient(loss, model.trainable_variables), model))  # on each client
    model.optimizer.apply_gradients(sparse_keras.gradients(rnd.finish(), model))  # on the coordinator

An embedding's gradient is a ``tf.IndexedSlices``: only the rows of the batch travel, and only merged rows come back.

**Many Keras optimisers also move rows that are not in the gradient.** They keep momentum for each row, and apply it in
each step: SGD with momentum, Adam and its relatives, RMSprop with momentum, and every optimiser with weight decay. SGD,
Adagrad, RMSprop and Adadelta move the rows of the gradient only. ``apply_rows`` with one of ``sparseagg.optimizers``
changes rows of the result, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sparseagg._internal.base.foreign import Array
from sparseagg._internal.results.result import TensorResult
from sparseagg.errors import InvalidArgumentError
from sparseagg.optimizers import RowOptimizer

__all__ = ["apply_rows", "gradients", "update", "variables"]


def variables(model: Any) -> dict[str, Any]:
    """Returns the trainable variables of a model by name, in the order of ``model.trainable_variables``.

    A name is the variable's path without the model's name, such as "emb/embeddings" for a layer named "emb". Give
    layers names: those that Keras makes up count on from model to model, and differ from process to process.

    Args:
        model: a Keras model, or a mapping from names to variables, which is returned as a dict.

    Raises:
        InvalidArgumentError: two variables have the same name.
    """
    if isinstance(model, Mapping):
        return dict(model)
    named: dict[str, Any] = {}
    prefix = f"{model.name}/"
    for variable in model.trainable_variables:
        path = str(variable.path)
        name = path[len(prefix) :] if path.startswith(prefix) else path
        if name in named:
            raise InvalidArgumentError(
                f"two variables are named {name!r}: give layers names, or give a mapping of variables"
            )
        named[name] = variable
    return named


def update(gradients: Sequence[Any], model: Any) -> dict[str, Any]:
    """Returns a client's update, for ``Round.submit``.

    Args:
        gradients: of all trainable variables, in their order, as ``tape.gradient`` returns them. Gradients of None are
            left out: nothing was touched.
        model: as for ``variables``.

    Raises:
        InvalidArgumentError: there is not one gradient for each variable.
    """
    names = list(variables(model))
    if len(names) != len(gradients):
        raise InvalidArgumentError(f"{len(gradients)} gradients for {len(names)} variables")
    return {name: gradient for name, gradient in zip(names, gradients) if gradient is not None}


def gradients(result: Mapping[str, TensorResult], model: Any) -> list[tuple[Any, Any]]:
    """Returns merged gradients with their variables, for ``optimizer.apply_gradients``.

    Sparse tensors become ``tf.IndexedSlices``, dense tensors ``tf.Tensor``, in shape and dtype of the variable. The
    module's text says which optimisers move other rows, too. Keras wants ``optimizer.build(model.trainable_variables)``
    before the first step, if not every round has all variables.

    Args:
        result: a round's result, or a mapping from names to ``TensorResult``.
        model: as for ``variables``.

    Raises:
        InvalidArgumentError: the model has no variable for a tensor, or one that the tensor does not fit.
    """
    import tensorflow as tf

    pairs: list[tuple[Any, Any]] = []
    for tensor, variable, _ in _matched(result, model):
        shape = tuple(int(size) for size in variable.shape)
        if tensor.layout == "dense" or not shape:
            pairs.append((tf.cast(tensor.dense().reshape(shape), variable.dtype), variable))
            continue
        merged = np.asarray(tensor.values).reshape(-1, tensor.row_width)
        rows, at, part = _places(tensor, shape)
        values = np.zeros((len(rows), math.prod(shape[1:]) // tensor.row_width, tensor.row_width), merged.dtype)
        values[at, part] = merged
        values = tf.cast(values.reshape(len(rows), *shape[1:]), variable.dtype)
        slices = tf.IndexedSlices(values, tf.constant(rows), tf.constant(shape, tf.int64))
        pairs.append((slices, variable))
    return pairs


def apply_rows(optimizer: RowOptimizer, result: Mapping[str, TensorResult], model: Any, alpha: float) -> None:
    """Takes one step of a server optimiser that changes the rows of the result and no others.

    Args:
        optimizer: one of ``sparseagg.optimizers``; it keeps the state of the rows.
        result: a round's result, or a mapping from names to ``TensorResult``.
        model: as for ``variables``.
        alpha: −1 if the result has gradients, 1 if it has differences of models.

    Raises:
        InvalidArgumentError: the model has no variable for a tensor, or one that the tensor does not fit.
    """
    import tensorflow as tf

    for tensor, _, storage in _matched(result, model):
        shape = tuple(int(size) for size in storage.shape)
        if tensor.layout == "dense" or optimizer.dense or not shape:
            array = np.array(storage.numpy(), order="C")
            optimizer.step(tensor.name, array, tensor, alpha)
            storage.assign(array)
            continue
        rows, at, part = _places(tensor, shape)
        values = np.array(tf.gather(storage, rows).numpy())
        parts = values.reshape(len(rows), math.prod(shape[1:]) // tensor.row_width, tensor.row_width)
        delta = np.asarray(tensor.values).reshape(-1, tensor.row_width)
        count = math.prod(shape) // tensor.row_width
        parts[at, part] = optimizer.step_rows(tensor.name, count, tensor.keys, parts[at, part], delta, alpha)
        storage.scatter_update(tf.IndexedSlices(values, rows))


def _matched(result: Mapping[str, TensorResult], model: Any) -> list[tuple[TensorResult, Any, Any]]:
    """Returns the tensors of a result, each with its variable and the ``tf.Variable`` of that."""
    known = variables(model)
    matched = []
    for name, tensor in result.items():
        if name not in known:
            raise InvalidArgumentError(
                f"the model has no variable {name!r}; it has {', '.join(map(repr, known)) or 'none'}"
            )
        variable = known[name]
        storage = variable.value if hasattr(variable, "path") else variable  # Keras wraps TensorFlow's
        if not hasattr(storage, "scatter_update"):
            kind = type(storage).__name__
            raise InvalidArgumentError(
                f"variable {name!r} is {kind}, not a tf.Variable: is Keras's backend TensorFlow?"
            )
        if tensor.values is None:
            raise InvalidArgumentError(f"tensor {name!r} is a union, which has no values")
        shape = tuple(int(size) for size in storage.shape)
        num_keys = math.prod(shape) // tensor.row_width
        if tensor.num_rows not in (0, num_keys) or math.prod(shape[1:]) % tensor.row_width:
            size = f"num_rows {tensor.num_rows} × row_width {tensor.row_width}"
            raise InvalidArgumentError(f"tensor {name!r}: {size} does not fit a variable of shape {shape}")
        if tensor.num_rows == 0 and len(tensor) and int(tensor.keys[-1]) >= num_keys:
            raise InvalidArgumentError(f"tensor {name!r}: key {tensor.keys[-1]} is not in a variable of shape {shape}")
        matched.append((tensor, variable, storage))
    return matched


def _places(tensor: TensorResult, shape: tuple[int, ...]) -> tuple[Array, Array, Array]:
    """Returns the rows of a variable that have keys, ascending; and for each key, which of these, and the part of it.

    A key is a whole row, or a part of one: a single element with ``row_width`` 1.
    """
    keys = tensor.keys.astype(np.int64)
    parts = math.prod(shape[1:]) // tensor.row_width
    rows, at = np.unique(keys // parts, return_inverse=True)
    return rows, at, keys % parts
