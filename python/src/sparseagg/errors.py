"""Errors: one class for each canonical code that a server or this client answers with."""

from __future__ import annotations

from typing import Any

import grpc

__all__ = [
    "Aborted",
    "AlreadyExists",
    "Cancelled",
    "DeadlineExceeded",
    "EngineMissing",
    "FailedPrecondition",
    "Internal",
    "InvalidArgument",
    "NotFound",
    "OutOfRange",
    "PermissionDenied",
    "ResourceExhausted",
    "RoundFailed",
    "SparseaggError",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "error_of",
]


class SparseaggError(Exception):
    """Any refusal or failure. ``str(error)`` is the server's text, ``error.code`` the canonical code."""

    code: grpc.StatusCode = grpc.StatusCode.UNKNOWN


class Cancelled(SparseaggError):
    """The call was cancelled, by this side or by the server."""

    code = grpc.StatusCode.CANCELLED


class InvalidArgument(SparseaggError, ValueError):
    """The update or the spec is wrong, and sending it again will fail again."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class DeadlineExceeded(SparseaggError, TimeoutError):
    """The call took longer than its timeout."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class NotFound(SparseaggError, LookupError):
    """No such round, upload or tensor."""

    code = grpc.StatusCode.NOT_FOUND


class AlreadyExists(SparseaggError):
    """The round exists with another spec, or the client has submitted other content; the first stands."""

    code = grpc.StatusCode.ALREADY_EXISTS


class PermissionDenied(SparseaggError):
    """This identity may not do that."""

    code = grpc.StatusCode.PERMISSION_DENIED


class Unauthenticated(SparseaggError):
    """The server wants a valid token or certificate."""

    code = grpc.StatusCode.UNAUTHENTICATED


class ResourceExhausted(SparseaggError):
    """A limit of the spec or of the server; ``Client.server_info().limits`` lists the latter."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class FailedPrecondition(SparseaggError):
    """The right call in the wrong phase, such as a submission to a closed round."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class RoundFailed(FailedPrecondition):
    """The round ended without a result. ``error.state`` is "failed" or "cancelled"."""

    def __init__(self, message: str, state: str) -> None:
        super().__init__(message)
        self.state = state

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are made anew of ``args`` alone, which fails here, and lets a pool of processes wait for ever.
        return type(self), (str(self), self.state), vars(self)


class Aborted(SparseaggError):
    """The call lost a race with another one."""

    code = grpc.StatusCode.ABORTED


class OutOfRange(SparseaggError):
    """An integer sum does not fit; the message names tensor and key."""

    code = grpc.StatusCode.OUT_OF_RANGE


class Unimplemented(SparseaggError):
    """The server does not know this call."""

    code = grpc.StatusCode.UNIMPLEMENTED


class EngineMissing(Unimplemented, ImportError):
    """This installation has no engine of its own, only the client; the message says what to install."""


class Internal(SparseaggError):
    """A fault of the server."""

    code = grpc.StatusCode.INTERNAL


class Unavailable(SparseaggError, ConnectionError):
    """The server cannot be reached, after all retries."""

    code = grpc.StatusCode.UNAVAILABLE


_BY_CODE: dict[grpc.StatusCode, type[SparseaggError]] = {
    cls.code: cls
    for cls in (
        Cancelled,
        InvalidArgument,
        DeadlineExceeded,
        NotFound,
        AlreadyExists,
        PermissionDenied,
        Unauthenticated,
        ResourceExhausted,
        FailedPrecondition,
        Aborted,
        OutOfRange,
        Unimplemented,
        Internal,
        Unavailable,
    )
}


def error_of(code: grpc.StatusCode, message: str) -> SparseaggError:
    """Returns the error of a canonical code."""
    error = _BY_CODE.get(code, SparseaggError)(message or code.name)
    error.code = code
    return error
