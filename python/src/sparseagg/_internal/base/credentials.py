"""How a client shows who it is, and knows its server: bearer tokens and TLS."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable
from typing import Union

import grpc

from sparseagg._internal.base.arguments import shown
from sparseagg.errors import InvalidArgumentError

Path = Union[str, "os.PathLike[str]"]

TOKEN_VARIABLE = "SPARSEAGG_TOKEN"

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

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

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
