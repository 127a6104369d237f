"""How the attempts at one upload follow each other: what both clients decide alike."""

from __future__ import annotations

import grpc

from sparseagg.client.retry import RetryPolicy, wait_before_retry
from sparseagg.errors import FailedPrecondition
from sparseagg.v1 import aggregation_pb2 as pb

__all__ = ["Resumption"]

# What chunks and commits of an upload are answered that is not where it was.
_LOST = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND)


class Resumption:
    """Where an upload goes on, and whether it does.

    The server discards an upload of which it hears nothing for upload_timeout; then it begins anew. It also discards
    one whose place under its submission id another upload takes, of other content or in other chunks, such as that of
    a worker that was started in place of this one. That one goes on then, and this one does not: they would take turns
    for ever.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._waits = policy.waits()
        self._most = 0  # chunks that the server has been known to have
        self._has_begun = False  # it has had one since the upload began, or began anew
        self._has_some = False  # it has had one in this attempt
        self._error: grpc.RpcError | None = None  # of the last attempt

    def first_chunk(self, status: pb.UploadStatus | None) -> int:
        """Returns the number of the chunk to go on with; ``status``: None where nothing of the upload is there.

        Raises:
            FailedPrecondition: the place is taken.
        """
        first = 0 if status is None else int(status.next_sequence)
        if status is None:
            # It begins anew, and may be found opened, but without its first chunk, when this attempt breaks off.
            self._has_begun = False
        elif self._has_begun and first == 0:
            raise FailedPrecondition(
                "another upload, of other content or in other chunks, has taken the place of this one under submission "
                f"{status.submission_id!r} of client {status.client_id!r}"
            ) from self._error
        if first > self._most:  # it is getting on
            self._most = first
            self._waits = self._policy.waits()
        self._has_some = first > 0
        self._has_begun |= self._has_some
        return first

    def arrived(self) -> None:
        """The server has a chunk more."""
        self._has_some = self._has_begun = True

    def wait_after(self, error: grpc.RpcError) -> float | None:
        """Returns how long to wait before the next attempt; None: there is none."""
        wait = wait_before_retry(error, self._waits)
        if wait is None and self._has_some and error.code() in _LOST:
            wait = next(self._waits, None)
        self._has_some = False
        self._error = error
        return wait
