"""Streams, for programs without an event loop."""

from __future__ import annotations

from sparseagg._internal.base.durations import as_of
from sparseagg._internal.client import async_stream
from sparseagg._internal.client.blocking import blocking, blocking_iterator
from sparseagg._internal.client.blocking_round import Round
from sparseagg._internal.results.streams import StreamInfo
from sparseagg._internal.spec.round_spec import RoundSpec

__all__ = ["Stream"]


class Stream:
    """A stream on the server, from ``Client.stream`` or ``Client.get_stream``. Threads: as ``Client``.

    stream = client.stream(spec, buffer=32, staleness=sa.staleness.polynomial(0.5), max_staleness=20)
    stream.submit("client-7", update, base_version=version)   # a client, whenever it is ready
    for version in stream.versions():                         # the coordinator
        result = stream.result(version.version)
    """

    def __init__(self, inner: async_stream.Stream) -> None:
        self._inner = inner

    def __repr__(self) -> str:
        return f"Stream({self.name!r}, version {self.info.version}{as_of(self.info.as_of)})"

    @property
    def name(self) -> str:
        """The stream's name, "streams/{id}"."""
        return self._inner.name

    @property
    def spec(self) -> RoundSpec:
        """What each version computes."""
        return self._inner.spec

    @property
    def info(self) -> StreamInfo:
        """The stream as the server described it at ``info.as_of``; ``refresh`` asks again."""
        return self._inner.info

    refresh = blocking(async_stream.Stream.refresh)
    submit = blocking(async_stream.Stream.submit)
    submit_batch = blocking(async_stream.Stream.submit_batch)
    withdraw = blocking(async_stream.Stream.withdraw)
    cut = blocking(async_stream.Stream.cut)
    watch = blocking(async_stream.Stream.watch)
    versions = blocking_iterator(async_stream.Stream.versions)
    round = blocking(async_stream.Stream.round, Round)
    result = blocking(async_stream.Stream.result)
    delete = blocking(async_stream.Stream.delete)
