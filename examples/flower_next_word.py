"""A next-word model under Flower, with sparse and with dense federated averaging.

    python examples/flower_next_word.py [PLAY] [--out FOLDER]

Needs flwr[simulation] and torch, and matplotlib with --out. Each speaker of the play is a client; without a play, each
file of Python's standard library is one. The strategies are compared by flower_comparison.py; here is the model.

The model predicts a word from the last word, and from the mean of the last six: two embeddings of all words, of which a
client uses the rows of its own words, and a small dense head between them. Clients train with the words of a batch as
the candidates. The held-out loss is that among all words: the score is added to the word's frequency.
"""

from __future__ import annotations

import flower_comparison
import torch

CONTEXT, WIDTH = 6, 32


class NextWord(torch.nn.Module):
    """An embedding for words read, a dense head, and an embedding for words predicted."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.read = torch.nn.Embedding(words, WIDTH, sparse=True)
        self.head = torch.nn.Sequential(
            torch.nn.Linear(2 * WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH)
        )
        self.predicted = torch.nn.Embedding(words, WIDTH, sparse=True)
        for table in (self.read, self.predicted):
            torch.nn.init.normal_(table.weight, std=0.1)

    def forward(self, context: torch.Tensor) -> torch.Tensor:
        """Returns a vector for each context; its products with the vectors of words are their scores."""
        rows = self.read(context)
        return self.head(torch.cat([rows[:, -1], rows.mean(dim=1)], dim=1))


def loss(model: NextWord, windows: torch.Tensor) -> torch.Tensor:
    """Returns the loss among the batch's words; their frequency in the batch is part of their scores."""
    candidates, target, counts = torch.unique(windows[:, -1], return_inverse=True, return_counts=True)
    scores = model(windows[:, :-1]) @ model.predicted(candidates).T + (counts / len(windows)).log()
    return torch.nn.functional.cross_entropy(scores, target)


def held_out_losses(model: NextWord, windows: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the loss of each window among all words, and the word to predict."""
    frequency = ((counts + 1) / (counts + 1).sum()).log()
    losses = [
        torch.nn.functional.cross_entropy(
            model(part[:, :-1]) @ model.predicted.weight.T + frequency, part[:, -1], reduction="none"
        )
        for part in windows.split(256)
    ]
    return torch.cat(losses), windows[:, -1]


TASK = flower_comparison.Task(
    title="Next word",
    sparse=["read.weight", "predicted.weight"],
    make_model=NextWord,
    loss=loss,
    held_out_losses=held_out_losses,
    window=CONTEXT + 1,
)

if __name__ == "__main__":
    flower_comparison.run(TASK, "flower_next_word")
