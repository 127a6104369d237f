"""The asyncio twin of ``sparseagg.Client`` and ``sparseagg.Round``: the same names, awaited."""

from sparseagg.aio.client import Client, Round

__all__ = ["Client", "Round"]
