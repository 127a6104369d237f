"""The flags by which commands show who calls, and know their server."""

from __future__ import annotations

import argparse
import pathlib
import re
from typing import Any

from sparseagg._internal.base.credentials import TLS
from sparseagg.errors import InvalidArgumentError

__all__ = ["add_arguments", "client_options"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags to the parser of a command that calls a server."""
    flags = parser.add_argument_group(
        "credentials",
        "TLS by default as the environment says: SPARSEAGG_TLS_CA, SPARSEAGG_TLS_CERTIFICATE, SPARSEAGG_TLS_KEY",
    )
    flags.add_argument(
        "--token-file",
        type=pathlib.Path,
        metavar="FILE",
        help="file that holds the bearer token (default: the token in SPARSEAGG_TOKEN, if that is set)",
    )
    flags.add_argument("--tls", action="store_true", help="use TLS; trust the system's certificate authorities")
    flags.add_argument("--tls-ca", metavar="PEM", help="use TLS; trust the authorities in this file")
    flags.add_argument("--tls-certificate", metavar="PEM", help="use TLS; show the server this certificate")
    flags.add_argument("--tls-key", metavar="PEM", help="private key of --tls-certificate")
    flags.add_argument("--tenant", metavar="NAME", help="for an admin: the tenant whose rounds to work with")


def client_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments of ``Client`` that the flags mean.

    Raises:
        InvalidArgumentError: the file of the token has none, or more than one; certificate without key, or the reverse.
        OSError: the file cannot be read.
    """
    files = TLS(arguments.tls_ca, arguments.tls_certificate, arguments.tls_key)
    options: dict[str, Any] = {"tls": files if arguments.tls or files != TLS() else None, "tenant": arguments.tenant}
    if arguments.token_file is not None:
        words = arguments.token_file.read_text(errors="replace").split()
        if len(words) != 1 or re.fullmatch("[!-~]+", words[0]) is None:
            raise InvalidArgumentError(f"--token-file: {arguments.token_file} has no single token")
        options["token"] = words[0]
    return options
