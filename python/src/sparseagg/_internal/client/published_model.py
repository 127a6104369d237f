"""``sparseagg.PublishedModel``: versions of a model on a server, for programs without an event loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsIndex

from sparseagg._internal.client import async_model
from sparseagg._internal.client.transport import run

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
        self._model = inner

    @property
    def name(self) -> str:
        """The model's name."""
        return self._model.name

    def publish(
        self, version: SupportsIndex, changes: Mapping[str, Any], *, model: Any = None, whole: bool = False
    ) -> None:
        """Makes a version known to clients.

        A whole model is published besides the changes when there is none on the server, when the changes since the last
        one have more bytes, or when half of that one's result_ttl is over. Then the oldest rounds are removed, beyond
        ``keep_bytes``; the newest whole model and the changes after it stay in any case.

        Args:
            version: the version before, plus 1; the first may be any from 0 on. The newest version again, with the same
                content, has no effect.
            changes: what changed since the version before, by tensor: (keys, rows), the new values of these rows; or an
                array, the new values of all. A tensor that is left out has not changed.
            model: the arrays of the whole model at this version, used if a whole model is to be published. None: it is
                read back from the server then.
            whole: ``changes`` are arrays, and the whole model: the only way without ``model`` to begin.

        Raises:
            InvalidArgumentError: an argument is wrong; the message names tensor and value.
            AlreadyExistsError: the version was published with other content.
            FailedPreconditionError: a whole model has to be published and the server has none to make it of, since its
                result_ttl is over.
            ResourceExhaustedError: the server has no memory for the version, or a row has more values than the server's
                max_row_width.
        """
        run(self._model.publish(version, changes, model=model, whole=whole))

    def catch_up(
        self,
        arrays: Mapping[str, Any],
        since: SupportsIndex | None = None,
        *,
        keys: tuple[int, int | None] | None = None,
    ) -> int:
        """Brings arrays to the newest version, in place, and returns that version.

        Reads the changes after ``since``, oldest first. If one is gone, reads the newest whole model and the changes
        after it. A call that nothing has changed for costs two short messages.

        Args:
            arrays: the model's arrays that the caller has, or some of them, by name: arrays of NumPy, or tensors of
                torch on the CPU, as they were at ``since``.
            since: version of ``arrays``; None: they have no contents yet.
            keys: range (begin, end) of the rows to bring up to date, an end of None: to the last one. The other rows
                stay as they are.

        Raises:
            InvalidArgumentError: the model has no such tensor, or it has another type or shape. Nothing is written.
            NotFoundError: there is no whole model on the server, and it is needed.

            After an error, the arrays may be between two versions. Call again with the same ``since``.
        """
        return run(self._model.catch_up(arrays, since, keys=keys))

    def version(self) -> int | None:
        """Returns the newest version; None if the server has none."""
        return run(self._model.version())

    def delete(self) -> None:
        """Removes all versions from the server."""
        run(self._model.delete())
