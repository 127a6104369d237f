"""Submissions of several servers in ascending order of client ids, a few pages of them in memory at a time."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator, Sequence

from sparseagg._internal.client.blocking_round import Round
from sparseagg._internal.client.exported import ExportedPage, ExportedUpdate, joined
from sparseagg.cluster.plan import KeyRange

__all__ = ["DuplicateClient", "OrderedSubmissions"]


class DuplicateClient(Exception):
    """A client has submissions on two servers: the id, and the two."""


class OrderedSubmissions:
    """Reads one tensor's submissions in a range of keys. The next page of each server is on its way meanwhile.

    Args:
        rounds: sealed, of each server.
        tensor: name of the tensor.
        keys: the range.
        page_bytes: of each page.

    Attributes:
        counts: submissions of each server that were read.
    """

    def __init__(self, rounds: Sequence[Round], tensor: str, keys: KeyRange, page_bytes: int) -> None:
        self._cursors = [_Cursor(opened, tensor, keys, page_bytes) for opened in rounds]

    @property
    def counts(self) -> list[int]:
        return [cursor.count for cursor in self._cursors]

    def batches(self) -> Iterator[dict[str, ExportedUpdate]]:
        """Yields the submissions, whose order over all batches is that of client ids.

        Raises:
            DuplicateClient: two servers have submissions of one client.
            SparseAggError: of the servers.
        """
        with concurrent.futures.ThreadPoolExecutor(len(self._cursors)) as pool:
            for cursor in self._cursors:
                cursor.start(pool)
            while True:
                for cursor in self._cursors:
                    cursor.fill(pool)
                # Ids below all of these have come completely.
                ends = [cursor.end for cursor in self._cursors if cursor.end is not None]
                end = min(ends) if ends else None
                ready: dict[bytes, int] = {}
                for index, cursor in enumerate(self._cursors):
                    for name in cursor.below(end):
                        if name in ready:
                            raise DuplicateClient(name.decode(), ready[name], index)
                        ready[name] = index
                batch = {name.decode(): self._cursors[ready[name]].take(name) for name in sorted(ready)}
                ready.clear()
                if batch:
                    yield batch
                elif end is None:
                    return
                del batch
                for cursor in self._cursors:
                    if cursor.end == end:
                        cursor.wants_more = True


class _Cursor:
    """The pages of one server."""

    def __init__(self, opened: Round, tensor: str, keys: KeyRange, page_bytes: int) -> None:
        self._opened, self._tensor, self._keys, self._page_bytes = opened, tensor, keys, page_bytes
        self._next: concurrent.futures.Future[ExportedPage] | None = None
        self._parts: dict[bytes, list[ExportedUpdate]] = {}  # in ascending order
        self.end: bytes | None = b""  # the last id, of which more may come; None: all has come
        self.wants_more = True
        self.count = 0

    def start(self, pool: concurrent.futures.Executor, page_token: str = "") -> None:
        """Asks for a page."""
        self._next = pool.submit(
            self._opened.export_page,
            self._tensor,
            keys=self._keys,
            page_token=page_token,
            max_bytes=self._page_bytes,
        )

    def fill(self, pool: concurrent.futures.Executor) -> None:
        """Takes the page that has been asked for, if one is wanted, and asks for the next one."""
        if self._next is None or not self.wants_more:
            return
        page = self._next.result()
        self._next = None
        self.wants_more = False
        for client_id, update in page.updates.items():
            self._parts.setdefault(client_id.encode(), []).append(update)
        self.end = next(reversed(self._parts), b"") if page.next_page_token else None
        if page.next_page_token:
            self.start(pool, page.next_page_token)

    def below(self, end: bytes | None) -> list[bytes]:
        """Returns the ids that have come and are below ``end``; None: all."""
        return [name for name in self._parts if end is None or name < end]

    def take(self, name: bytes) -> ExportedUpdate:
        self.count += 1
        return joined(self._parts.pop(name))
