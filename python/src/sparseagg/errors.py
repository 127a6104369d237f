"""The error classes of this package: one for each canonical status code, and some for special cases of these.

All are a ``SparseaggError``. Some are a class of Python's, too: ``InvalidArgumentError`` is a ``ValueError``,
``DeadlineExceededError`` a ``TimeoutError``, ``UnavailableError`` a ``ConnectionError``, and ``NotFoundError`` a
``LookupError``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import grpc

from sparseagg._internal.base.text import plain

__all__ = [
    "AbortedError",
    "AlreadyExistsError",
    "CancelledError",
    "DeadlineExceededError",
    "EngineMissingError",
    "FailedPreconditionError",
    "InternalError",
    "InvalidArgumentError",
    "NotFoundError",
    "OutOfRangeError",
    "PermissionDeniedError",
    "ProgramMissingError",
    "ResourceExhaustedError",
    "RoundClosedError",
    "RoundFailedError",
    "SparseaggError",
    "StaleError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
]


class SparseaggError(Exception):
    """The base class. ``str(error)`` is the server's text, ``error.code`` the canonical code.

    Attributes:
        reason: of the server's ErrorInfo, such as "TRY_LATER"; "" if the server has sent none. The proto lists them.
        metadata: what belongs to the reason.
    """

    code: grpc.StatusCode = grpc.StatusCode.UNKNOWN
    reason: str = ""
    metadata: Mapping[str, str] = MappingProxyType({})

    def __str__(self) -> str:
        # Errors are printed and logged where nobody cleans them: the text has names and words of other machines.
        return plain(super().__str__(), keep="\n")


class CancelledError(SparseaggError):
    """This client or the server has cancelled the call."""

    code = grpc.StatusCode.CANCELLED


class InvalidArgumentError(SparseaggError, ValueError):
    """The update, the spec or an argument is wrong. The same call will fail again."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class DeadlineExceededError(SparseaggError, TimeoutError):
    """The call took longer than its timeout."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class NotFoundError(SparseaggError, LookupError):
    """The server has no such round, upload or tensor. A round that has ended is removed when its result_ttl is over."""

    code = grpc.StatusCode.NOT_FOUND


class AlreadyExistsError(SparseaggError):
    """The round exists with another spec, or the client has submitted other content. The first one counts.

    A client that submits the same content again, as in a retry, gets an answer with ``duplicate`` set, and no error.
    """

    code = grpc.StatusCode.ALREADY_EXISTS


class PermissionDeniedError(SparseaggError):
    """The caller has no permission for the call."""

    code = grpc.StatusCode.PERMISSION_DENIED


class UnauthenticatedError(SparseaggError):
    """The call has no valid token or certificate."""

    code = grpc.StatusCode.UNAUTHENTICATED


class ResourceExhaustedError(SparseaggError):
    """A limit of the spec or of the server is exceeded. ``Client.server_info().limits`` has the server's limits."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class FailedPreconditionError(SparseaggError):
    """The state does not allow the call, as with the result of an open round.

    ``error.home`` is the address of the server that takes the client's calls instead, in a cluster's round; else None.
    """

    code = grpc.StatusCode.FAILED_PRECONDITION

    @property
    def home(self) -> str | None:
        return self.metadata.get("address") if self.reason == "HOME_ELSEWHERE" else None


class _StateError(FailedPreconditionError):
    """An error of a round's state, which ``error.state`` has."""

    def __init__(self, message: str, state: str) -> None:
        super().__init__(message)
        self.state = state

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickle makes exceptions from ``args`` alone, which fails here: a process pool would wait for ever.
        return type(self), (str(self), self.state), vars(self)


class RoundClosedError(_StateError):
    """The round takes no submissions any more: the call came too late. The round and its result are as they were.

    ``error.state`` is "sealed", "finalizing", "done", "failed" or "cancelled". A round that has been deleted, or whose
    result_ttl is over, is ``NotFoundError``.
    """


class RoundFailedError(_StateError):
    """The round ended without a result. ``error.state`` is "failed" or "cancelled"."""


class StaleError(FailedPreconditionError):
    """The stream takes no update of so old a ``base_version``: it is older than ``max_staleness`` versions.

    ``error.staleness`` is the number of versions that were cut after ``base_version``.
    """

    def __init__(self, message: str, staleness: int) -> None:
        super().__init__(message)
        self.staleness = staleness

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.staleness), vars(self)


class AbortedError(SparseaggError):
    """Another call has changed the state meanwhile."""

    code = grpc.StatusCode.ABORTED


class OutOfRangeError(SparseaggError):
    """An integer sum does not fit; the message names tensor and key."""

    code = grpc.StatusCode.OUT_OF_RANGE


class UnimplementedError(SparseaggError):
    """The server does not know this call."""

    code = grpc.StatusCode.UNIMPLEMENTED


class EngineMissingError(UnimplementedError, ImportError):
    """This installation has the client alone, without the engine. The message says what to install."""


class ProgramMissingError(UnimplementedError, FileNotFoundError):
    """This installation has no such program, as sparseagg-server. The message says what to install or to set."""


class InternalError(SparseaggError):
    """A fault of the server."""

    code = grpc.StatusCode.INTERNAL


class UnavailableError(SparseaggError, ConnectionError):
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
        CancelledError,
        InvalidArgumentError,
        DeadlineExceededError,
        NotFoundError,
        AlreadyExistsError,
        PermissionDeniedError,
        UnauthenticatedError,
        ResourceExhaustedError,
        FailedPreconditionError,
        AbortedError,
        OutOfRangeError,
        UnimplementedError,
        InternalError,
        UnavailableError,
    )
}


def error_of(
    code: grpc.StatusCode, message: str, reason: str = "", metadata: Mapping[str, str] | None = None
) -> SparseaggError:
    """Returns the error of a canonical code, and of a reason; ``SparseaggError`` for codes without a class."""
    error: SparseaggError
    staleness = (metadata or {}).get("staleness", "")
    if reason == "STALE_BASE_VERSION" and staleness.isdecimal():
        error = StaleError(message, int(staleness))
    else:
        error = _BY_CODE.get(code, SparseaggError)(message or code.name)
    error.code = code
    if reason:
        error.reason, error.metadata = reason, dict(metadata or {})
    return error
