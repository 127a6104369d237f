"""The attempts at one upload: from which chunk each attempt goes on, and whether another attempt follows."""

from __future__ import annotations

import grpc

from sparseagg._internal.client.retry import RetryPolicy, home_of_answer, wait_before_retry
from sparseagg.errors import FailedPreconditionError
from sparseagg.v1 import aggregation_pb2 as pb

__all__ = ["Resumption"]

# The server's answers to chunks and commits of an upload that it has discarded.
_LOST = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND)


class Resumption:
    """The state of one upload over all its attempts. The upload's submit call owns it. Not thread-safe.

    Calls, for each attempt: ``first_chunk``, ``arrived`` after each chunk, ``wait_after`` if the attempt has failed.

    The server discards an upload for two reasons. No chunk came for upload_timeout: the upload begins again. Or another
    upload, with other content or other chunks, has begun under the same submission id, such as that of a worker which
    was started in place of this one: this upload fails, since otherwise the two would replace each other for ever.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._waits = policy.waits()
        self._most = 0  # the most chunks that the server has had at the beginning of an attempt
        self._has_begun = False  # the server has had a chunk since the upload began, or began again
        self._has_some = False  # the server has had a chunk in this attempt

    def first_chunk(self, status: pb.UploadStatus | None) -> int:
        """Returns the number of the chunk to go on with.

        Args:
            status: the server's answer; None: the server does not know the upload.

        Raises:
            FailedPreconditionError: another upload has begun under the submission id.
        """
        first = 0 if status is None else int(status.next_sequence)
        if status is None:
            # The upload begins again. If this attempt breaks off, the server may have it open without a first chunk.
            self._has_begun = False
        elif self._has_begun and first == 0:
            raise FailedPreconditionError(
                "another upload, of other content or in other chunks, has taken the place of this one under submission "
                f"{status.submission_id!r} of client {status.client_id!r}"
            )
        if first > self._most:  # progress: all retries again
            self._most = first
            self._waits = self._policy.waits()
        self._has_some = first > 0
        self._has_begun |= self._has_some
        return first

    def arrived(self) -> None:
        """Tells that the server has received another chunk."""
        self._has_some = self._has_begun = True

    def wait_after(self, error: grpc.RpcError) -> float | None:
        """Returns the wait before the next attempt, in seconds; None: ``error`` is final."""
        wait = wait_before_retry(error, self._waits)
        if wait is None and self._has_some and error.code() in _LOST and home_of_answer(error) is None:
            wait = next(self._waits, None)
        self._has_some = False
        return wait
