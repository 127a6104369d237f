"""Skip-gram with negative sampling: the two tables, a client's gradient, the loss on held-out text.

For a token c and a token o near it, the model learns to tell o from random tokens, the negatives. With rows i_c of the
input table and o_o of the output table, the loss is −log σ(i_c·o_o) − Σ over negatives n of log σ(−i_c·o_n).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from sparseagg._internal.base.foreign import Array
from sparseagg._internal.commands.demo.corpus import Vocabulary
from sparseagg._internal.results.result import TensorResult

WINDOW = 5  # largest distance of a context from its token
NEGATIVES = 5  # number of negatives in the loss of a pair
_SHARED_NEGATIVES = 64  # drawn once for all pairs of a client, for matrix products, with the weight of NEGATIVES
_HELD_OUT_PAIRS = 20_000
_SMOOTHING = 0.75  # exponent of the frequencies with which negatives are drawn


@dataclasses.dataclass(frozen=True)
class ClientData:
    """A client's text: its distinct ids, ascending, and for each token the position of its id."""

    ids: Array
    local: Array

    @classmethod
    def of(cls, encoded: Array) -> ClientData:
        """Returns the data of a text given as ids."""
        ids, local = np.unique(encoded, return_inverse=True)
        return cls(ids, local)


@dataclasses.dataclass(frozen=True)
class Gradient:
    """A client's update: rows of both tables, as the mean over its ``num_pairs`` examples."""

    input_keys: Array
    input_rows: Array
    output_keys: Array
    output_rows: Array
    num_pairs: int


