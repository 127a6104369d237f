"""The model of nvflare_wire.py."""

import torch

NAME = "embedding.weight"


class Table(torch.nn.Module):
    """An embedding."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.rows, self.width = rows, width  # NVFlare's export reads a model's arguments from its attributes
        self.embedding = torch.nn.Embedding(rows, width)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            self.embedding.weight.copy_(torch.randn(rows, width, generator=generator))
