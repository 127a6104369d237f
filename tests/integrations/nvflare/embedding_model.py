"""A small recommender, and one client's training of it: a function of the weights, the site and the round alone."""

import torch

NUM_ROWS, WIDTH = 2000, 16
EMBEDDING = "embedding.weight"


class Recommender(torch.nn.Module):
    """The mean of the rows of a basket's items, a batch norm, which has an integer buffer, and one output."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.embedding = torch.nn.EmbeddingBag(NUM_ROWS, WIDTH, mode="mean")
        self.norm = torch.nn.BatchNorm1d(WIDTH)
        self.output = torch.nn.Linear(WIDTH, 1)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)

    def forward(self, baskets):
        """Returns one score for each basket of item numbers."""
        return self.output(self.norm(self.embedding(baskets)))[:, 0]


def train(model, site, round_number):
    """Trains in place on the site's data; returns the number of steps and the mean loss."""
    torch.set_num_threads(1)
    number = int(site.rpartition("-")[2])
    generator = torch.Generator().manual_seed(1000 * round_number + number)
    items = torch.randint(NUM_ROWS, (40,), generator=generator)  # those of this site
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    steps, total = 2 + number % 3, 0.0
    for _ in range(steps):
        baskets = items[torch.randint(len(items), (16, 5), generator=generator)]
        labels = (baskets.sum(1) % 2).float()
        optimiser.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(baskets), labels)
        loss.backward()
        optimiser.step()
        total += loss.item()
    return steps, total / steps
