"""The client for asyncio: ``Client``, ``Round`` and ``open_round``, as those of ``sparseagg``, with coroutines."""

from sparseagg.client.async_client import Client, open_round
from sparseagg.client.async_round import Round

__all__ = ["Client", "Round", "open_round"]
