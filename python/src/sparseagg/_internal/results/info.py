"""What a server says of rounds and streams, and what it has signed about them."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import json
from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format

from sparseagg._internal.base.fields import as_of, now, read, seconds_of
from sparseagg._internal.base.text import decimal, plain
from sparseagg._internal.spec.round_spec import RoundSpec
from sparseagg.errors import InvalidArgumentError, RoundFailedError, SparseaggError
from sparseagg.v1 import aggregation_pb2 as pb


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
    def _from_proto(cls, proto: pb.CommitSubmissionResponse | pb.Submission, round_name: str = "") -> Submission:
        """Returns the values of a message; ``round_name`` is the round of a message that does not name it."""
        given: dict[str, Any] = {}
        if isinstance(proto, pb.Submission):
            given = {"round": round_name, "duplicate": False, "content_hash": proto.content_hash.hex()}
        if proto.HasField("stream_commit"):
            place = proto.stream_commit
            given["stream"] = read(StreamPlace, place, weight=place.staleness_weight)
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
    def _from_proto(cls, proto: pb.Round) -> RoundInfo:
        """Returns the values of a message."""
        timeline = proto.timeline
        return read(
            cls,
            proto,
            spec=RoundSpec._from_proto(proto.spec),
            timeline=read(Timeline, timeline, stages=tuple(read(StageTime, stage) for stage in timeline.stages)),
            results=tuple(read(TensorSummary, summary) for summary in proto.results),
            recent_refusals=tuple(read(Refusal, each) for each in proto.recent_refusals),
            clip=read(ClipSummary, proto.clip) if proto.HasField("clip") else None,
            as_of=now(),
        )


@dataclasses.dataclass(frozen=True)
class Certificate:
    """The certificate of a round. Not verified: ``sparseagg.certificates.verify`` does that.

    Attributes:
        envelope: a DSSE envelope in JSON, as the server has signed it.
    """

    envelope: bytes

    @property
    def statement(self) -> dict[str, Any]:
        """The in-toto statement in the envelope."""
        statement: dict[str, Any] = json.loads(base64.b64decode(json.loads(self.envelope)["payload"]))
        return statement


@dataclasses.dataclass(frozen=True)
class Leaves:
    """The leaves of a round with a certificate. They have secret salts: whoever knows one can recognise its submission.

    Attributes:
        counted: of each client whose submission counts, in the bytewise order of client ids: that of the tree.
        withdrawn: of submissions that were withdrawn, in no order.
    """

    counted: dict[str, bytes]
    withdrawn: tuple[bytes, ...]


@dataclasses.dataclass(frozen=True)
class SubmissionReceipt:
    """What a client can hold against the server. Not verified: ``sparseagg.certificates.verify`` does that.

    Attributes:
        round: name of the round, "rounds/{id}".
        client_id: whose submission it is.
        leaf: the submission's leaf of the tree, in CBOR. Its salt is secret: show it only to whom you show the receipt.
        promise: a DSSE envelope in JSON: the server promises to count a submission with this leaf.
        leaf_index: the place of the leaf in the tree; None: the receipt is older than the certificate.
        tree_size: number of leaves.
        path: hashes of siblings, from the leaf up.
    """

    round: str
    client_id: str
    leaf: bytes
    promise: bytes
    leaf_index: int | None = None
    tree_size: int = 0
    path: tuple[bytes, ...] = ()

    def to_json(self) -> str:
        """Returns the receipt in JSON, as the HTTP gateway gives it."""
        proto = pb.SubmissionReceipt(
            round=self.round,
            client_id=self.client_id,
            leaf=self.leaf,
            promise=self.promise,
            leaf_index=self.leaf_index,
            tree_size=self.tree_size,
            path=self.path,
        )
        return str(json_format.MessageToJson(proto))

    @classmethod
    def from_json(cls, text: str | bytes) -> SubmissionReceipt:
        """Returns the receipt in a text of ``to_json``; ``InvalidArgumentError`` if there is none."""
        try:
            return read(cls, json_format.Parse(text, pb.SubmissionReceipt()))
        except (json_format.ParseError, UnicodeDecodeError) as error:
            raise InvalidArgumentError(f"it is no receipt in JSON: {error}") from error


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
    def _from_proto(cls, proto: pb.Stream) -> StreamInfo:
        """Returns the values of a message."""
        spec = proto.spec
        return read(
            cls,
            proto,
            spec=RoundSpec._from_proto(spec.round),
            buffer=spec.buffer,
            staleness_weights=tuple(spec.staleness_weights) or (1.0,),
            max_interval=seconds_of(spec.max_interval) if spec.HasField("max_interval") else None,
            one_per_client=spec.one_per_client,
            recent_refusals=tuple(read(Refusal, each) for each in proto.recent_refusals),
            as_of=now(),
        )


def raise_if_failed(info: RoundInfo, cause: Exception | None = None) -> None:
    """Raises ``RoundFailedError`` if the round has ended without a result."""
    if info.state in ("failed", "cancelled"):
        reason = f": {info.state_reason}" if info.state_reason else ""
        raise RoundFailedError(plain(f"{info.name} {info.state}{reason}"), info.state) from cause
