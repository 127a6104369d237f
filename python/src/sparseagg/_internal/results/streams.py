"""Streams and their versions, as values."""

from __future__ import annotations

import dataclasses
import datetime

from sparseagg._internal.base.durations import as_of, now, seconds_of
from sparseagg._internal.base.fields import read
from sparseagg._internal.results.info import Refusal, StreamPlace
from sparseagg._internal.spec.round_spec import RoundSpec
from sparseagg.v1 import aggregation_pb2 as pb

__all__ = ["StreamInfo", "StreamPlace", "StreamVersion"]


@dataclasses.dataclass(frozen=True)
class StreamVersion:
    """A version of a stream that has ended.

    Attributes:
        version: 1, 2, …
        round: "rounds/{id}": the round that the version is.
        state: "done", "failed" or "cancelled".
        state_reason: why it has no result.
        num_submissions: commits that count.
        cause: of the cut: "full", "timer" or "call"; "unspecified" if the server has forgotten it.
        cut_time: when, in UTC; None if the server has forgotten it.
    """

    version: int
    round: str
    state: str
    state_reason: str
    num_submissions: int
    cause: str
    cut_time: datetime.datetime | None

    @classmethod
    def from_proto(cls, proto: pb.StreamVersion) -> StreamVersion:
        """Returns the values of a message."""
        return read(cls, proto)


@dataclasses.dataclass(frozen=True)
class StreamInfo:
    """A stream at one moment.

    Attributes:
        name: "streams/{id}".
        spec: of each version.
        buffer: commits of a version.
        staleness_weights: the factor of a commit's weight, by staleness.
        max_interval: seconds from the first commit of a version to its cut at the latest; None: no limit.
        one_per_client: whether a version takes one commit of each client.
        version: that is being filled. The base version of an update that is computed now is at most ``version - 1``.
        num_buffered: commits that it has.
        num_commits: of all versions, since the server started.
        num_refused: refused submissions, likewise.
        num_uploads: uploads that are not committed yet.
        oldest_version: that is kept; ``version`` if no earlier one is.
        staleness_counts: commits by staleness, since the server started.
        create_time: in UTC.
        recent_refusals: the latest 20, the oldest first. A caller of the role client sees its own only.
        last_cut_cause: of the latest version that was cut: "full", "timer" or "call"; "unspecified" if none was, or the
            server has forgotten it.
        last_cut_time: when, in UTC; None likewise.
        as_of: when this client read the description, by its own clock, in UTC.
    """

    name: str
    spec: RoundSpec
    buffer: int
    staleness_weights: tuple[float, ...]
    max_interval: float | None
    one_per_client: bool
    version: int
    num_buffered: int
    num_commits: int
    num_refused: int
    num_uploads: int
    oldest_version: int
    staleness_counts: tuple[int, ...]
    create_time: datetime.datetime | None
    recent_refusals: tuple[Refusal, ...]
    last_cut_cause: str
    last_cut_time: datetime.datetime | None
    as_of: datetime.datetime | None = dataclasses.field(default=None, compare=False)

    def __repr__(self) -> str:
        return (
            f"StreamInfo({self.name!r}, version {self.version}, buffered: {self.num_buffered} of {self.buffer}, "
            f"commits: {self.num_commits}, refused: {self.num_refused}{as_of(self.as_of)})"
        )

    @classmethod
    def from_proto(cls, proto: pb.Stream) -> StreamInfo:
        """Returns the values of a message."""
        spec = proto.spec
        return read(
            cls,
            proto,
            spec=RoundSpec.from_proto(spec.round),
            buffer=spec.buffer,
            staleness_weights=tuple(spec.staleness_weights) or (1.0,),
            max_interval=seconds_of(spec.max_interval) if spec.HasField("max_interval") else None,
            one_per_client=spec.one_per_client,
            recent_refusals=tuple(read(Refusal, each) for each in proto.recent_refusals),
            as_of=now(),
        )
