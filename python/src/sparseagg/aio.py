"""The client for asyncio: the classes and ``open_round`` of ``sparseagg``, with coroutines."""

from sparseagg._internal.client.async_client import Client, open_round
from sparseagg._internal.client.async_model import PublishedModel
from sparseagg._internal.client.async_round import Round
from sparseagg._internal.client.async_stream import Stream
from sparseagg._internal.client.async_tasks import worker

__all__ = ["Client", "PublishedModel", "Round", "Stream", "open_round", "worker"]
