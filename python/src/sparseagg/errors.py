"""The error classes: one for each canonical status code."""

from __future__ import annotations

from typing import Any

import grpc

from sparseagg.plain_text import plain

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
    "ProgramMissing",
    "ResourceExhausted",
    "RoundClosed",
    "RoundFailed",
    "SparseaggError",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "error_of",
]


class SparseaggError(Exception):
    """The base class. ``str(error)`` is the server's text, ``error.code`` the canonical code."""

    code: grpc.StatusCode = grpc.StatusCode.UNKNOWN

    def __str__(self) -> str:
        # Errors are printed and logged where nobody cleans them: the text has names and words of other machines.
        return plain(super().__str__(), keep="\n")


class Cancelled(SparseaggError):
    """This client or the server has cancelled the call."""

    code = grpc.StatusCode.CANCELLED


class InvalidArgument(SparseaggError, ValueError):
    """The update, the spec or an argument is wrong. The same call will fail again."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class DeadlineExceeded(SparseaggError, TimeoutError):
    """The call took longer than its timeout."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class NotFound(SparseaggError, LookupError):
    """The server has no such round, upload or tensor. A round that has ended is removed when its result_ttl is over."""

    code = grpc.StatusCode.NOT_FOUND


class AlreadyExists(SparseaggError):
    """The round exists with another spec, or the client has submitted other content. The first one counts.

    A client that submits the same content again, as in a retry, gets an answer with ``duplicate`` set, and no error.
    """

    code = grpc.StatusCode.ALREADY_EXISTS


class PermissionDenied(SparseaggError):
    """The caller has no permission for the call."""

    code = grpc.StatusCode.PERMISSION_DENIED


class Unauthenticated(SparseaggError):
    """The call has no valid token or certificate."""

    code = grpc.StatusCode.UNAUTHENTICATED


class ResourceExhausted(SparseaggError):
    """A limit of the spec or of the server is exceeded. ``Client.server_info().limits`` has the server's limits."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class FailedPrecondition(SparseaggError):
    """The state does not allow the call, as with the result of an open round."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class _OfState:
    """Makes an error of a round's state, which ``error.state`` has."""

    def __init__(self, message: str, state: str) -> None:
        super().__init__(message)  # type: ignore[call-arg]
        self.state = state

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickle makes exceptions from ``args`` alone, which fails here: a process pool would wait for ever.
        return type(self), (str(self), self.state), vars(self)


class RoundClosed(_OfState, FailedPrecondition):
    """The round takes no submissions any more: the call came too late. The round and its result are as they were.

    ``error.state`` is "finalizing", "done", "failed" or "cancelled". A round that has been deleted, or whose result_ttl
    is over, is ``NotFound``.
    """


class RoundFailed(_OfState, FailedPrecondition):
    """The round ended without a result. ``error.state`` is "failed" or "cancelled"."""


class Aborted(SparseaggError):
    """Another call has changed the state meanwhile."""

    code = grpc.StatusCode.ABORTED


class OutOfRange(SparseaggError):
    """An integer sum does not fit; the message names tensor and key."""

    code = grpc.StatusCode.OUT_OF_RANGE


class Unimplemented(SparseaggError):
    """The server does not know this call."""

    code = grpc.StatusCode.UNIMPLEMENTED


class EngineMissing(Unimplemented, ImportError):
    """This installation has the client alone, without the engine. The message says what to install."""


class ProgramMissing(Unimplemented, FileNotFoundError):
    """This installation has no such program, as sparseagg-server. The message says what to install or to set."""


class Internal(SparseaggError):
    """A fault of the server."""

    code = grpc.StatusCode.INTERNAL


class Unavailable(SparseaggError, ConnectionError):
    """The server could not be reached.

    A client that has had an answer before, or whose ``retry`` is given, makes all its attempts first. Any other client
    raises this at once where nothing listens at its address.

    Attributes:
        cannot_pass: another attempt would fail the same way, since the address is not that of a server for this client:
            one of both uses TLS, or it is the port for HTTP.
    """

    code = grpc.StatusCode.UNAVAILABLE
    cannot_pass: bool = False


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
    """Returns the error of a canonical code; ``SparseaggError`` for codes without a class."""
    error = _BY_CODE.get(code, SparseaggError)(message or code.name)
    error.code = code
    return error
