"""The asyncio twin of ``sparseagg.Client`` and ``sparseagg.Round``: the same names, awaited."""

from sparseagg.client.aio_client import Client, Round

__all__ = ["Client", "Round"]
