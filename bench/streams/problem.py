"""A language model of characters that clients learn from their own texts: numpy only, the same for every contestant.

The score of the next character is a sum of rows of one table: of the last character, of the last two and of the last
three, the latter two hashed. So a client changes the rows of its own text alone, and the model is convex.
"""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np

ROWS, CONTEXT, BATCH = 4096, 3, 64
MOST_CHARACTERS, LEAST_CHARACTERS = 6000, 600  # of a client's training text
STEPS = 16  # batches of a client's training, at most


@dataclasses.dataclass(frozen=True)
class Problem:
    """The texts as rows of the table and next characters.

    Attributes:
        inputs: of each client: (examples, 3) rows of the table.
        targets: of each client: the next characters.
        held_out_inputs, held_out_targets: of all clients' last tenths.
        width: number of characters, which is the width of a row.
    """

    inputs: list[np.ndarray]
    targets: list[np.ndarray]
    held_out_inputs: np.ndarray
    held_out_targets: np.ndarray
    width: int

    @classmethod
    def of_texts(cls, texts: list[str], clients: int) -> Problem:
        """Returns the problem of the longest texts."""
        texts = sorted((text[:MOST_CHARACTERS] for text in texts), key=lambda text: (-len(text), text))[:clients]
        if len(texts) < clients or len(texts[-1]) < LEAST_CHARACTERS:
            raise ValueError(f"there are no {clients} texts of {LEAST_CHARACTERS} characters or more")
        characters = {character: i for i, character in enumerate(sorted(set("".join(texts))))}
        coded = [np.array([characters[character] for character in text], np.int64) for text in texts]
        ends = [len(text) * 9 // 10 for text in coded]
        pairs = [_examples(text[:end]) for text, end in zip(coded, ends)]
        held_out = [_examples(text[end:]) for text, end in zip(coded, ends)]
        return cls(
            inputs=[inputs for inputs, _ in pairs],
            targets=[targets for _, targets in pairs],
            held_out_inputs=np.concatenate([inputs for inputs, _ in held_out]),
            held_out_targets=np.concatenate([targets for _, targets in held_out]),
            width=len(characters),
        )

    def save(self, path: pathlib.Path) -> None:
        """Writes an npz file, for contestants of other environments."""
        lengths = np.array([len(targets) for targets in self.targets])
        np.savez(
            path,
            inputs=np.concatenate(self.inputs),
            targets=np.concatenate(self.targets),
            lengths=lengths,
            held_out_inputs=self.held_out_inputs,
            held_out_targets=self.held_out_targets,
            width=self.width,
        )

    @classmethod
    def load(cls, path: pathlib.Path) -> Problem:
        """Reads the file of ``save``."""
        with np.load(path) as file:
            splits = np.cumsum(file["lengths"])[:-1]
            return cls(
                inputs=np.split(file["inputs"], splits),
                targets=np.split(file["targets"], splits),
                held_out_inputs=file["held_out_inputs"],
                held_out_targets=file["held_out_targets"],
                width=int(file["width"]),
            )

    def initial_model(self) -> np.ndarray:
        """Returns the table before training: zeros, which predict all characters alike."""
        return np.zeros((ROWS, self.width), np.float32)

    def train(self, model: np.ndarray, client: int, seed: int, learning_rate: float) -> tuple[np.ndarray, np.ndarray]:
        """Returns what a client's training changes: ascending rows (uint32), and their differences (float32)."""
        inputs, targets = self.inputs[client], self.targets[client]
        order = np.random.default_rng([seed, client]).permutation(len(targets))[: STEPS * BATCH]
        keys, at = np.unique(inputs[order], return_inverse=True)
        at = at.reshape(len(order), CONTEXT)
        rows = model[keys]
        for begin in range(0, len(order), BATCH):
            where, wanted = at[begin : begin + BATCH], targets[order[begin : begin + BATCH]]
            slope = _probabilities(rows[where].sum(axis=1))
            slope[np.arange(len(wanted)), wanted] -= 1
            slope *= np.float32(-learning_rate / len(wanted))
            np.add.at(rows, where.reshape(-1), np.repeat(slope, CONTEXT, axis=0))
        return keys.astype(np.uint32), rows - model[keys]

    def loss(self, model: np.ndarray) -> float:
        """Returns the held-out cross-entropy in nats a character."""
        total = 0.0
        for begin in range(0, len(self.held_out_targets), 4096):
            wanted = self.held_out_targets[begin : begin + 4096]
            scores = model[self.held_out_inputs[begin : begin + 4096]].sum(axis=1)
            scores -= scores.max(axis=1, keepdims=True)
            total += float(np.log(np.exp(scores).sum(axis=1)).sum() - scores[np.arange(len(wanted)), wanted].sum())
        return total / len(self.held_out_targets)


def _probabilities(scores: np.ndarray) -> np.ndarray:
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    return scores


def _examples(text: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows for each position, and the character that follows."""
    last, second, third = text[2:-1], text[1:-2], text[:-3]
    pair = (last * 131 + second * 7919 + 1) * 2654435761 % (1 << 32)
    triple = (last * 131 + second * 7919 + third * 104729 + 2) * 2654435761 % (1 << 32)
    hashed = ROWS - 256  # of the longer contexts; single characters have rows of their own
    rows = np.stack([last % 256, 256 + pair % hashed, 256 + triple % hashed], axis=1)
    return rows, text[3:]
