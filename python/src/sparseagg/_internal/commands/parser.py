"""What commands share: the parser of arguments, flags of servers and credentials, and the forms of output."""

from __future__ import annotations

import argparse
import base64
import dataclasses
import datetime
import difflib
import json
import os
import pathlib
import re
import sys
import time
from collections.abc import Iterable
from typing import Any, TextIO

from google.protobuf import json_format

from sparseagg._internal.base.credentials import TLS
from sparseagg._internal.base.text import plain
from sparseagg._internal.client.blocking_client import Client
from sparseagg._internal.spec.round_spec import RoundSpec
from sparseagg.errors import InvalidArgumentError


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that names the nearest command, choice or option in the place of an unknown one."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError:
            choices = [str(choice) for choice in action.choices or ()]
            wrong = f"unknown: {value!r}{_suggestion(str(value), choices)}; choose from {', '.join(choices)}"
            raise argparse.ArgumentError(action, wrong) from None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuses unknown arguments where they are: with the usage and the options of their own command."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            nearest = _suggestion(unknown[0].partition("=")[0], self._option_string_actions)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{nearest}")
        return found, unknown


def add_command(group: Any, name: str, text: str, description: str | None = None, **options: Any) -> Parser:
    """Adds a command to a group; its own help shows ``description``, by default the line in the group's help."""
    parser: Parser = group.add_parser(
        name, help=text, description=description or f"{text[0].upper()}{text[1:]}.", **options
    )
    return parser


def _suggestion(word: str, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(word, set(known), 1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def put(*lines: str, to: TextIO | None = None, end: str = "\n", flush: bool = False) -> None:
    """Prints lines. Names and texts in them, of servers, clients and files, reach the terminal as ``plain`` text
    only.
    """
    stream = sys.stdout if to is None else to
    for line in lines:
        print(plain(line), file=stream, end=end, flush=flush)


def put_json(value: Any) -> None:
    """Prints a value as JSON: dataclasses as objects, ISO 8601, base64, a spec as ``rounds create`` reads it."""
    put(*json.dumps(_jsonable(value), indent=1).split("\n"))


def _jsonable(value: Any) -> Any:
    if isinstance(value, RoundSpec):
        return json_format.MessageToDict(value._to_proto(), preserving_proto_field_name=True)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (each for each in dataclasses.fields(value) if each.compare)  # without the time of the look
        return {field.name: _jsonable(getattr(value, field.name)) for field in fields}
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {name: _jsonable(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(each) for each in value]
    return value


def add_credentials(parser: argparse.ArgumentParser) -> None:
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
    """Returns the arguments of ``Client`` that the flags mean; ``InvalidArgumentError`` for a file with no single
    token.
    """
    files = TLS(arguments.tls_ca, arguments.tls_certificate, arguments.tls_key)
    options: dict[str, Any] = {"tls": files if arguments.tls or files != TLS() else None, "tenant": arguments.tenant}
    if arguments.token_file is not None:
        words = arguments.token_file.read_text(errors="replace").split()
        if len(words) != 1 or re.fullmatch("[!-~]+", words[0]) is None:
            raise InvalidArgumentError(f"--token-file: {arguments.token_file} has no single token")
        options["token"] = words[0]
    return options


_DEFAULT_ADDRESS = "127.0.0.1:8001"


def address_options() -> argparse.ArgumentParser:
    """Returns a parent parser with --address and the flags of credentials."""
    parent = argparse.ArgumentParser(add_help=False)
    parent.add_argument(
        "--address",
        default=os.environ.get("SPARSEAGG_ADDRESS") or _DEFAULT_ADDRESS,
        metavar="HOST:PORT",
        help=f"address of the server (default: SPARSEAGG_ADDRESS, or {_DEFAULT_ADDRESS})",
    )
    add_credentials(parent)
    return parent


def server_options(address: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Returns a parent parser with these and --timeout."""
    parent = argparse.ArgumentParser(add_help=False, parents=[address])
    parent.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="limit of the whole command (default: 60 per call, none for submissions, merges, results and backups)",
    )
    return parent


def client_of(arguments: argparse.Namespace) -> Client:
    """Returns a client of the server; all its calls together have --timeout."""
    options = client_options(arguments)
    if arguments.timeout is not None:
        options["timeout"] = arguments.timeout
    client = Client(arguments.address, **options)
    if arguments.timeout is not None:
        arguments.deadline = client._connection.deadline = time.monotonic() + arguments.timeout
    return client


def time_left(arguments: argparse.Namespace) -> float | None:
    """Returns the seconds that --timeout leaves for the rest of the command; None: it has no limit."""
    return None if arguments.timeout is None else max(0.0, arguments.deadline - time.monotonic())
