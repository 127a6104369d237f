"""The server's descriptions of its rounds and of submissions, as plain values."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from typing import Any

from sparseagg._internal.base.durations import as_of, now
from sparseagg._internal.base.fields import read
from sparseagg._internal.base.plain_text import plain
from sparseagg._internal.base.sizes import decimal
from sparseagg._internal.spec.round_spec import RoundSpec
from sparseagg.errors import SparseaggError
from sparseagg.v1 import aggregation_pb2 as pb

__all__ = [
    "BatchReceipt",
    "ClipSummary",
    "Refusal",
    "RoundInfo",
    "StageTime",
    "Submission",
    "TensorSummary",
    "Timeline",
]


@dataclasses.dataclass(frozen=True)
class BatchReceipt:
    """What came of the submissions of a batch.

    Attributes:
        num_submissions: how many of them count.
        num_duplicates: of those that count: how many had been committed before, as when a call is repeated.
        num_tuples: (key, row) tuples of those that count.
        num_bytes: bytes of keys and values of those that count.
        refused: the error of each client whose submission does not count. The server gives the reasons of the first 20
            of a message, which has about a thousand submissions of 100 tuples; the others have the code alone.
    """

    num_submissions: int
    num_duplicates: int
    num_tuples: int
    num_bytes: int
    refused: Mapping[str, SparseaggError]


@dataclasses.dataclass(frozen=True)
class StreamPlace:
    """The place of a commit in its stream.

    Attributes:
        version: that the commit belongs to.
        position: in the log of the stream's commits: they ascend, with gaps.
        base_version: that the update was computed from.
        staleness: version - 1 - base_version.
        weight: the factor of the update's weight, from the stream's table.
    """

    version: int
    position: int
    base_version: int
    staleness: int
    weight: float

    @classmethod
    def from_proto(cls, proto: pb.StreamCommit) -> StreamPlace:
        """Returns the values of a message."""
        return read(cls, proto, weight=proto.staleness_weight)


@dataclasses.dataclass(frozen=True)
class Submission:
    """A submission that counts.

    Attributes:
        round: name of the round, "rounds/{id}".
        client_id: who submitted.
        submission_id: the id of the content, from ``Round.submit``.
        duplicate: the same content was committed before. It counts once.
        num_tuples: number of (key, row) tuples.
        num_bytes: bytes of keys and values.
        content_hash: of ``Round.submissions``: XXH3-128 of weight, tensors, keys and values, 32 hexadecimal digits;
            "" elsewhere, and from a server that is older.
        weight: of ``Round.submissions``: as the client sent it, 1 if it sent none; None elsewhere.
        client_weight: of ``Round.submissions``: the factor that the weight was multiplied by when the round was closed
            with ``client_weights``, or in a stream the staleness weight; None if there is none.
        stream: the place in a stream; None in a round.
    """

    round: str
    client_id: str
    submission_id: str
    duplicate: bool
    num_tuples: int
    num_bytes: int
    content_hash: str = ""
    weight: float | None = None
    client_weight: float | None = None
    stream: StreamPlace | None = None

    @classmethod
    def from_proto(cls, proto: pb.CommitSubmissionResponse | pb.Submission, round_name: str = "") -> Submission:
        """Returns the values of a message; ``round_name`` is the round of a message that does not name it."""
        given: dict[str, Any] = {}
        if isinstance(proto, pb.Submission):
            given = {"round": round_name, "duplicate": False, "content_hash": proto.content_hash.hex()}
        if proto.HasField("stream_commit"):
            given["stream"] = StreamPlace.from_proto(proto.stream_commit)
        return read(cls, proto, **given)


@dataclasses.dataclass(frozen=True)
class Refusal:
    """A submission that a round refused.

    Attributes:
        client_id: of the submission.
        code: name of the gRPC status code, such as "INVALID_ARGUMENT".
        reason: the error's text, shortened to 256 bytes.
        time: when.
    """

    client_id: str
    code: str
    reason: str
    time: datetime.datetime | None


@dataclasses.dataclass(frozen=True)
class StageTime:
    """What one stage of a round took.

    Attributes:
        stage: "receive", "decode", "prepare", "merge" or "encode".
        busy: seconds of work, summed over uploads and threads.
        wait: seconds of waiting, likewise.
        bytes: that passed the stage.
    """

    stage: str
    busy: float
    wait: float
    bytes: int


@dataclasses.dataclass(frozen=True)
class Timeline:
    """The times of a round, in seconds.

    Attributes:
        finish: from the close to the result, wall time.
        open: from creation to close, wall time.
        stages: receive, decode, prepare, merge and encode, summed over threads; prepare and merge of an ``Aggregator``.
        longest: name of the stage with the longest time, with its waits.
    """

    finish: float
    open: float
    stages: tuple[StageTime, ...] = ()
    longest: str = ""

    @classmethod
    def from_proto(cls, proto: pb.RoundTimeline) -> Timeline:
        """Returns the values of a message."""
        return read(cls, proto, stages=tuple(read(StageTime, stage) for stage in proto.stages))


@dataclasses.dataclass(frozen=True)
class TensorSummary:
    """One tensor's result in outline.

    Attributes:
        num_keys: number of rows.
        plan: the algorithms that merged the tensor, how much each and why, for people to read; may be empty.
        num_cut_keys: rows that ``result_top_k`` and ``result_min_norm`` have removed; ``num_keys`` is without them.
    """

    name: str
    num_keys: int
    layout: str
    dtype: str
    row_width: int
    num_rows: int
    plan: str = ""
    num_cut_keys: int = 0


@dataclasses.dataclass(frozen=True)
class ClipSummary:
    """What the bounds of a round (``ClipSpec``) have done to the submissions that count.

    Attributes:
        num_clipped: submissions that any bound has changed.
        num_l2, num_linf, num_max_keys: submissions that this bound has changed.
        factors: of the ``num_l2`` submissions, how many were multiplied by a factor in [1/2, 1), in [1/4, 1/2), …; the
            last number is of all smaller ones.
    """

    num_clipped: int
    num_l2: int
    num_linf: int
    num_max_keys: int
    factors: tuple[int, ...]

    @classmethod
    def from_proto(cls, proto: pb.ClipSummary) -> ClipSummary:
        """Returns the values of a message."""
        return read(cls, proto)


@dataclasses.dataclass(frozen=True)
class RoundInfo:
    """A round at one moment.

    Attributes:
        name: "rounds/{id}".
        state: "open", "sealed", "finalizing", "done", "failed" or "cancelled"; for a state that only a newer server
            has, a name such as "round_state_9".
        state_reason: why the round is "failed" or "cancelled".
        num_submissions: number of committed submissions.
        num_tuples: number of tuples in committed submissions.
        num_bytes: bytes of keys and values in committed submissions.
        num_refused: number of refused submissions.
        recent_refusals: the latest 20 of these, the oldest first. A caller of the role client sees its own only.
        num_uploads: number of uploads that are not committed yet.
        create_time, close_time, end_time: when the round was created, was closed, and ended, in UTC; None: not yet.
        expire_time: when the server removes the ended round; None: the round has not ended.
        timeline: seconds by stage.
        engine: name of the engine that merges, "cpu" or "cuda".
        results: the tensors of a round that is "done".
        clip: what the bounds have done to the submissions; None: the spec has no ``clip``.
        as_of: when this client read the description, by its own clock, in UTC; None: it comes from no server.
        release_id: of a round with ``privacy``, as its coordinator sees it: what the noise is derived from, beside the
            noise key and the submissions; else b"".
    """

    name: str
    spec: RoundSpec
    state: str
    state_reason: str
    num_submissions: int
    num_tuples: int
    num_bytes: int
    num_refused: int
    num_uploads: int
    create_time: datetime.datetime | None
    close_time: datetime.datetime | None
    end_time: datetime.datetime | None
    expire_time: datetime.datetime | None
    timeline: Timeline
    engine: str
    results: tuple[TensorSummary, ...]
    recent_refusals: tuple[Refusal, ...] = ()
    clip: ClipSummary | None = None
    as_of: datetime.datetime | None = dataclasses.field(default=None, compare=False)
    release_id: bytes = b""

    def __repr__(self) -> str:
        return (
            f"RoundInfo({self.name!r}, {plain(self.state)}, submissions: {self.num_submissions}, refused: "
            f"{self.num_refused}, tuples: {self.num_tuples}, {decimal(self.num_bytes, 'B')}{as_of(self.as_of)})"
        )

    @property
    def ended(self) -> bool:
        """Whether the round is in a final state."""
        return self.state in ("done", "failed", "cancelled")

    @classmethod
    def from_proto(cls, proto: pb.Round) -> RoundInfo:
        """Returns the values of a message."""
        return read(
            cls,
            proto,
            spec=RoundSpec.from_proto(proto.spec),
            timeline=Timeline.from_proto(proto.timeline),
            results=tuple(read(TensorSummary, summary) for summary in proto.results),
            recent_refusals=tuple(read(Refusal, each) for each in proto.recent_refusals),
            clip=ClipSummary.from_proto(proto.clip) if proto.HasField("clip") else None,
            as_of=now(),
        )
