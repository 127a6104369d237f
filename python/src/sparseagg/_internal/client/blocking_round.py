"""``sparseagg.Round``: the round for programs without an event loop.

Each method runs the coroutine of the same name in ``async_round`` over a ``BlockingTransport``.
"""

from __future__ import annotations

from typing import Any

from sparseagg._internal.client import async_round
from sparseagg._internal.client.blocking import blocking
from sparseagg._internal.client.round_attributes import RoundAttributes
from sparseagg._internal.results.info import RoundInfo

__all__ = ["Round"]


class Round(RoundAttributes):
    """A round on the server, from the methods of ``Client``, or from ``open_round``. Thread-safe.

    A round can be pickled, unless it is one of ":memory:". The copy has a connection of its own, as a round of
    ``open_round`` has; its first call opens it. The pickle has the client's arguments, a token among them.
    """

    def __init__(self, inner: async_round.Round) -> None:
        self._inner = inner

    def __reduce__(self) -> tuple[Any, ...]:
        return Round, (self._inner,)

    def __enter__(self) -> Round:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def handle(self) -> str:
        return self._inner.handle

    @property
    def info(self) -> RoundInfo:
        return self._inner.info

    refresh = blocking(async_round.Round.refresh)
    submit = blocking(async_round.Round.submit)
    submit_batch = blocking(async_round.Round.submit_batch)
    submissions = blocking(async_round.Round.submissions)
    withdraw = blocking(async_round.Round.withdraw)
    seal = blocking(async_round.Round.seal)
    inspect = blocking(async_round.Round.inspect)
    add_partial = blocking(async_round.Round.add_partial)
    put_result_range = blocking(async_round.Round.put_result_range)
    result_range = blocking(async_round.Round.result_range)
    export_partial = blocking(async_round.Round.export_partial)
    export_page = blocking(async_round.Round.export_page)
    export_submissions = blocking(async_round.Round.export_submissions)
    sample_keys = blocking(async_round.Round.sample_keys)
    close = blocking(async_round.Round.close)
    wait = blocking(async_round.Round.wait)
    result = blocking(async_round.Round.result)
    finish = blocking(async_round.Round.finish)
    certificate = blocking(async_round.Round.certificate)
    receipt = blocking(async_round.Round.receipt)
    leaves = blocking(async_round.Round.leaves)
    export = blocking(async_round.Round.export)
    cancel = blocking(async_round.Round.cancel)
    delete = blocking(async_round.Round.delete)
    release = blocking(async_round.Round.release)
