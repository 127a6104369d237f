"""``sparseagg.PublishedModel``: versions of a model on a server, for programs without an event loop."""

from __future__ import annotations

from sparseagg._internal.client import async_model
from sparseagg._internal.client.blocking import blocking

__all__ = ["PublishedModel"]


class PublishedModel:
    """A model on a server, from ``Client.model``: the coordinator publishes versions, and clients catch up.

        model = client.model("recommender")
        model.publish(0, arrays, whole=True)                      # the coordinator
        model.publish(1, {"embedding": (keys, arrays["embedding"][keys])})

        version = model.catch_up(mine, since=0)                   # a client, whose arrays are those of version 0

    A version is a round of the server with the rows that it changed, their new values. Now and then the whole model is
    a round, too, for clients that lag too far behind. Arrays are those of NumPy or torch, of any type, and arrive bit
    for bit. The first axis of an array counts its rows.

    One process publishes; it may be restarted, and goes on with the versions on the server. Any number of clients catch
    up, meanwhile. ``catch_up`` is thread-safe, ``publish`` is not.
    """

    def __init__(self, inner: async_model.PublishedModel) -> None:
        self._inner = inner

    @property
    def name(self) -> str:
        """The model's name."""
        return self._inner.name

    publish = blocking(async_model.PublishedModel.publish)
    catch_up = blocking(async_model.PublishedModel.catch_up)
    version = blocking(async_model.PublishedModel.version)
    delete = blocking(async_model.PublishedModel.delete)
