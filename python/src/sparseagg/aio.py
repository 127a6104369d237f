"""The client for asyncio: the classes of ``sparseagg``, with coroutines."""

from sparseagg._internal.client.async_client import Client
from sparseagg._internal.client.async_models import Model
from sparseagg._internal.client.async_round import Round
from sparseagg._internal.client.async_stream import Stream

__all__ = ["Client", "Model", "Round", "Stream"]
