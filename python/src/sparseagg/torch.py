"""An embedding whose rows are fetched from a model on a server: for PyTorch."""

from __future__ import annotations

from typing import Any, SupportsIndex

import numpy as np
import torch

from sparseagg._internal.client.blocking_client import Model

__all__ = ["FetchedEmbedding"]


class FetchedEmbedding(torch.nn.Module):  # type: ignore[misc]
    """An embedding of which this process has only the rows that its data needs.

        emb = FetchedEmbedding(model, "emb")
        version = emb.fetch(all_ids)                     # before training: one read
        loss = head(emb(ids)).sum(); loss.backward(); optimizer.step()
        stream.submit(me, {"emb": emb.update()}, base_version=version)

    ``weight`` is an ordinary parameter of shape (rows fetched, width), so that any optimizer trains it; make optimizers
    after ``fetch``, which makes a new one. Not thread-safe.

    Args:
        model: a ``sparseagg.Model``.
        tensor: its name.
        device: of ``weight``.
        value_encoding, pad: as of ``Model.read``.

    Attributes:
        weight: the rows, in ascending order of ``keys``.
        keys: a buffer: distinct ids, ascending, int64; of ids of 64 bits without a sign, their bits.
        version: of the rows; None before ``fetch``.
    """

    weight: torch.nn.Parameter
    keys: torch.Tensor
    version: int | None = None

    def __init__(
        self, model: Model, tensor: str, *, device: Any = None, value_encoding: Any = None, pad: bool = False
    ) -> None:
        super().__init__()
        self._model, self._tensor, self._device = model, tensor, device
        self._options = {"value_encoding": value_encoding, "pad": pad}
        self.register_buffer("keys", torch.empty(0, dtype=torch.int64, device=device))
        self.weight = torch.nn.Parameter(torch.empty(0, model.info.tensors[tensor].width, device=device))

    def fetch(self, ids: Any, version: SupportsIndex | None = None) -> int:
        """Reads the rows of these ids, which may repeat, in one version, and forgets all others.

        Returns:
            The version. Raises: as ``Model.read``.
        """
        distinct = torch.as_tensor(ids).reshape(-1).to("cpu", torch.int64).unique()
        found = self._model.read({self._tensor: self._wire(distinct)}, version=version, **self._options)
        self._fetched = torch.from_numpy(found[0].reshape(len(distinct), -1)).to(self._device)
        self.keys = distinct.to(self._device)
        self.weight = torch.nn.Parameter(self._fetched.clone())
        self.version = found.version
        return found.version

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Returns the rows of ids, of shape (*ids.shape, width); ``KeyError`` for an id that was not fetched."""
        at = torch.searchsorted(self.keys, ids.long()).clamp_(max=max(0, len(self.keys) - 1))
        if not len(self.keys) or (missing := self.keys[at] != ids).any():
            raise KeyError(f"id {int(ids[missing][0] if len(self.keys) else ids.reshape(-1)[0])} was not fetched")
        return torch.nn.functional.embedding(at, self.weight)

    def update(self) -> tuple[Any, Any]:
        """Returns (keys, differences to the fetched rows) of the rows that have changed: an update for ``submit``."""
        moved = (self.weight.detach() - self._fetched).cpu()
        changed = moved.ne(0).any(dim=1)
        return self._wire(self.keys.cpu()[changed]), moved[changed].numpy()

    def _wire(self, keys: torch.Tensor) -> Any:
        """Returns keys as the model has them: any uint64 has its bits here."""
        array = keys.numpy()
        return array if self._model.info.tensors[self._tensor].num_rows else array.view(np.uint64)
