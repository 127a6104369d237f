"""An embedding recommender under Flower, with sparse and with dense federated averaging.

    python examples/flower_recommender.py [PLAY] [--out FOLDER]

Needs flwr[simulation] and torch, and matplotlib with --out. Words are the items: eight words that a speaker has used
together recommend a ninth one. Each speaker of the play is a client; without a play, each file of Python's standard
library is one. The strategies are compared by flower_comparison.py; here is the model.

The model has two embeddings of all items and nothing else: the sum of the products of two rows, one of an item used and
one of an item recommended, is their affinity. No dense tensor travels.
"""

from __future__ import annotations

import flower_comparison
import torch

USED, WIDTH = 8, 32


class Recommender(torch.nn.Module):
    """An embedding for items used, and an embedding for items recommended."""

    def __init__(self, items: int) -> None:
        super().__init__()
        self.used = torch.nn.Embedding(items, WIDTH, sparse=True)
        self.recommended = torch.nn.Embedding(items, WIDTH, sparse=True)
        for table in (self.used, self.recommended):
            torch.nn.init.normal_(table.weight, std=0.1)

    def forward(self, used: torch.Tensor) -> torch.Tensor:
        """Returns a vector for each set of items; its products with the vectors of items are their scores."""
        return self.used(used).sum(dim=1) / USED**0.5


def loss(model: Recommender, windows: torch.Tensor) -> torch.Tensor:
    """Returns the loss among the batch's items; their frequency in the batch is part of their scores."""
    used, target = _split(windows)
    candidates, position, counts = torch.unique(target, return_inverse=True, return_counts=True)
    scores = model(used) @ model.recommended(candidates).T + (counts / len(windows)).log()
    return torch.nn.functional.cross_entropy(scores, position)


def held_out_losses(
    model: Recommender, windows: torch.Tensor, counts: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the loss of each window among all items, and the item to recommend."""
    frequency = ((counts + 1) / (counts + 1).sum()).log()
    losses = []
    for part in windows.split(256):
        used, target = _split(part)
        scores = model(used) @ model.recommended.weight.T + frequency
        losses.append(torch.nn.functional.cross_entropy(scores, target, reduction="none"))
    return torch.cat(losses), _split(windows)[1]


def _split(windows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the items used, and the one in their midst."""
    middle = USED // 2
    return torch.cat([windows[:, :middle], windows[:, middle + 1 :]], dim=1), windows[:, middle]


TASK = flower_comparison.Task(
    title="Recommender",
    sparse=["used.weight", "recommended.weight"],
    make_model=Recommender,
    loss=loss,
    held_out_losses=held_out_losses,
    window=USED + 1,
)

if __name__ == "__main__":
    flower_comparison.run(TASK, "flower_recommender")
