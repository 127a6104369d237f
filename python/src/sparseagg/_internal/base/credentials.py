"""How a client shows who it is, and knows its server: bearer tokens and TLS."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
from collections.abc import Callable
from typing import Any, Union

import grpc

from sparseagg._internal.base.arguments import check_name, checked_text, shown
from sparseagg.errors import InvalidArgumentError

_Path = Union[str, "os.PathLike[str]"]

TOKEN_VARIABLE = "SPARSEAGG_TOKEN"
# Of TLS: paths of PEM files. The first may also be SYSTEM, for the system's authorities.
CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE = (f"SPARSEAGG_TLS_{what}" for what in ("CA", "CERTIFICATE", "KEY"))
SYSTEM = "system"

_LOOPBACK = re.compile(
    r"(.*[:/])?(localhost\.?|127\.\d+\.\d+\.\d+|\[::1\]|\[::ffff:127\.\d+\.\d+\.\d+\]):\d+", re.IGNORECASE
)


@dataclasses.dataclass(frozen=True)
class TLS:
    """PEM files of a connection with TLS.

    Attributes:
        ca: certificate authorities that may have signed the other side's certificate. None: of a client, those of the
            system; of a ``Server``, no client needs a certificate.
        certificate: this side's certificate, followed by those of its issuers.
        key: the private key of ``certificate``.

    Raises:
        InvalidArgumentError: no paths, or one of certificate and key without the other.
    """

    ca: _Path | None = None
    certificate: _Path | None = None
    key: _Path | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not (value is None or isinstance(value, os.PathLike) or (isinstance(value, str) and value)):
                raise InvalidArgumentError(f"{field.name} must be the path of a PEM file, or None, got {shown(value)}")
        if (self.certificate is None) != (self.key is None):
            raise InvalidArgumentError("certificate and key go together: give both, or neither")


# False: plain. True: TLS, with the system's certificate authorities. A path: TLS, with those in that PEM file. None: as
# the environment says, plain if it says nothing.
TLSArgument = Union[bool, str, "os.PathLike[str]", TLS, grpc.ChannelCredentials, None]
# A token, or what returns the token of the present; None: that of the environment, if there is one.
TokenArgument = Union[str, Callable[[], str], None]


def is_local(address: str) -> bool:
    """Returns whether an address, of a name that gRPC takes, is on this machine."""
    return bool(_LOOPBACK.fullmatch(address)) or address.startswith("unix:")


def channel_credentials(tls: TLSArgument) -> grpc.ChannelCredentials | None:
    """Returns the credentials of a channel; None for a plain one.

    Raises:
        InvalidArgumentError: ``tls`` is none of what ``TLSArgument`` lists, or a file without a certificate or a key.
        OSError: a file cannot be read.
    """
    if tls is None:
        tls = _tls_of_environment()
    if tls is False:
        return None
    if isinstance(tls, grpc.ChannelCredentials):
        return tls
    if tls is True:
        tls = TLS()
    elif isinstance(tls, os.PathLike) or (isinstance(tls, str) and tls):
        tls = TLS(ca=tls)
    if not isinstance(tls, TLS):
        raise InvalidArgumentError(
            f"tls must be False, True, the path of a PEM file, a TLS, credentials of gRPC, or None, got {shown(tls)}"
        )
    return grpc.ssl_channel_credentials(
        _pem(tls.ca, "certificate"), _pem(tls.key, "private key"), _pem(tls.certificate, "certificate")
    )


def _tls_of_environment() -> TLS | bool:
    ca, certificate, key = (os.environ.get(name) or None for name in (CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE))
    if (certificate is None) != (key is None):
        raise InvalidArgumentError(f"{CERTIFICATE_VARIABLE} and {KEY_VARIABLE} go together: set both, or neither")
    tls = TLS(None if ca == SYSTEM else ca, certificate, key)
    return tls if ca == SYSTEM or tls != TLS() else False


def _pem(path: _Path | None, what: str) -> bytes | None:
    if path is None:
        return None
    try:
        pem = pathlib.Path(path).read_bytes()
    except ValueError as error:  # no name of a file, as with a lone surrogate or NUL
        raise InvalidArgumentError(f"tls: {shown(path)} cannot be the name of a file: {error}") from error
    if not re.search(rb"-----BEGIN [A-Z ]*" + what.upper().encode(), pem):  # gRPC would look for it at every attempt
        raise InvalidArgumentError(f"tls: {os.fspath(path)} has no {what} in PEM")
    return pem


class Headers:
    """The metadata of each call: the bearer token and the tenant, where there are any.

    Args:
        token: of ``Client``.
        tenant: of ``Client``.
        address: the server's.
        is_plain: whether the connection has no TLS.
        insecure_token: whether a token may go over such a connection to another machine.

    Raises:
        InvalidArgumentError: the token or the tenant cannot be sent, or everybody on the way could read the token. No
            error shows the token.
    """

    def __init__(
        self, token: TokenArgument, tenant: str | None, address: str, is_plain: bool, insecure_token: bool
    ) -> None:
        if token is None:
            token = os.environ.get(TOKEN_VARIABLE) or None
        if token is not None and is_plain and not insecure_token and not is_local(address):
            raise InvalidArgumentError(
                f"everybody on the way to {address} could read the token: use tls=True, or a path, or a TLS; "
                f"insecure_token=True sends the token nevertheless (token=, or {TOKEN_VARIABLE} of the environment)"
            )
        if tenant is not None:
            check_name("tenant", checked_text("tenant", tenant))
        self._tenant = () if tenant is None else (("sparseagg-tenant", tenant),)
        self._token: Callable[[], str] | None = token if callable(token) else None
        self._fixed = () if token is None or callable(token) else _bearer(token)

    def __call__(self) -> tuple[tuple[str, str], ...]:
        """Returns the metadata of a call that begins now. Raises what the caller's function raises."""
        return (*(self._fixed if self._token is None else _bearer(self._token())), *self._tenant)


def _bearer(token: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(token, str) or re.fullmatch("[ -~]*", token) is None:
        raise InvalidArgumentError("a token is a string of printable ASCII, without the end of a line; this one is not")
    return (("authorization", f"Bearer {token}"),)
