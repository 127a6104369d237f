"""The client for asyncio: ``Client`` and ``Round`` with the methods of ``sparseagg.Client`` and ``sparseagg.Round``."""

from sparseagg.client.async_client import Client, Round

__all__ = ["Client", "Round"]
