"""The client for asyncio: the classes and ``open_round`` of ``sparseagg``, with coroutines."""

from sparseagg.client.async_client import Client, open_round
from sparseagg.client.async_model import PublishedModel
from sparseagg.client.async_round import Round
from sparseagg.client.async_worker import worker

__all__ = ["Client", "PublishedModel", "Round", "open_round", "worker"]