class Model:
    """The tables, float32 of shape (vocabulary, width), and Adagrad's sums of squared gradients."""

    def __init__(self, vocabulary: Vocabulary, width: int, learning_rate: float, seed: int) -> None:
        rng = np.random.default_rng(seed)
        size = len(vocabulary)
        self.tables = {
            "input": ((rng.random((size, width)) - 0.5) / width).astype(np.float32),
            "output": np.zeros((size, width), np.float32),
        }
        self._squares = {name: np.zeros_like(table) for name, table in self.tables.items()}
        self._learning_rate = np.float32(learning_rate)
        frequencies = vocabulary.counts.astype(np.float64) ** _SMOOTHING
        self._cumulative = np.cumsum(frequencies) / frequencies.sum()

    def draw_negatives(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Returns ids drawn by their smoothed frequency."""
        drawn = np.searchsorted(self._cumulative, rng.random(shape), side="right")
        negatives: Array = np.minimum(drawn, len(self._cumulative) - 1)
        return negatives

    def apply(self, name: str, keys: Array, gradient: Array) -> None:
        """Takes one step of Adagrad on the rows at ``keys`` of the table ``name``."""
        squares = self._squares[name]
        squares[keys] += gradient * gradient
        self.tables[name][keys] -= self._learning_rate * gradient / (np.sqrt(squares[keys]) + np.float32(1e-12))


def client_gradient(model: Model, data: ClientData, max_pairs: int, rng: np.random.Generator) -> Gradient | None:
    """Returns a client's gradient on its own text, each token with one neighbour, ``max_pairs`` pairs at most: rows at
    the client's tokens, and in the output table also at the negatives; None if the text has no pairs.
    """
    length = len(data.local)
    centers = np.arange(length) if length <= max_pairs else rng.integers(0, length, max_pairs)
    contexts = centers + _offsets(rng, len(centers))
    inside = (contexts >= 0) & (contexts < length)
    centers, contexts = data.local[centers[inside]], data.local[contexts[inside]]
    if len(centers) == 0:
        return None
    negatives = np.unique(model.draw_negatives(rng, (_SHARED_NEGATIVES,)))

    inputs = model.tables["input"][data.ids][centers]
    outputs = model.tables["output"][data.ids][contexts]
    negative_outputs = model.tables["output"][negatives]
    # Derivatives of the loss by the scores: σ(s) − 1 of a true pair, σ(s) of a negative.
    by_pair = -_sigmoid(-np.einsum("ij,ij->i", inputs, outputs))[:, None]
    by_negative = _sigmoid(inputs @ negative_outputs.T) * np.float32(NEGATIVES / len(negatives))

    scale = np.float32(1.0 / len(centers))
    input_keys, input_rows = _add_up(data.ids[centers], by_pair * outputs + by_negative @ negative_outputs)
    output_keys, output_rows = _add_up(
        np.concatenate([data.ids[contexts], negatives]),
        np.concatenate([by_pair * inputs, by_negative.T @ inputs]),
    )
    return Gradient(input_keys, input_rows * scale, output_keys, output_rows * scale, len(centers))


class HeldOut:
    """Pairs and negatives of the held-out texts, the same in every round."""

    def __init__(self, model: Model, texts: list[Array], seed: int) -> None:
        rng = np.random.default_rng(seed)
        share = max(1, _HELD_OUT_PAIRS // max(1, len(texts)))
        centers, contexts = [], []
        for text in texts:
            if len(text) <= 2 * WINDOW:
                continue
            at = rng.integers(WINDOW, len(text) - WINDOW, share)
            centers.append(text[at])
            contexts.append(text[at + _offsets(rng, share)])
        if not centers:
            raise ValueError("the held-out texts share too few tokens with the clients'")
        self._centers = np.concatenate(centers)
        self._contexts = np.concatenate(contexts)
        self._negatives = model.draw_negatives(rng, (len(self._centers), NEGATIVES))

    def loss(self, model: Model) -> float:
        """Returns the mean loss of a pair; (1 + NEGATIVES)·log 2 for an untrained model."""
        inputs = model.tables["input"][self._centers]
        outputs = model.tables["output"]
        pair_scores = np.einsum("ij,ij->i", inputs, outputs[self._contexts])
        negative_scores = np.einsum("ij,ikj->ik", inputs, outputs[self._negatives])
        losses = np.logaddexp(0.0, -pair_scores) + np.logaddexp(0.0, negative_scores).sum(axis=1)
        return float(losses.mean(dtype=np.float64))


def _offsets(rng: np.random.Generator, count: int) -> Array:
    offsets: Array = rng.integers(1, WINDOW + 1, count) * rng.choice(np.array([-1, 1]), count)
    return offsets


def _sigmoid(scores: Array) -> Array:
    result: Array = np.float32(1.0) / (np.float32(1.0) + np.exp(-scores))
    return result


def _add_up(keys: Array, rows: Array) -> tuple[Array, Array]:
    """Returns the distinct keys, ascending, and the sums of their rows."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    return ordered[starts], np.add.reduceat(rows[order], starts, axis=0)


# What one client submitted: keys, each once, and float32 rows by tensor; and the weight.
Submitted = tuple[Mapping[str, tuple[Array, Array]], float]


def weighted_mean(
    updates: Mapping[str, Submitted], name: str, num_rows: int, row_width: int
) -> tuple[Array, Array, Array]:
    """Returns what the server must return for one tensor: keys, float32 rows and counts of contributors.

    The sums are a dense float64 table, folded in ascending order of client id as docs/numerics.md says. NumPy rounds
    each product and each sum once, so the rows have the server's bits.
    """
    sums, counts, total = np.zeros((num_rows, row_width)), np.zeros(num_rows, np.uint32), 0.0
    for client_id in sorted(updates, key=str.encode):
        tensors, weight = updates[client_id]
        keys, rows = tensors[name]
        sums[keys] += weight * rows.astype(np.float64)
        counts[keys] += 1
        total += weight
    touched = np.flatnonzero(counts)
    rows = (sums[touched] / total).astype(np.float32) + np.float32(0)  # a result has no −0.0
    return touched, rows, counts[touched]


def differences(updates: Mapping[str, Submitted], result: Mapping[str, TensorResult]) -> list[str]:
    """Returns one sentence for each difference of ``result`` from the weighted means; an empty list where none is."""
    found = []
    for name, tensor in result.items():
        keys, rows, counts = weighted_mean(updates, name, tensor.num_rows, tensor.row_width)
        if not np.array_equal(tensor.keys, keys):
            found.append(f"{name}: {len(tensor.keys)} keys instead of {len(keys)}, or other ones")
            continue
        if tensor.values is None or tensor.values.tobytes() != rows.tobytes():
            found.append(f"{name}: other values")
        if tensor.counts is None or not np.array_equal(tensor.counts, counts):
            found.append(f"{name}: other counts")
    return found
