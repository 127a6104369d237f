"""A round in this process, with the states, limits and errors of a round on a server."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import grpc

from sparseagg._internal.base.durations import seconds_of
from sparseagg._internal.base.ids import check_id
from sparseagg._internal.local import extension
from sparseagg._internal.local.engine import Aggregator
from sparseagg._internal.local.memory_columns import content_hash, part_of, rounded
from sparseagg._internal.results.result import Result, TensorResult
from sparseagg._internal.spec.round_spec import RoundSpec
from sparseagg._internal.updates.arrays import TensorData
from sparseagg.errors import AlreadyExistsError, FailedPreconditionError, InvalidArgumentError, SparseaggError, error_of
from sparseagg.v1 import aggregation_pb2 as pb

__all__ = ["MemoryRound"]

# Of Round.recent_refusals, as on a server.
_MAX_REFUSALS = 20
_MAX_REASON_BYTES = 256


class MemoryRound:
    """A round that the engine in this process merges. Thread-safe.

    ``close``, the deadline of the spec, or the submission that makes max_submissions closes the round. A thread of the
    round's own then merges. Errors have the server's words; the connection of the client adds the round's name.

    Args:
        name: "rounds/{id}"; empty for the round of a one-shot aggregation.
        spec: of the round.
        on_expire: called with the round when the result_ttl of the spec is over.

    Attributes:
        spec: of the round.
        ended: a future that is done when the round has ended.
        failure: the error that made the round fail; None without one.

    Raises:
        EngineMissingError: this installation has no engine.
        InvalidArgumentError: the spec makes no sense; the message names the field.
    """

    def __init__(self, name: str, spec: pb.RoundSpec, on_expire: Callable[[MemoryRound], None]) -> None:
        if not spec.tensors:
            raise InvalidArgumentError("the spec has no tensors")
        deadline_s, self._result_ttl_s = (_seconds(spec, field) for field in ("deadline", "result_ttl"))
        self.spec = RoundSpec.from_proto(spec)
        self.ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.ended.set_running_or_notify_cancel()  # so that a caller who stops waiting cannot cancel the future
        self.failure: Exception | None = None
        self._on_expire = on_expire
        self._merging = threading.Lock()  # held while the engine adds or merges; taken before _lock
        self._lock = threading.Lock()  # guards what follows, and changes of the attributes
        self._aggregator: Aggregator | None = Aggregator(self.spec)  # None: the round has ended
        self._committed: dict[
            str, tuple[bytes, pb.CommitSubmissionResponse]
        ] = {}  # by client: hash of the content, and the answer
        self._tensors: Mapping[str, TensorResult] = {}  # of the result
        self._info = pb.Round(name=name, spec=spec, state="ROUND_STATE_OPEN", engine=extension.describe().split()[0])
        self._info.create_time.FromNanoseconds(time.time_ns())
        self._state_since = time.monotonic_ns()
        with self._lock:  # before the timer's thread looks
            self._timer = _start_timer(deadline_s, self.close)  # of the deadline, then of the result_ttl

    def describe(self) -> pb.Round:
        """Returns the round as it is now."""
        info = pb.Round()
        with self._lock:
            if self._info.state == pb.ROUND_STATE_OPEN:
                self._info.timeline.open.FromNanoseconds(time.monotonic_ns() - self._state_since)
            info.CopyFrom(self._info)
        return info

    def submit(
        self,
        tensors: Sequence[TensorData],
        client_id: str,
        submission_id: str,
        weight: float | None,
        encodings: Mapping[str, str],
    ) -> pb.CommitSubmissionResponse:
        """Adds one client's update. When this method returns, the update counts, and its arrays may change.

        Args:
            tensors: the update.
            client_id: of the client.
            submission_id: name of the content.
            weight: of the submission; None for none.
            encodings: narrower value encodings, by tensor, to which the values are rounded.

        Raises:
            InvalidArgumentError, OutOfRangeError: the update is wrong.
            ResourceExhaustedError: a limit of the spec is exceeded.
            AlreadyExistsError: the client has submitted other content.
            FailedPreconditionError: the round is not open.
        """
        check_id("client_id", client_id)
        check_id("submission_id", submission_id)
        tensors = rounded(tensors, encodings)
        content = content_hash(tensors, weight)
        try:
            answer = self._duplicate(client_id, content)  # at once, also during the merge
            if answer is None:
                with self._merging:
                    answer = self._duplicate(client_id, content)
                    answer = answer or self._add(tensors, client_id, submission_id, weight, content)
            return answer
        except SparseaggError as error:
            with self._lock:
                self._info.num_refused += 1
                refusals = self._info.recent_refusals
                refusal = refusals.add(client_id=client_id, code=error.code.name, reason=_reason(error))
                refusal.time.FromNanoseconds(time.time_ns())
                del refusals[:-_MAX_REFUSALS]
            raise

    def read(self, request: pb.StreamResultRequest) -> dict[str, TensorResult]:
        """Returns the tensors and keys that the request names, in new arrays.

        Raises:
            InvalidArgumentError: the round has no such tensor.
            FailedPreconditionError: the round is not done.
        """
        names = [self.spec.tensor(name).name for name in request.tensors] or [each.name for each in self.spec.tensors]
        with self._lock:
            if self._info.state != pb.ROUND_STATE_DONE:
                raise self._state_error(self._info.state_reason)
        encoding = pb.ValueEncoding.Name(request.format.value_encoding)[len("VALUE_ENCODING_") :].lower()
        return {name: part_of(self._tensors[name], request.range.begin, request.range.end, encoding) for name in names}

    def submissions(self) -> list[pb.Submission]:
        """Returns the submissions that count, in the bytewise order of client ids; none of a cancelled round."""
        with self._lock:
            answers = sorted(
                (answer for _, answer in self._committed.values()), key=lambda each: each.client_id.encode()
            )
            return [
                pb.Submission(
                    client_id=each.client_id,
                    submission_id=each.submission_id,
                    num_tuples=each.num_tuples,
                    num_bytes=each.num_bytes,
                )
                for each in answers
            ]

    def withdraw(self, client_id: str, submission_id: str) -> bool:
        """Takes a client's submission out of the open round; returns whether there was one.

        Args:
            client_id: of the client.
            submission_id: of the submission; empty: any.

        Raises:
            FailedPreconditionError: the round is not open, or has merged submissions already.
        """
        with self._lock:  # first of all, so that the call does not wait for a merge
            if self._info.state != pb.ROUND_STATE_OPEN:
                raise self._not_open_error()
        with self._merging, self._lock:
            if self._info.state != pb.ROUND_STATE_OPEN:
                raise self._not_open_error()
            found = self._committed.get(client_id)
            if found is None or submission_id not in ("", found[1].submission_id):
                return False
            self._take_out([client_id])
        return True

    def close(self) -> None:
        """Takes no further submission, and starts the merge. No effect unless the round is open."""
        with self._lock:
            if self._info.state == pb.ROUND_STATE_OPEN:
                self._close()

    def close_with_only(self, client_ids: Iterable[str]) -> None:
        """Closes the round after taking out the submissions of all other clients.

        Raises:
            FailedPreconditionError: a client has no submission; or others have, and are merged already; or the round is
                closed, and others count. The round is as it was.
        """
        kept = dict.fromkeys(sorted(client_ids, key=str.encode))
        with self._merging, self._lock:
            is_open = self._info.state == pb.ROUND_STATE_OPEN
            if self._info.state == pb.ROUND_STATE_CANCELLED:
                raise self._not_open_error()
            for client_id in kept:
                if client_id not in self._committed:
                    raise FailedPreconditionError(
                        f"client '{client_id}' has no committed submission in the round"
                        f"{'' if is_open else ', which is closed'}"
                    )
            if is_open:
                self._take_out([client_id for client_id in self._committed if client_id not in kept])
                self._close()
            elif len(kept) < len(self._committed):
                raise FailedPreconditionError(
                    f"the round is {self._state()} and counts {len(self._committed)} submissions, not only the "
                    f"{len(kept)} of the list"
                )

    def cancel(self, reason: str) -> None:
        """Ends the round without a result; ``FailedPreconditionError`` if the round is done or failed."""
        with self._lock:
            if self._info.state in (pb.ROUND_STATE_DONE, pb.ROUND_STATE_FAILED):
                raise self._state_error(self._info.state_reason)
            self._end(pb.ROUND_STATE_CANCELLED, reason)

    def discard(self, reason: str) -> None:
        """Cancels the round, unless it has ended, and stops its timer."""
        with self._lock:
            self._end(pb.ROUND_STATE_CANCELLED, reason)
            if self._timer is not None:
                self._timer.cancel()

    def _duplicate(self, client_id: str, content: bytes) -> pb.CommitSubmissionResponse | None:
        """Returns the answer to content that the client has submitted before; None if the update is to be added."""
        with self._lock:
            if client_id not in self._committed:
                if self._info.state != pb.ROUND_STATE_OPEN:
                    raise self._not_open_error()
                return None
            first_content, first = self._committed[client_id]
            if content != first_content:
                raise AlreadyExistsError(
                    f"client '{client_id}' has committed submission '{first.submission_id}' with other content"
                )
            duplicate = pb.CommitSubmissionResponse(duplicate=True)
            duplicate.MergeFrom(first)
            return duplicate

    def _add(
        self,
        tensors: Sequence[TensorData],
        client_id: str,
        submission_id: str,
        weight: float | None,
        content: bytes,
    ) -> pb.CommitSubmissionResponse:
        """Adds an update, and closes the round at max_submissions. Requires _merging."""
        update: dict[str, Any] = {
            data.spec.name: data.values if data.keys is None else (data.keys, data.values) for data in tensors
        }
        aggregator = self._aggregator
        if aggregator is not None:
            try:
                aggregator.add(client_id, update, weight, copy=True)
            except SparseaggError as error:
                # The caller knows the client.
                raise error_of(error.code, str(error).removeprefix(f"client '{client_id}': ")) from error
        submission = pb.CommitSubmissionResponse(
            round=self._info.name,
            client_id=client_id,
            submission_id=submission_id,
            num_tuples=sum(data.num_keys for data in tensors),
            num_bytes=sum(array.nbytes for data in tensors for array in (data.keys, data.values) if array is not None),
        )
        with self._lock:
            if self.ended.done():  # cancelled meanwhile. (The merge of a round that was closed waits for _merging.)
                raise self._not_open_error()
            self._committed[client_id] = content, submission
            self._info.num_submissions += 1
            self._info.num_tuples += submission.num_tuples
            self._info.num_bytes += submission.num_bytes
            if self._info.num_submissions == self.spec.max_submissions and self._info.state == pb.ROUND_STATE_OPEN:
                self._close()
        return submission

    def _take_out(self, client_ids: list[str]) -> None:
        """Takes out submissions that count; none after an error. Requires: the round is open, _merging and _lock."""
        if not client_ids:
            return
        assert self._aggregator is not None
        self._aggregator._withdraw(client_ids)
        for client_id in client_ids:
            _, submission = self._committed.pop(client_id)
            self._info.num_submissions -= 1
            self._info.num_tuples -= submission.num_tuples
            self._info.num_bytes -= submission.num_bytes

    def _close(self) -> None:
        """Starts the merge. Requires: the round is open, and _lock."""
        # Not a daemon, which could be in the engine when Python ends. First, since no thread may be had.
        threading.Thread(target=self._merge, name=f"merge {self._info.name}").start()
        self._leave_open()
        self._info.state = pb.ROUND_STATE_FINALIZING

    def _leave_open(self) -> None:
        """Sets the times of the close. Requires _lock."""
        now, begun = time.monotonic_ns(), self._state_since
        self._state_since = now
        self._info.close_time.FromNanoseconds(time.time_ns())
        self._info.timeline.open.FromNanoseconds(now - begun)
        if self._timer is not None:
            self._timer.cancel()

    def _merge(self) -> None:
        """Makes the result, and ends the round."""
        with self._merging:
            with self._lock:
                aggregator, num_submissions = self._aggregator, self._info.num_submissions
            if aggregator is None:
                return
            least = self.spec.min_submissions
            try:
                if num_submissions < least:
                    raise FailedPreconditionError(
                        f"closed with {num_submissions} submissions, below min_submissions {least}"
                    )
                result = aggregator.finish()
            except Exception as error:  # also a fault of ours: the round must end
                code = error.code if isinstance(error, SparseaggError) else grpc.StatusCode.INTERNAL
                with self._lock:
                    self.failure = error
                    self._end(pb.ROUND_STATE_FAILED, f"{code.name}: {error}")
                return
            with self._lock:
                self._end(pb.ROUND_STATE_DONE, "", result)

    def _end(self, state: pb.RoundState, reason: str, result: Result | None = None) -> None:
        """Ends the round, unless it has ended, and wakes all who wait for it. Requires _lock."""
        if self.ended.done():
            return
        if self._info.state == pb.ROUND_STATE_OPEN:
            self._leave_open()
        self._info.state = state
        self._info.state_reason = reason
        now = time.time_ns()
        self._info.end_time.FromNanoseconds(now)
        self._info.timeline.finish.FromNanoseconds(time.monotonic_ns() - self._state_since)
        if result is not None:
            self._tensors = result
            self._info.timeline.longest = result.info.timeline.longest
            for stage in result.info.timeline.stages:
                spent = self._info.timeline.stages.add(stage=stage.stage, bytes=stage.bytes)
                spent.busy.FromNanoseconds(int(stage.busy * 1e9))
            for summary in result.info.results:
                words = {"layout": f"TENSOR_LAYOUT_{summary.layout.upper()}", "dtype": f"DTYPE_{summary.dtype.upper()}"}
                self._info.results.add(**{**dataclasses.asdict(summary), **words})
        self._timer = _start_timer(self._result_ttl_s, self._expire)
        if self._timer is not None:
            self._info.expire_time.FromNanoseconds(now + int(self._timer.interval * 1e9))
        if state == pb.ROUND_STATE_CANCELLED:
            self._committed = {}
        self._aggregator = None  # releases the updates
        self.ended.set_result(None)

    def _expire(self) -> None:
        self._on_expire(self)

    def _not_open_error(self) -> FailedPreconditionError:
        """Returns the error for a submission to a round that is not open. Requires _lock."""
        most = self.spec.max_submissions
        if self._info.state_reason or self._info.num_submissions != most:
            return self._state_error(self._info.state_reason)
        full = f"there are max_submissions {most} submissions already"
        # The caller of a one-shot aggregation knows of no round.
        return self._state_error(full) if self._info.name else FailedPreconditionError(full)

    def _state_error(self, reason: str) -> FailedPreconditionError:
        """Returns the error for a call that the state does not allow. Requires _lock."""
        return FailedPreconditionError(f"the round is {self._state()}{reason and ': '}{reason}")

    def _state(self) -> str:
        """Returns the state's name in errors. Requires _lock."""
        return pb.RoundState.Name(self._info.state)[len("ROUND_STATE_") :]


def _reason(error: SparseaggError) -> str:
    return str(error).encode()[:_MAX_REASON_BYTES].decode(errors="ignore")


def _seconds(spec: pb.RoundSpec, field: str) -> float | None:
    """Returns a length of time of the spec; ``InvalidArgumentError`` if it is not positive."""
    if not spec.HasField(field):
        return None
    seconds = seconds_of(getattr(spec, field))
    if seconds <= 0:
        raise InvalidArgumentError(f"{field} is not positive")
    return seconds


def _start_timer(seconds: float | None, method: Callable[[], None]) -> threading.Timer | None:
    """Starts a timer that calls a method, unless the method's object is freed before. None: the time never comes."""
    if seconds is None or seconds > threading.TIMEOUT_MAX:
        return None
    weak = weakref.WeakMethod(method)

    def call() -> None:
        bound = weak()
        if bound is not None:
            bound()

    timer = threading.Timer(seconds, call)
    timer.daemon = True  # a program need not wait for the deadlines of its rounds
    timer.start()
    return timer
