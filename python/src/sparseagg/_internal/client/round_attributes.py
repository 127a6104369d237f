"""What rounds of both clients say of themselves."""

from __future__ import annotations

from sparseagg._internal.base.durations import as_of
from sparseagg._internal.base.plain_text import html_table
from sparseagg._internal.results.info import RoundInfo
from sparseagg._internal.spec.round_spec import RoundSpec

__all__ = ["RoundAttributes"]


class RoundAttributes:
    """What rounds of both clients say of themselves, from their ``info``."""

    @property
    def info(self) -> RoundInfo:
        """The round as the server described it at ``info.as_of``; ``refresh`` asks again.

        ``submit`` and calls of others do not change it.
        """
        raise NotImplementedError

    @property
    def handle(self) -> str:
        """A string from which ``open_round`` makes this round in another process, such as "sparseagg://host:port/rounds/ID".

        It has the client's ``public_address``, by default its ``address``.

        Raises:
            FailedPreconditionError: the round is one of ":memory:", which no other process can reach.
        """
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The name, "rounds/{id}"."""
        return self.info.name

    @property
    def id(self) -> str:
        """The id, without "rounds/"."""
        return self.name.partition("/")[2]

    @property
    def spec(self) -> RoundSpec:
        """The round's spec."""
        return self.info.spec

    def __repr__(self) -> str:
        info = self.info
        return f"Round({self.name!r}, {info.state}, submissions: {info.num_submissions}{as_of(info.as_of)})"

    def _repr_html_(self) -> str:
        """The state that the server told last, as a table, which notebooks show."""
        info = self.info
        heads = ("round", f"state{as_of(info.as_of)}", "submissions", "refused", "tuples", "MB", "engine")
        sizes = (info.num_submissions, info.num_refused, info.num_tuples, f"{info.num_bytes / 1e6:.1f}")
        return html_table(heads, [(self.id, f"{info.state} {info.state_reason}", *sizes, info.engine)])
